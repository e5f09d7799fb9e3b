"""A client of Anthropic's API on the real binary: a tool loop as Claude Code has it, and what the model sees of it."""

from __future__ import annotations

import json
import time
from typing import Any

import aiohttp
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message

from tests.real.codex_home import MODEL
from tests.real.model_plans import call, plan, say, think
from tests.real.model_server import ModelServer, Request
from tests.real.proxy import Proxy
from tests.real.shared import Proxies
from tests.real.tool_loop import SETTINGS, assert_grows, input_of, types_of
from tests.waiting import PATIENCE
from tests.weather_tool import MESSAGES_WEATHER

STEPS = [
    [think("I look."), say("Both."), call(city="Paris"), call(city="Rome")],
    [think("More."), call(city="Oslo")],
]


class Loop:
    """One conversation, whose history the client keeps as it came."""

    def __init__(self, proxy: Proxy, prompt: str, **fields: Any) -> None:
        self.client = AsyncAnthropic(base_url=proxy.url, api_key="none", max_retries=0, timeout=PATIENCE)
        self.messages: list[Any] = [{"role": "user", "content": prompt}]
        self.fields = {"model": MODEL, "max_tokens": 32000, "system": "Be brief.", **fields}

    async def step(self) -> Message:
        async with self.client.messages.stream(messages=self.messages, **self.fields) as stream:
            message = await stream.get_final_message()
        content = [block.model_dump(exclude_none=True) for block in message.content]
        self.messages.append({"role": "assistant", "content": content})
        return message

    def answer(self, message: Message, *behind: dict[str, Any]) -> None:
        """Gives each call its result, and says what stands `behind` them."""
        results = [
            {"type": "tool_result", "tool_use_id": block.id, "content": f"sunny in {block.input['city']}"}
            for block in message.content
            if block.type == "tool_use" and isinstance(block.input, dict)
        ]
        self.messages.append({"role": "user", "content": results})
        self.messages += behind

    async def run(self, *behind: dict[str, Any]) -> Message:
        """Goes on until the model has no call left."""
        async with self.client:
            while (message := await self.step()).stop_reason == "tool_use":
                self.answer(message, *behind)
            return message


def reasoning_in(request: Request) -> list[str]:
    return [item["encrypted_content"] for item in input_of(request) if item["type"] == "reasoning"]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("way", ["kept", pytest.param("replayed", marks=pytest.mark.exhaustive), "forgotten"])
async def test_each_steps_reasoning_reaches_the_model_again_in_its_place(
    proxies: Proxies, model_server: ModelServer, way: str
) -> None:
    """`forgotten`: nothing is kept here, so that it comes back in the client's own history."""
    proxy = await proxies.of(**SETTINGS[way])
    loop = Loop(proxy, plan(*STEPS, [say("Sunny.")]), tools=[MESSAGES_WEATHER], thinking={"type": "adaptive"})
    last = await loop.run()
    assert [block.type for block in last.content][:1] == ["text"]
    first, second, third = model_server.calls
    assert (
        types_of(third)[-8:]
        == [
            *("reasoning", "message", "function_call", "function_call"),
            *("function_call_output", "function_call_output", "reasoning", "function_call"),
            "function_call_output",
        ][-8:]
    )
    assert len(reasoning_in(first)) == 0
    assert len(set(reasoning_in(third))) == 2
    assert reasoning_in(third)[:1] == reasoning_in(second)
    if way != "forgotten":
        assert_grows(model_server.calls)


async def test_a_conversation_keeps_the_providers_cache_key(
    proxies: Proxies, model_server: ModelServer
) -> None:
    """Also with a system message behind the results, as Claude Code has it."""
    proxy = await proxies.of()
    loop = Loop(proxy, plan(*STEPS, [say("Sunny.")]), tools=[MESSAGES_WEATHER], thinking={"type": "adaptive"})
    await loop.run({"role": "system", "content": "Be brief."})
    assert len({request.body["prompt_cache_key"] for request in model_server.calls}) == 1
    assert "<system-reminder>\nBe brief.\n</system-reminder>" in json.dumps(
        input_of(model_server.calls[-1])[-1]["output"]
    ).encode().decode("unicode_escape")


