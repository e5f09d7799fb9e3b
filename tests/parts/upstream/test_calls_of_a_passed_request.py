"""How many functions of the package a warm request passes that is passed on to an upstream, in each layer: of a whole
answer, and of each further delta of a stream. A limit is what was counted; who makes a path shorter lowers it.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

from tests.http.serving import Proxy, user
from tests.http.test_calls_of_a_request import counted_calls
from tests.model_server import DONE, USAGE, chunk, event, proxy_before, raw_upstream
from tests.parts.upstream.test_connections import OK
from tests.waiting import PATIENCE

WARM, COUNTED, DELTAS = 3, 4, 10
OF_A_WHOLE_ANSWER = {
    "parts/upstream": 141,
    "http": 106,
    "runs": 81,
    "surfaces": 72,
    "agents": 23,
    "admission": 12,
    "other": 96,
}
OF_A_DELTA = {"parts/upstream": 20, "runs": 11, "http": 8, "surfaces": 2, "agents": 2, "other": 1}
WORD = event(chunk({"content": "Hi"}))
CHOICE = {"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}
WHOLE = json.dumps({"id": "x", "model": "m", "choices": [CHOICE], "usage": USAGE}).encode()


def by_layer(calls: Counter[str]) -> dict[str, int]:
    """The calls of each layer; what has no name here is `other`."""
    layers = ("parts/upstream", "runs", "http", "surfaces", "agents", "admission")
    found: Counter[str] = Counter()
    for file, count in calls.items():
        found[next((layer for layer in layers if file.startswith(f"{layer}/")), "other")] += count
    return dict(found)


def most(counts: list[Counter[str]]) -> dict[str, int]:
    return by_layer(min(counts[WARM:], key=Counter.total))


def assert_within(found: dict[str, int], limits: dict[str, int]) -> None:
    grown = {layer: count for layer, count in found.items() if count > limits.get(layer, 0)}
    assert grown == {}, found


async def test_a_whole_answer_that_is_passed_on_takes_no_more_calls_than_before(tmp_path: Path) -> None:
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
        writer.write(b"content-length: %d\r\n\r\n%b" % (len(WHOLE), WHOLE))
        await writer.drain()

    counts = []
    async with raw_upstream(talk) as url, proxy_before(url, tmp_path) as proxy:
        for _ in range(WARM + COUNTED):
            with counted_calls() as calls:
                answer = await proxy.ask(user() | {"model": "m"})
                await settled(proxy)
            assert answer.body["choices"] == [CHOICE]
            counts.append(calls)
    assert_within(most(counts), OF_A_WHOLE_ANSWER)


async def test_a_delta_that_is_passed_on_takes_no_more_calls_than_before(tmp_path: Path) -> None:
    goes_on = asyncio.Event()

    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(OK)
        for _ in range(DELTAS):
            writer.write(WORD)
            await goes_on.wait()
            goes_on.clear()
        writer.write(event(chunk({}, "stop")) + DONE)
        await writer.drain()

    counts: list[Counter[str]] = []
    async with raw_upstream(talk) as url, proxy_before(url, tmp_path) as proxy:
        body: dict[str, Any] = user(stream=True) | {"model": "m"}
        async with asyncio.timeout(PATIENCE), proxy.open(body) as reply:
            for _ in range(DELTAS):
                with counted_calls() as calls:
                    assert await reply.content.readany() == WORD
                counts.append(calls)
                goes_on.set()
            await reply.read()
    assert_within(most(counts), OF_A_DELTA)


async def settled(proxy: Proxy) -> None:
    for _ in range(5):
        await asyncio.sleep(0)
