"""Creations of sessions whose answer was lost: the same request with the same `Idempotency-Key` makes no second one."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts.sessions.creations import KEPT_SECONDS
from codex_proxy.parts.sessions.records import SESSION
from codex_proxy.parts.sessions.service import SESSIONS, Sessions
from codex_proxy.parts.sessions.stream import SessionReaders
from tests.http.serving import Answer, fake_proxy
from tests.parts.sessions.driving import AGENT, AgentsClient

HELLO = {"agent": AGENT, "environment": {"type": "none"}, "input": "Hello."}


async def create(client: AgentsClient, path: str, body: Any, key: str = "one", **more: str) -> Answer:
    return await client.ask("POST", path, body, headers={"Idempotency-Key": key, **more})


async def count(client: AgentsClient) -> int:
    return len(await client.all("/sessions"))


def events_in(answer: Answer) -> list[Any]:
    assert answer.status == 201
    return [
        json.loads(line.removeprefix("data:"))
        for line in answer.text.splitlines()
        if line.startswith("data:")
    ]


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AgentsClient]:
    async with fake_proxy(tmp_path) as proxy:
        yield AgentsClient(proxy)


async def test_the_same_request_again_gets_the_same_session(client: AgentsClient) -> None:
    first, again = [await create(client, "/sessions", HELLO) for _ in range(2)]
    assert (first.status, again.status) == (201, 201)
    assert first.body["id"] == again.body["id"]
    assert (await create(client, "/sessions", HELLO, "two")).body["id"] != first.body["id"]
    assert await count(client) == 2
    assert len(await client.all(f"/sessions/{first.body['id']}/turns")) == 1


async def test_the_same_key_with_another_request_is_refused(client: AgentsClient) -> None:
    first = await create(client, "/sessions", HELLO)
    fork = f"/sessions/{first.body['id']}/fork"
    for path, body, more in (
        ("/sessions", HELLO | {"input": "Bye."}, {}),
        ("/sessions", HELLO, {"X-Codex-Sandbox": "read-only"}),
        (fork, HELLO, {}),
    ):
        refused = await create(client, path, {} if path == fork else body, **more)
        assert (refused.status, "Idempotency-Key" in refused.text) == (409, True)
    assert await count(client) == 1


async def test_requests_at_the_same_time_make_one_session(client: AgentsClient) -> None:
    made = await asyncio.gather(*(create(client, "/sessions", HELLO) for _ in range(5)))
    assert len({answer.body["id"] for answer in made}) == 1
    assert await count(client) == 1


async def test_a_stream_that_is_begun_again_tells_how_the_session_is(client: AgentsClient) -> None:
    body = HELLO | {"stream": True}
    first, again = [events_in(await create(client, "/sessions", body)) for _ in range(2)]
    assert first[-1]["type"] == "agent.session.idle"
    assert [event["type"] for event in again] == ["agent.session.idle"]
    assert again[0]["session"]["id"] == first[-1]["session"]["id"]


async def test_a_stream_that_cannot_be_begun_again_leaves_no_reader(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = HELLO | {"stream": True}
    id = events_in(await create(client, "/sessions", body))[-1]["session"]["id"]
    follow, left = Sessions.follow, list[SessionReaders | None]()

    async def followed(self: Sessions, owner: str, *given: Any) -> Any:
        reader = await follow(self, owner, *given)
        left.append(self.streams.readers(owner, id))
        await self.store.delete(owner, SESSION, id)
        return reader

    monkeypatch.setattr(Sessions, "follow", followed)
    assert (await create(client, "/sessions", body)).status == 404
    assert client.proxy.server.app is not None
    assert left[0] is not None
    assert client.proxy.server.app[SESSIONS].streams.readers("local", id) is None


async def test_a_fork_and_the_session_of_a_response_are_made_once(client: AgentsClient) -> None:
    id = await client.idle_session("Hello.")
    fork = [(await create(client, f"/sessions/{id}/fork", {})).body["id"] for _ in range(2)]
    assert fork[0] == fork[1] != id
    response = await client.proxy.send("POST", "/v1/responses", {"model": "codex-5", "input": "Hello."})
    path = f"/v1/responses/{response.body['id']}/session"
    headers = {"Idempotency-Key": "two"}
    made = [(await client.proxy.send("POST", path, {}, headers=headers)).body["id"] for _ in range(2)]
    assert made[0] == made[1]
    assert await count(client) == 3


async def test_a_creation_is_known_after_a_restart_and_forgotten_with_its_session(tmp_path: Path) -> None:
    store = str(tmp_path / "store.db")
    async with fake_proxy(tmp_path, store=store) as proxy:
        first = await create(AgentsClient(proxy), "/sessions", HELLO)
    async with fake_proxy(tmp_path, store=store) as proxy:
        client, id = AgentsClient(proxy), first.body["id"]
        assert (await create(client, "/sessions", HELLO)).body["id"] == id
        await client.delete(f"/sessions/{id}")
        assert (await create(client, "/sessions", HELLO)).body["id"] != id


async def test_a_key_is_free_again_after_a_day(client: AgentsClient, monkeypatch: pytest.MonkeyPatch) -> None:
    first = await create(client, "/sessions", HELLO)
    monkeypatch.setattr("codex_proxy.parts.sessions.creations.KEPT_SECONDS", 0)
    later = await create(client, "/sessions", HELLO | {"input": "Bye."})
    assert (later.status, later.body["id"] != first.body["id"]) == (201, True)
    monkeypatch.setattr("codex_proxy.parts.sessions.creations.KEPT_SECONDS", KEPT_SECONDS)
    assert (await create(client, "/sessions", HELLO | {"input": "Bye."})).body["id"] == later.body["id"]


async def test_a_request_that_is_refused_does_not_use_its_key(client: AgentsClient) -> None:
    refused = await create(client, "/sessions", HELLO | {"agent": {"model": "nothing"}})
    assert refused.status == 404
    assert (await create(client, "/sessions", HELLO)).status == 201


@pytest.mark.parametrize("key", ["", "x" * 257])
async def test_a_key_that_cannot_be_kept_is_refused(client: AgentsClient, key: str) -> None:
    refused = await create(client, "/sessions", HELLO, key)
    assert (refused.status, refused.error["param"]) == (400, "Idempotency-Key")
