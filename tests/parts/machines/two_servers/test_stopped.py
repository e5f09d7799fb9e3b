"""A server that is stopped (SIGSTOP) for longer than its leases, and goes on: what it has begun is no longer its own.
Another server has taken it over meanwhile, and each kind of write of the stopped one must fail, and say so.

`tests/parts/machines/test_fences.py` names a test here for each kind of write.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, TypeAlias

import aiohttp
import asyncpg
import pytest
from aiohttp import web

from tests.http_responses.asking import blocks_of, create, prompt_for
from tests.http_responses.receiving import SECRET
from tests.parts.machines.two_servers.conftest import (
    HELD_PROMPT,
    LEASED_TABLES,
    Pair,
    let_leases_run_out,
    third_server,
)
from tests.parts.machines.two_servers.test_background import store_of, wait_for_end
from tests.parts.machines.two_servers.test_turns import items_of
from tests.waiting import PATIENCE, poll
from tests.web_application import serve_application

pytestmark = pytest.mark.exhaustive

Ask: TypeAlias = Callable[["Stopped", dict[str, Any]], Coroutine[Any, Any, dict[str, Any]]]
"""Sends a request to the third server; returns the last object that its client gets."""


@dataclass
class Stopped:
    """A third server, beside two that serve on."""

    pair: Pair
    url: str
    process: asyncio.subprocess.Process
    connection: asyncpg.Connection
    postgres_url: str

    async def when(self, sql: str, tables: Sequence[str] = LEASED_TABLES) -> None:
        """Stops the server as soon as the statement finds something, and lets its leases in these tables run out."""
        await poll(lambda: self.connection.fetchval(sql))
        self.process.send_signal(signal.SIGSTOP)
        await let_leases_run_out(self.postgres_url, tables)

    def go_on(self) -> None:
        self.pair.release.write_text("go")
        self.process.send_signal(signal.SIGCONT)


@pytest.fixture
async def stopped(pair: Pair, postgres_url: str, request: pytest.FixtureRequest) -> AsyncIterator[Stopped]:
    settings: dict[str, str] = getattr(request, "param", {})
    connection = await asyncpg.connect(postgres_url)
    async with third_server(pair, postgres_url, **settings) as (url, process):
        yield Stopped(pair, url, process, connection, postgres_url)
    await connection.close()


async def whole(server: Stopped, body: dict[str, Any]) -> dict[str, Any]:
    async with server.pair.one.session.post(f"{server.url}/v1/responses", json=body) as reply:
        assert reply.status in (200, 503)
        found: dict[str, Any] = await reply.json()
        assert (reply.status == 503) == ("status" not in found)
        return found


async def streamed(server: Stopped, body: dict[str, Any]) -> dict[str, Any]:
    async with server.pair.one.session.post(
        f"{server.url}/v1/responses", json={**body, "stream": True}
    ) as reply:
        text = (await reply.read()).decode()
    last = blocks_of(text.removesuffix("event: done\ndata: [DONE]\n\n"))[-1]
    assert last["type"] == f"response.{last['response']['status']}"
    found: dict[str, Any] = last["response"]
    return found


async def over_a_socket(server: Stopped, body: dict[str, Any]) -> dict[str, Any]:
    async with server.pair.one.session.ws_connect(f"{server.url}/v1/responses") as socket:
        await socket.send_json({"type": "response.create", **body})
        while True:
            message = await socket.receive(PATIENCE)
            assert message.type is aiohttp.WSMsgType.TEXT
            event = json.loads(message.data)
            if event["type"] in ("response.completed", "response.failed", "error"):
                found: dict[str, Any] = event.get("response", event)
                return found


async def in_background(server: Stopped, body: dict[str, Any]) -> dict[str, Any]:
    made = await whole(server, {**body, "background": True})
    found: dict[str, Any] = await wait_for_end(server.pair.two, made["id"])
    return found


async def streamed_in_background(server: Stopped, body: dict[str, Any]) -> dict[str, Any]:
    return await streamed(server, {**body, "background": True})


ENTERED = "SELECT count(*) FROM codex_proxy.conversation_turns JOIN codex_proxy.nodes ON node = nodes.id"
WAYS: dict[str, tuple[Ask, dict[str, Any]]] = {
    "whole": (whole, {}),
    "whole, not stored": (whole, {"store": False}),
    "streamed": (streamed, {}),
    "streamed, not stored": (streamed, {"store": False}),
    "over a socket": (over_a_socket, {}),
    "over a socket, not stored": (over_a_socket, {"store": False}),
    "in the background": (in_background, {}),
    "in the background, streamed": (streamed_in_background, {}),
}


@asynccontextmanager
async def lost_turn(server: Stopped, ask: Ask, **fields: Any) -> AsyncIterator[tuple[str, asyncio.Task[Any]]]:
    """A conversation, in which the third server is stopped in its turn, and the second has made the next turn."""
    pair = server.pair
    conversation = (await pair.at_one.conversations.create()).id
    body = {"model": "codex-5", "input": HELD_PROMPT, "conversation": conversation, **fields}
    asking = asyncio.create_task(ask(server, body))
    await server.when(ENTERED, ["conversation_turns"])  # a background response is still its own
    taken = await create(pair.two, prompt_for("Second."), conversation=conversation)
    assert taken.status == 200, taken.text
    server.go_on()
    yield conversation, asking
    assert texts(await items_of(pair.two, conversation)) == [prompt_for("Second."), "Second."]


def texts(items: list[dict[str, Any]]) -> list[str]:
    return [item["content"][0]["text"] for item in items]


@pytest.mark.parametrize("way", WAYS)
async def test_the_turn_behind_a_lost_lease_fails_and_stores_nothing(stopped: Stopped, way: str) -> None:
    ask, fields = WAYS[way]
    async with lost_turn(stopped, ask, **fields) as (conversation, asking):
        answer = await asking
        assert answer.get("status", "failed") == "failed"
        assert "another one has continued the conversation" in answer["error"]["message"]
        assert answer["error"]["code"] in ("server_error", "service_unavailable")
    if ask is whole and not fields:
        again = await create(stopped.pair.one, "[[fake:echo]]", conversation=conversation)
        assert "Second." in again.text
        assert "one two three" not in again.text


async def test_the_events_and_the_end_behind_a_lost_lease_are_not_stored(stopped: Stopped) -> None:
    pair = stopped.pair
    body = {"model": "codex-5", "input": HELD_PROMPT, "background": True, "stream": True}
    async with pair.one.session.post(f"{stopped.url}/v1/responses", json=body) as reply:
        begun = b""
        while b"output_text.delta" not in begun:
            begun += await reply.content.readany()
        id = blocks_of(begun.decode().rpartition("\n\n")[0])[0]["response"]["id"]
        await stopped.when("SELECT count(*) FROM codex_proxy.frames")
        ended = await wait_for_end(pair.two, id)
        before = await stopped.connection.fetch("SELECT number, data FROM codex_proxy.frames ORDER BY number")
        stopped.go_on()
        rest = (await reply.read()).decode()
    assert ended["status"] == "failed"
    assert "response.completed" not in rest
    assert (
        await stopped.connection.fetch("SELECT number, data FROM codex_proxy.frames ORDER BY number")
        == before
    )
    assert await wait_for_end(pair.one, id) == ended


async def test_a_response_is_not_marked_as_running_behind_a_lost_lease(stopped: Stopped) -> None:
    pair = stopped.pair
    body = {"model": "codex-5", "input": HELD_PROMPT, "background": True}
    async with pair.one.session.post(f"{stopped.url}/v1/responses", json=body) as reply:
        id = (await reply.json())["id"]
    await stopped.when("SELECT count(*) FROM codex_proxy.responses")
    ended = await wait_for_end(pair.two, id)
    stopped.go_on()
    await stopped_is_idle(stopped)
    assert await wait_for_end(pair.one, id) == ended


async def stopped_is_idle(server: Stopped) -> None:
    async def idle() -> bool:
        async with server.pair.one.session.get(f"{server.url}/healthz") as reply:
            return not (await reply.json())["turns"]["running"]

    await poll(idle)


async def test_an_attempt_behind_a_lost_claim_changes_nothing(pair: Pair, postgres_url: str) -> None:
    asked, answer = asyncio.Event(), asyncio.Event()

    async def refuse_late(request: web.Request) -> web.Response:
        asked.set()
        await answer.wait()
        return web.Response(status=503)

    application = web.Application()
    application.router.add_post("/hook", refuse_late)
    async with (
        serve_application(application) as port,
        third_server(
            pair,
            postgres_url,
            PROXY_WEBHOOKS_URLS=f"http://127.0.0.1:{port}/hook",
            PROXY_WEBHOOKS_SECRET=SECRET,
        ) as (url, process),
    ):
        body = {"model": "codex-5", "input": prompt_for("Hello."), "background": True}
        await pair.one.session.post(f"{url}/v1/responses", json=body)
        await asked.wait()
        process.send_signal(signal.SIGSTOP)
        connection = await asyncpg.connect(postgres_url)
        await connection.execute("UPDATE codex_proxy.webhooks SET due = '-infinity'")
        (claimed,) = await store_of(pair.two).claim_webhooks(1)
        before = await connection.fetch("SELECT * FROM codex_proxy.webhooks")
        process.send_signal(signal.SIGCONT)
        answer.set()
        await poll(lambda: connection.fetchval(TRIED))
        assert await connection.fetch("SELECT * FROM codex_proxy.webhooks") == before
        assert claimed.tries == 0
        await connection.close()


TRIED = "SELECT count(*) FROM pg_stat_activity WHERE state = 'idle' AND query LIKE '%webhooks SET tries%'"
"""How many servers have written that an attempt has failed."""
