"""The usage of a turn that was cut has what its agent adds to the request, not the client's text alone."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest

from tests.http.claude import claude_proxy
from tests.http.serving import Answer, Proxy, fake_proxy

WHOLE = 5231
"""The input tokens of a turn that is not cut, as the agent reports them."""
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
}
INPUTS = {
    "prompt_tokens",
    "input_tokens",
    "cache_read_input_tokens",
    "cache_creation_input_tokens",
    "prompt_eval_count",
}
AGENTS = ["proto", "app-server", "acp", "claude-code"]


@asynccontextmanager
async def serving(agent: str, folder: Path) -> AsyncIterator[Proxy]:
    async with AsyncExitStack() as stack:
        if agent == "claude-code":
            made = claude_proxy(folder)
        else:
            usage = {"acp": {"usage": "turn"}} if agent == "acp" else {}
            made = fake_proxy(folder, fake_dialect=agent, **cast("dict[str, Any]", usage))
        yield await stack.enter_async_context(made)


MARKS = {
    "/api/chat": '"x-codex-uncertain":"usage"',
    "/v1/completions": '"estimated":true',
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", ["/v1/messages", *MARKS])
async def test_estimated_tokens_are_marked_in_every_api(tmp_path: Path, path: str, stream: bool) -> None:
    async with fake_proxy(tmp_path) as proxy:
        for scenario, marked in (("usage_missing", True), ("text", False)):
            text = f"[[fake:{scenario}]]"
            asked: dict[str, Any] = {"messages": [{"role": "user", "content": text}], "max_tokens": 99}
            if path == "/v1/completions":
                asked = {"prompt": text, "stream_options": {"include_usage": True} if stream else None}
            answer = await proxy.send("POST", path, {"model": "codex-5", "stream": stream, **asked})
            if path in MARKS:
                assert (MARKS[path] in answer.text) is marked
            assert (answer.headers.get("x-codex-uncertain") == "usage") is (marked and not stream)


LIMITS: dict[str, dict[str, Any]] = {
    "chat": {"max_tokens": 16},
    "responses": {"max_output_tokens": 16},
    "messages": {"max_tokens": 16},
    "ollama": {"options": {"num_predict": 16}},
}
STOPS: dict[str, dict[str, Any]] = {
    "chat": {"stop": ["word9"]},
    "messages": {"stop_sequences": ["word9"]},
    "ollama": {"options": {"stop": ["word9"]}},
}
CUTS: dict[str, dict[str, dict[str, Any]]] = {
    "limit": LIMITS,
    "stop": STOPS,
    "interrupted": {api: {} for api in PATHS},
}


def body(api: str, marker: str = "", *, stream: bool = False) -> dict[str, Any]:
    text = f"[[fake:text n=60 in={WHOLE} out=70 {marker}]]"
    asked: dict[str, Any] = {"model": "codex-5", "stream": stream}
    if api == "responses":
        return asked | {"input": text}
    asked |= {"messages": [{"role": "user", "content": text}]}
    if api == "messages":
        asked["max_tokens"] = 1000
    if api == "chat" and stream:
        asked["stream_options"] = {"include_usage": True}
    return asked


def usage_of(answer: Answer) -> dict[str, Any]:
    """Returns the last usage in an answer of any API, whole or streamed."""
    assert answer.status == 200, answer.text
    values = [line.removeprefix("data: ") for line in answer.text.splitlines()]
    found = [json.loads(value) for value in values if value.startswith("{")]
    usages = [(each.get("response") or each).get("usage") or each for each in found]
    return next(each for each in usages[::-1] if not INPUTS.isdisjoint(each))


def input_of(answer: Answer) -> int:
    usage = usage_of(answer)
    return sum(usage.get(name, 0) for name in INPUTS)


@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("agent", AGENTS)
async def test_a_cut_turn_counts_about_as_much_input_as_a_whole_one(
    agent: str, cut: str, tmp_path: Path
) -> None:
    found = {}
    async with serving(agent, tmp_path) as proxy:
        assert input_of(await proxy.ask(body("chat"))) == WHOLE
        # Slow, so that it is cut before its agent reports anything.
        marker = "finish=interrupted" if cut == "interrupted" else "delay=3"
        for api, fields in CUTS[cut].items():
            for stream in (False, True):
                answer = await proxy.send("POST", PATHS[api], body(api, marker, stream=stream) | fields)
                found[api, stream] = input_of(answer)
    assert all(WHOLE - 60 < tokens < WHOLE + 60 for tokens in found.values()), found


@pytest.mark.parametrize("agent", ["proto", "app-server"])
async def test_the_output_of_a_cut_turn_is_within_its_limit(agent: str, tmp_path: Path) -> None:
    async with serving(agent, tmp_path) as proxy:
        await proxy.ask(body("chat"))
        answer = await proxy.ask(body("chat", "delay=3") | LIMITS["chat"])
        assert 0 < usage_of(answer)["completion_tokens"] <= 16
        assert usage_of(answer)["estimated"] is True


async def test_the_text_of_the_request_is_added_to_what_the_agent_adds(tmp_path: Path) -> None:
    async with serving("proto", tmp_path) as proxy:
        await proxy.ask(body("chat"))
        asked = body("chat", "delay=3")
        asked["messages"].insert(0, {"role": "user", "content": "one two three four " * 500})
        assert input_of(await proxy.ask(asked | LIMITS["chat"])) == pytest.approx(WHOLE + 2000, rel=0.05)


async def test_nothing_is_learned_from_a_turn_that_has_acted(tmp_path: Path) -> None:
    async with serving("app-server", tmp_path) as proxy:
        asked = {
            "model": "codex-5",
            "messages": [{"role": "user", "content": f"[[fake:activity in={WHOLE}]]"}],
        }
        assert input_of(await proxy.ask(asked)) >= WHOLE
        slow = "[[fake:text n=60 delay=20]]"
        answer = await proxy.ask(
            {"model": "codex-5", "messages": [{"role": "user", "content": slow}]} | LIMITS["chat"]
        )
        assert input_of(answer) < 100
