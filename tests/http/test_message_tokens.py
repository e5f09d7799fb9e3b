"""POST /v1/messages/count_tokens: without an agent, beyond the limits, many at once."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import anthropic
import pytest
from anthropic import AsyncAnthropic

from tests.cpu_time import slowness
from tests.http.serving import Proxy, fake_proxy
from tests.waiting import PATIENCE

PATH = "/v1/messages/count_tokens?beta=true"
HELLO: dict[str, Any] = {"model": "codex-5", "messages": [{"role": "user", "content": "Hello."}]}
RECORDED = Path(__file__).parents[1] / "golden" / "messages" / "04-interactive.jsonl"


async def test_the_official_sdk_counts_and_no_turn_is_run(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(type(proxy.server.runs), "start")
    async with AsyncAnthropic(base_url=proxy.url, api_key="none", max_retries=0) as client:
        short = await client.messages.count_tokens(**HELLO)
        tools: Any = [{"name": "t", "description": "Does it. " * 100, "input_schema": {"type": "object"}}]
        long = await client.messages.count_tokens(**HELLO, tools=tools)
        with pytest.raises(anthropic.BadRequestError, match="messages"):
            await client.messages.count_tokens(model="codex-5", messages=[])
        with pytest.raises(anthropic.NotFoundError):
            await client.messages.count_tokens(**{**HELLO, "model": "nobody-knows-it"})
    assert 0 < short.input_tokens < 100
    assert long.input_tokens > short.input_tokens + 300


async def test_a_count_says_that_it_is_an_estimate(proxy: Proxy) -> None:
    answer = await proxy.send("POST", PATH, HELLO)
    assert (answer.status, set(answer.body)) == (200, {"input_tokens"})
    assert answer.headers["x-codex-estimated"] == "true"


async def test_counting_tokens_counts_against_no_limit(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, rate_limit_rpm=1, key_concurrency=1) as proxy:
        for _ in range(3):
            assert (await proxy.send("POST", PATH, HELLO)).status == 200


async def test_twenty_six_at_once_take_less_than_two_seconds(proxy: Proxy) -> None:
    """Claude Code asks so for `/context`; the texts are as long as they were, with other words."""
    bodies = []
    for line in RECORDED.read_text("utf-8").splitlines():
        entry = json.loads(line)
        if entry["kind"] == "request" and "count_tokens" in entry["path"]:
            words = "The quick brown fox jumps over it. " * (entry["size"] // 35)
            bodies.append({**entry["body"], "model": "codex-5", "system": words})
    assert len(bodies) == 26
    began = time.process_time()  # of all threads
    async with asyncio.timeout(PATIENCE):
        answers = await asyncio.gather(*(proxy.send("POST", PATH, body) for body in bodies))
    assert [answer.status for answer in answers] == [200] * 26
    taken = time.process_time() - began
    assert taken / slowness() < 2
