"""How much one turn may say: past it the turn ends as cut off, on every surface, and the agent with it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.every_agent import ALL_KINDS, OF_TESTS, proxy_of, with_every_agent
from tests.http.serving import Proxy, user

SIZE = 20_000
FLOOD = "[[fake:count n=100000]]"


@pytest.fixture(params=["proto", "app-server"])
async def proxy(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Proxy]:
    async with proxy_of(request.param, tmp_path, max_output_size=SIZE) as running:
        yield running
        assert running.server.runs.running == 0


@pytest.mark.sampled(every=2)
async def test_a_flood_ends_a_chat_answer_as_length(proxy: Proxy) -> None:
    [choice] = (await proxy.ask(user(FLOOD))).body["choices"]
    assert choice["finish_reason"] == "length"
    whole = choice["message"]["content"]
    assert 0 < len(whole) <= SIZE
    frames = (await proxy.ask(user(FLOOD, stream=True))).frames
    assert frames[-1] == "[DONE]"
    choices = [choice for frame in frames[:-1] for choice in frame["choices"]]
    assert choices[-1]["finish_reason"] == "length"
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert 0 < len(text) <= SIZE
    # Where it is cut is a matter of how much came in one read, so each is the beginning of the same flood.
    assert text.startswith(whole) or whole.startswith(text)


@pytest.mark.parametrize("kind", with_every_agent(ALL_KINDS, but=OF_TESTS))
async def test_a_flood_ends_a_response_as_incomplete(kind: str, tmp_path: Path) -> None:
    body: dict[str, Any] = {"model": "codex-5", "input": FLOOD}
    async with proxy_of(kind, tmp_path, max_output_size=SIZE) as proxy:
        response = (await proxy.send("POST", "/v1/responses", body)).body
    assert (response["status"], response["incomplete_details"]) == (
        "incomplete",
        {"reason": "max_output_tokens"},
    )
    [item] = response["output"]
    assert item["status"] == "incomplete"
    assert 0 < len(item["content"][0]["text"]) <= SIZE


@pytest.mark.sampled(every=2)
async def test_the_agent_stops_and_the_server_goes_on(proxy: Proxy) -> None:
    for _ in range(3):
        assert (await proxy.ask(user(FLOOD))).status == 200
    [choice] = (await proxy.ask(user())).body["choices"]
    assert choice["finish_reason"] == "stop"
