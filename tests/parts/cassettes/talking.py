"""Servers that record and replay, and clients of every API that say the same to them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import anthropic
import openai

from codex_proxy.app.server import Server, make_server
from codex_proxy.core.events import Event, TurnEnded
from codex_proxy.core.turn import Turn
from codex_proxy.parts.cassettes.recorder import RecordedExchange, Recorder
from codex_proxy.parts.cassettes.scrubbing import Scrubber
from codex_proxy.settings.fields import Settings

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
}
FUNCTION = {"name": "get_weather", "description": "Get the weather", "parameters": WEATHER}
SYSTEM = "Be brief."
PROMPT = "[[fake:tool_calls]] What is the weather in Paris and in Rome?"


def record_steps(folder: Path, steps: Sequence[Sequence[Event]], sent: Sequence[bytes] = ()) -> None:
    """Records a turn of an agent with these events into a folder. `sent`: the lines of its answer."""
    agent: Any = SimpleNamespace(name="fake", version="", capabilities=())
    session: Any = SimpleNamespace(recorder=None, origin=None)
    recorder = Recorder(folder, Scrubber({"<user>": ["jplanted"]}), {})
    exchange = RecordedExchange(recorder, "POST /v1/chat/completions", {}, ())
    exchange.add_content("request", b"{}")
    turn = exchange.turn(Turn(model="m", history=()), agent, ())
    turn.on_session(session)
    session.recorder.on_step("begin", (turn.turn,), (), 0)
    for events in steps:
        session.recorder.on_step("receive", (), events, 100)
    exchange.add_content("answer", b"".join(b"data: %b\n\n" % line for line in sent))
    turn.on_end(TurnEnded(stop="completed"))
    exchange.end(200)


@asynccontextmanager
async def running_server(
    folder: Path, environ: dict[str, str] | None = None, **settings: Any
) -> AsyncIterator[Server]:
    """A server whose files are in `folder`; nobody else's settings."""
    state = folder / "state"
    state.mkdir(exist_ok=True)
    given = {"agent": "fake", "fake_dialect": "app-server", "workdir": state, "state_dir": state, **settings}
    server = await make_server(Settings(port=0, drain_ms=0, api_key=None, **given), environ)
    try:
        await server.start()
        yield server
    finally:
        await server.stop()


def openai_client(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="sk-test", max_retries=0)


def anthropic_client(server: Server) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(
        base_url=f"http://127.0.0.1:{server.port}", api_key="sk-test", max_retries=0
    )


def _output(arguments: str) -> str:
    return f"sunny in {json.loads(arguments)['city']}"


LoopResult = dict[str, Any]
"""What a tool loop has said: its calls, its last words, and the tokens of both turns."""


async def chat_loop(
    server: Server, *, stream: bool = False, model: str = "codex-5", asked: str = PROMPT
) -> LoopResult:
    """Asks for the weather on Chat Completions, and gives the outputs of the calls."""
    async with openai_client(server) as client:
        return await _chat_loop(client, stream=stream, model=model, asked=asked)


async def _chat_loop(client: openai.AsyncOpenAI, *, stream: bool, model: str, asked: str) -> LoopResult:
    messages: list[Any] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": asked}]
    found: LoopResult = {"calls": [], "tokens": [], "text": ""}
    for _ in range(2):
        said = await _chat(client, messages, stream=stream, model=model)
        found["tokens"].append(said["tokens"])
        found["calls"] += [(call["name"], json.loads(call["arguments"])) for call in said["calls"]]
        found["text"] += said["text"]
        if not said["calls"]:
            break
        calls = [
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": call["name"], "arguments": call["arguments"]},
            }
            for call in said["calls"]
        ]
        messages.append({"role": "assistant", "content": said["text"] or None, "tool_calls": calls})
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": _output(call["arguments"])}
            for call in said["calls"]
        ]
    return found