@pytest.mark.exhaustive
async def test_without_state_in_the_history_nothing_is_shown_of_it(
    proxies: Proxies, model_server: ModelServer
) -> None:
    proxy = await proxies.of(reasoning_state="server")
    loop = Loop(proxy, plan(*STEPS, [say("Sunny.")]), tools=[MESSAGES_WEATHER], thinking={"type": "adaptive"})
    await loop.run()
    assert "redacted_thinking" not in json.dumps(loop.messages)
    assert len(reasoning_in(model_server.calls[-1])) == 2


@pytest.mark.exhaustive
async def test_instructions_in_the_middle_reach_the_model_in_their_place(
    proxies: Proxies, model_server: ModelServer
) -> None:
    proxy = await proxies.of(kept_threads=0)
    loop = Loop(proxy, "Hello.")
    async with loop.client:
        await loop.step()
        loop.messages += [
            {"role": "user", "content": "And?"},
            {"role": "system", "content": [{"type": "text", "text": "Rhyme."}]},
        ]
        await loop.step()
    said = [
        (item["role"], item["content"][0]["text"])
        for item in input_of(model_server.calls[-1])
        if "role" in item
    ]
    assert said[-2:] == [("user", "And?"), ("developer", "Rhyme.")]


async def test_an_answer_under_a_schema(proxies: Proxies, model_server: ModelServer) -> None:
    schema = {
        "type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"],
        "additionalProperties": False,
    }  # fmt: skip
    config = {"effort": "medium", "format": {"type": "json_schema", "schema": schema}}
    proxy = await proxies.of()
    loop = Loop(proxy, plan([say('{"title":"x"}')]), output_config=config)
    async with loop.client:
        message = await loop.step()
    assert json.loads(message.content[0].text) == {"title": "x"}  # type: ignore[union-attr]
    body = model_server.calls[-1].body
    assert body["text"]["format"]["schema"] == schema
    assert body["reasoning"]["effort"] == "medium"


# --- the time to the first token ------------------------------------------------------------------

PROMPT = "Be brief. " * 2_000
FUNCTIONS = [(f"tool_{number}", "Does it. " * 100, {"type": "object"}) for number in range(12)]
"""As much as Claude Code brings."""


async def first_token(proxy: Proxy, path: str, body: dict[str, Any]) -> float:
    """Seconds until the first words of an answer."""
    asked = {"model": MODEL, "max_tokens": 1024, "stream": True, **body}
    began = time.perf_counter()
    async with aiohttp.ClientSession() as client, client.post(proxy.url + path, json=asked) as reply:
        said = b""
        while b"word0" not in said:
            said += await reply.content.readany()
        taken = time.perf_counter() - began
        await reply.read()
    return taken


@pytest.mark.exhaustive
async def test_the_first_token_comes_as_early_as_that_of_chat(proxy: Proxy) -> None:
    """The quickest of many counts, since a busy machine makes any of them slower; and once in some rounds is enough."""
    say = {"role": "user", "content": "[[model:text n=3]] Go."}
    chat = {
        "messages": [{"role": "system", "content": PROMPT}, say],
        "tools": [
            {"type": "function", "function": {"name": name, "description": about, "parameters": schema}}
            for name, about, schema in FUNCTIONS
        ],
    }
    messages = {
        "system": PROMPT,
        "messages": [say],
        "tools": [
            {"name": name, "description": about, "input_schema": schema} for name, about, schema in FUNCTIONS
        ],
    }
    ratios: list[float] = []
    while not ratios or min(ratios) > 1.05:
        assert len(ratios) < 5, f"first tokens, compared with those of Chat: {ratios}"
        pairs = [
            (
                await first_token(proxy, "/v1/messages", messages),
                await first_token(proxy, "/v1/chat/completions", chat),
            )
            for _ in range(15)
        ]
        ours, theirs = zip(*pairs, strict=True)
        ratios.append(min(ours) / min(theirs))
