"""What is left for other keys by one key that asks for all there is."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.http.middleware.rate_limit import CONNECTIONS
from tests.access.keyed import key_header, keyed_proxy
from tests.http.serving import Answer, Proxy, until, user
from tests.waiting import poll

HANGING_PROMPT = "[[fake:text misbehave=hang at=4]]"
"""A turn that does not end by itself."""


@asynccontextmanager
async def running_requests(proxy: Proxy, key: str, count: int, body: Any, path: str) -> AsyncIterator[None]:
    """So many requests of this key, as long as the block takes."""
    headers = key_header(key)
    tasks = [asyncio.ensure_future(proxy.send("POST", path, body, headers=headers)) for _ in range(count)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def of_another(proxy: Proxy, **fields: Any) -> Answer:
    return await proxy.ask(user(**fields), headers=key_header("two"))


async def test_a_key_that_takes_every_slot_and_fills_the_queue_leaves_a_slot_to_another(
    tmp_path: Path,
) -> None:
    keys: dict[str, Any] = {"one": {}, "two": {}}
    async with keyed_proxy(tmp_path, keys, max_running_turns=4) as proxy:
        async with running_requests(proxy, "one", 67, user(HANGING_PROMPT), "/v1/chat/completions"):
            scheduler = proxy.server.runs
            await until(lambda: (scheduler.running, scheduler.queued) == (3, 64))
            assert (await proxy.ask(user(), headers=key_header("one"))).status == 429
            assert (await of_another(proxy)).status == 200
        await proxy.settled()


async def test_a_key_that_waits_longest_has_its_turn_when_a_slot_is_free(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}, max_running_turns=1) as proxy:
        scheduler = proxy.server.runs
        async with running_requests(proxy, "one", 1, user(HANGING_PROMPT), "/v1/chat/completions"):
            await until(lambda: scheduler.running == 1)
            many = running_requests(
                proxy, "one", 5, user("[[fake:text n=5 delay=20]]"), "/v1/chat/completions"
            )
            await many.__aenter__()
            await until(lambda: scheduler.queued == 5)
            other = asyncio.ensure_future(of_another(proxy))
            await until(lambda: scheduler.queued == 6)
        assert (await other).status == 200
        assert scheduler.queued >= 3  # at most one of the five, which had come first, was before it
        await many.__aexit__(None, None, None)
        await proxy.settled()


async def test_a_single_key_has_every_slot(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}}, max_running_turns=2) as proxy:
        async with running_requests(proxy, "one", 2, user(HANGING_PROMPT), "/v1/chat/completions"):
            await until(lambda: proxy.server.runs.running == 2)
        await proxy.settled()


async def test_a_key_that_takes_every_stream_leaves_one_to_another(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}, sse_max_concurrency=4) as proxy:
        async with running_requests(
            proxy, "one", 3, user(HANGING_PROMPT, stream=True), "/v1/chat/completions"
        ):
            await until(lambda: proxy.streams == 3)
            refused = await proxy.ask(user(stream=True), headers=key_header("one"))
            assert (refused.status, refused.error["code"]) == (429, "concurrency_exceeded")
            assert "This key has" in refused.error["message"]
            assert (await of_another(proxy, stream=True)).status == 200
        await proxy.settled()


async def test_responses_in_the_background_of_one_key_leave_room_for_those_of_another(tmp_path: Path) -> None:
    async with keyed_proxy(tmp_path, {"one": {}, "two": {}}, max_running_turns=2) as proxy:
        many = {"model": "codex-5", "input": "[[fake:text n=20 delay=20]]", "background": True}
        for _ in range(6):
            assert (await proxy.send("POST", "/v1/responses", many, headers=key_header("one"))).status == 200
        one = {"model": "codex-5", "input": "Hello.", "background": True}
        created = await proxy.send("POST", "/v1/responses", one, headers=key_header("two"))
        path = f"/v1/responses/{created.body['id']}"

        async def completed() -> bool:
            got = await proxy.send("GET", path, headers=key_header("two"))
            return bool(got.body["status"] == "completed")

        await poll(completed)
        assert proxy.server.background.slots.waiting_of("one") >= 3


@asynccontextmanager
async def idle_socket(proxy: Proxy, name: str) -> AsyncIterator[None]:
    async with proxy.session.ws_connect(f"{proxy.url}/v1/responses", headers=key_header(name)):
        yield


@asynccontextmanager
async def followed_response(proxy: Proxy, name: str) -> AsyncIterator[None]:
    """The stream of a background response that does not end by itself."""
    body = {"model": "codex-5", "input": HANGING_PROMPT, "background": True, "stream": True}
    headers, connections = key_header(name), proxy.app[CONNECTIONS]
    before = connections.running
    async with proxy.session.post(f"{proxy.url}/v1/responses", json=body, headers=headers) as created:
        first = json.loads((await created.content.readuntil(b"\n\n")).partition(b"data: ")[2])
    await until(lambda: connections.running == before)
    url = f"{proxy.url}/v1/responses/{first['response']['id']}?stream=true"
    async with proxy.session.get(url, headers=headers) as followed:
        await followed.content.readuntil(b"\n\n")
        yield


@asynccontextmanager
async def live_page(proxy: Proxy, name: str) -> AsyncIterator[None]:
    async with proxy.session.get(f"{proxy.url}/ui/api/live", headers=key_header(name)) as live:
        await live.content.readuntil(b"\n\n")
        yield


@pytest.mark.parametrize("open_one", [idle_socket, followed_response, live_page])
async def test_a_key_that_keeps_connections_open_leaves_some_to_another(
    tmp_path: Path, open_one: Callable[[Proxy, str], AbstractAsyncContextManager[None]]
) -> None:
    keys: dict[str, Any] = {"one": {}, "two": {}}
    async with keyed_proxy(tmp_path, keys, ui=True) as proxy:
        connections = proxy.app[CONNECTIONS]
        connections._limit = 4
        async with AsyncExitStack() as held:
            for _ in range(3):
                await held.enter_async_context(open_one(proxy, "one"))
            refused = await proxy.send("GET", "/v1/models", headers=key_header("one"))
            assert (refused.status, refused.error["code"]) == (429, "concurrency_exceeded")
            assert refused.headers["Connection"] == "close"
            assert (await proxy.send("GET", "/v1/models", headers=key_header("two"))).status == 200
        await until(lambda: connections.running == 0)
        assert (await proxy.send("GET", "/v1/models", headers=key_header("one"))).status == 200