async def _chat(client: openai.AsyncOpenAI, messages: list[Any], *, stream: bool, model: str) -> LoopResult:
    tools: list[Any] = [{"type": "function", "function": FUNCTION}]
    if not stream:
        answer = await client.chat.completions.create(model=model, messages=messages, tools=tools)
        message = answer.choices[0].message
        calls = [
            {"id": call.id, "name": call.function.name, "arguments": call.function.arguments}
            for call in message.tool_calls or ()
            if call.type == "function"
        ]
        assert answer.usage is not None
        return {"calls": calls, "text": message.content or "", "tokens": answer.usage.total_tokens}
    said: LoopResult = {"calls": [], "text": "", "tokens": 0}
    chunks = await client.chat.completions.create(
        model=model, messages=messages, tools=tools, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in chunks:
        if chunk.usage is not None:
            said["tokens"] = chunk.usage.total_tokens
        for choice in chunk.choices:
            said["text"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                if call.id:
                    said["calls"].append({"id": call.id, "name": call.function.name, "arguments": ""})
                said["calls"][call.index]["arguments"] += call.function.arguments or ""
    return said


async def responses_loop(
    server: Server, *, stream: bool = False, model: str = "codex-5", asked: str = PROMPT
) -> LoopResult:
    """The same on the Responses API; the second turn continues the stored response."""
    async with openai_client(server) as client:
        return await _responses_loop(client, stream=stream, model=model, asked=asked)


async def _responses_loop(client: openai.AsyncOpenAI, *, stream: bool, model: str, asked: str) -> LoopResult:
    tools: list[Any] = [{"type": "function", **FUNCTION}]
    given: Any = asked
    found: LoopResult = {"calls": [], "tokens": [], "text": ""}
    previous: str | None = None
    for _ in range(2):
        wanted: dict[str, Any] = {"model": model, "instructions": SYSTEM, "input": given, "tools": tools}
        if previous is not None:
            wanted["previous_response_id"] = previous
        if stream:
            events = [event async for event in await client.responses.create(**wanted, stream=True)]
            answer = events[-1].response
        else:
            answer = await client.responses.create(**wanted)
        previous = answer.id
        assert answer.usage is not None
        found["tokens"].append(answer.usage.total_tokens)
        calls = [item for item in answer.output if item.type == "function_call"]
        found["calls"] += [(call.name, json.loads(call.arguments)) for call in calls]
        found["text"] += answer.output_text
        if not calls:
            break
        given = [
            {"type": "function_call_output", "call_id": call.call_id, "output": _output(call.arguments)}
            for call in calls
        ]
    return found


async def messages_loop(
    server: Server, *, stream: bool = False, model: str = "codex-5", asked: str = PROMPT
) -> LoopResult:
    """The same on Anthropic's API."""
    async with anthropic_client(server) as client:
        return await _messages_loop(client, stream=stream, model=model, asked=asked)


async def _messages_loop(
    client: anthropic.AsyncAnthropic, *, stream: bool, model: str, asked: str
) -> LoopResult:
    tools: list[Any] = [{"name": "get_weather", "description": "Get the weather", "input_schema": WEATHER}]
    messages: list[Any] = [{"role": "user", "content": asked}]
    found: LoopResult = {"calls": [], "tokens": [], "text": ""}
    for _ in range(2):
        wanted: dict[str, Any] = {
            "model": model, "max_tokens": 4096, "system": SYSTEM, "messages": messages, "tools": tools
        }  # fmt: skip
        if stream:
            async with client.messages.stream(**wanted) as opened:
                answer = await opened.get_final_message()
        else:
            answer = await client.messages.create(**wanted)
        usage = answer.usage
        found["tokens"].append(
            usage.input_tokens
            + usage.output_tokens
            + (usage.cache_read_input_tokens or 0)
            + (usage.cache_creation_input_tokens or 0)
        )
        calls = [block for block in answer.content if block.type == "tool_use"]
        found["calls"] += [(call.name, call.input) for call in calls]
        found["text"] += "".join(block.text for block in answer.content if block.type == "text")
        if not calls:
            break
        messages.append(
            {
                "role": "assistant",
                "content": [block.model_dump(exclude_none=True) for block in answer.content],
            }
        )
        results = [
            {"type": "tool_result", "tool_use_id": call.id, "content": _output(json.dumps(call.input))}
            for call in calls
        ]
        messages.append({"role": "user", "content": results})
    return found


LOOPS = {"chat": chat_loop, "responses": responses_loop, "messages": messages_loop}
