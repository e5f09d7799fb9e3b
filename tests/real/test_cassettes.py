"""Turns of real programs are recorded, and replayed on every API without them: Codex, Claude Code, programs that speak
ACP. The models are scripted.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anthropic
import pytest
from openai import AsyncOpenAI

from codex_proxy.parts.cassettes.check import check_folder, report
from codex_proxy.parts.cassettes.replay import Folder
from tests.parts.cassettes.talking import FUNCTION, WEATHER, openai_client, running_server
from tests.real import acp_proxy as acp
from tests.real import anthropic_model
from tests.real.claude_proxy import claude_proxy
from tests.real.codex_home import CodexHome
from tests.real.model_plans import call, plan, say, think
from tests.real.proxy import proxy
from tests.real.scripted_apis import script, scripted_apis

CALLS = [("get_weather", {"city": "Paris"}), ("get_weather", {"city": "Rome"})]
Turn = tuple[str, list[Any], int]
"""The words, the calls and the tokens of a turn."""


async def chat(client: AsyncOpenAI, asked: str, tools: bool, stream: bool) -> Turn:
    given: dict[str, Any] = {"model": "codex-5", "messages": [{"role": "user", "content": asked}]}
    given |= {"tools": [{"type": "function", "function": FUNCTION}]} if tools else {}
    if not stream:
        answer = await client.chat.completions.create(**given)
        message = answer.choices[0].message
        calls = [
            (each.function.name, json.loads(each.function.arguments)) for each in message.tool_calls or ()
        ]
        return message.content or "", calls, answer.usage.total_tokens if answer.usage else 0
    text, made, tokens = "", list[list[str]](), 0
    chunks = await client.chat.completions.create(
        **given, stream=True, stream_options={"include_usage": True}
    )
    async for chunk in chunks:
        tokens = chunk.usage.total_tokens if chunk.usage else tokens
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for each in choice.delta.tool_calls or ():
                if each.id:
                    made.append([each.function.name, ""])
                made[each.index][1] += each.function.arguments or ""
    return text, [(name, json.loads(arguments)) for name, arguments in made], tokens


async def responses(client: AsyncOpenAI, asked: str, tools: bool, stream: bool) -> Turn:
    given: dict[str, Any] = {"model": "codex-5", "input": asked}
    given |= {"tools": [{"type": "function", **FUNCTION}]} if tools else {}
    answer: Any
    if stream:
        answer = [event async for event in await client.responses.create(**given, stream=True)][-1].response
    else:
        answer = await client.responses.create(**given)
    calls = [
        (item.name, json.loads(item.arguments)) for item in answer.output if item.type == "function_call"
    ]
    return answer.output_text, calls, answer.usage.total_tokens


async def messages(client: AsyncOpenAI, asked: str, tools: bool, stream: bool) -> Turn:
    root = str(client.base_url).removesuffix("/v1/")
    given: dict[str, Any] = {
        "model": "codex-5",
        "max_tokens": 9999,
        "messages": [{"role": "user", "content": asked}],
    }
    tool = {"name": "get_weather", "description": FUNCTION["description"], "input_schema": WEATHER}
    given |= {"tools": [tool]} if tools else {}
    async with anthropic.AsyncAnthropic(base_url=root, api_key="no key", max_retries=0) as other:
        if stream:
            async with other.messages.stream(**given) as opened:
                answer = await opened.get_final_message()
        else:
            answer = await other.messages.create(**given)
    used = answer.usage
    tokens = used.input_tokens + used.output_tokens + (used.cache_read_input_tokens or 0)
    calls = [(block.name, block.input) for block in answer.content if block.type == "tool_use"]
    text = "".join(block.text for block in answer.content if block.type == "text")
    return text, calls, tokens + (used.cache_creation_input_tokens or 0)


async def replays(folder: Path, place: Path, asked: str, recorded: Turn, *, tools: bool = True) -> None:
    """Every API says what was recorded, streamed and whole, by a server that has no agent; and today's code gives the
    answer that was recorded."""
    (result,) = await check_folder(Folder(folder))
    assert result.same, report([result])
    async with (
        running_server(place, {"PATH": ""}, agent="auto", cassettes={"replay": folder}) as server,
        openai_client(server) as client,
    ):
        for api in (chat, responses, messages):
            for stream in (False, True):
                assert await api(client, asked, tools, stream) == recorded, (api.__name__, stream)


@pytest.mark.exhaustive
@pytest.mark.real
async def test_a_turn_of_codex_with_reasoning_text_and_two_calls_is_replayed_on_every_api(
    codex_home: CodexHome, tmp_path: Path
) -> None:
    folder, place = tmp_path / "cassettes", tmp_path / "place"
    place.mkdir()
    put_out = [think("Let me think."), say("Let me see."), *(call(**given) for _, given in CALLS)]
    asked = f"What is the weather? {plan(put_out)}"
    async with proxy(codex_home, cassettes={"record": folder}) as running:
        recorded = await chat(running.client, asked, True, False)
    assert recorded[:2] == ("Let me see.", CALLS)
    assert recorded[2] > 0
    (file,) = folder.iterdir()
    assert '"reasoning"' in file.read_text("utf-8")
    await replays(folder, place, asked, recorded)


@pytest.mark.exhaustive
async def test_a_turn_of_claude_code_is_replayed_on_every_api(tmp_path: Path) -> None:
    folder, place = tmp_path / "cassettes", tmp_path / "place"
    place.mkdir()
    asked = f"Hello? {anthropic_model.script({'think': 'Hm.', 'text': 'Hello from the model.'})}"
    async with (
        anthropic_model.anthropic_model() as model,
        claude_proxy(tmp_path, model, cassettes={"record": folder}) as (client, _),
    ):
        recorded = await chat(client, asked, True, False)
    assert recorded[0] == "Hello from the model."
    await replays(folder, place, asked, recorded)


@pytest.mark.exhaustive
@pytest.mark.parametrize("agent", acp.AGENTS)
async def test_a_turn_of_a_program_that_speaks_acp_is_replayed_on_every_api(
    agent: str, tmp_path: Path
) -> None:
    folder, place = tmp_path / "cassettes", tmp_path / "place"
    place.mkdir()
    asked = f"Hello? {script({'text': 'Hello from the model.'})}"
    async with (
        scripted_apis() as apis,
        acp.acp_proxy(agent, tmp_path, apis.url, cassettes={"record": folder}) as (client, _),
    ):
        recorded = await chat(client, asked, False, False)
    assert recorded[0] == "Hello from the model."
    await replays(folder, place, asked, recorded, tools=False)
