"""Readers of a session's events: all see the same, from when they begin, and none holds up a turn."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts.sessions import stream, streams
from codex_proxy.parts.sessions.service import SESSIONS
from tests.http.serving import Proxy, fake_proxy
from tests.parts.sessions.driving import BETA, CANCEL, TURN_ENDS, AgentsClient, message, session_body
from tests.waiting import eventually, poll


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    release = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    async with fake_proxy(tmp_path, release) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> AgentsClient:
    return AgentsClient(proxy)


def without_padding(events: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: value for name, value in event.items() if name != "obfuscation"} for event in events]


async def test_two_readers_see_the_same(client: AgentsClient) -> None:
    id = await client.idle_session()
    async with client.following(id) as one, client.following(id) as two:
        await client.send(id, message("[[fake:course]]"))
        await one.until("agent.session.idle")
        await two.until("agent.session.idle")
        assert without_padding(one.events) == without_padding(two.events)
        assert one.events[0]["type"] == "agent.session.turn.created"


async def test_a_follower_of_a_new_session_sees_what_its_creation_stream_has(
    client: AgentsClient, tmp_path: Path
) -> None:
    async with client.creation("[[fake:text hold=1]]") as creation:
        first = await creation.next()
        assert first is not None
        await creation.until("agent.session.turn.output_text.delta")
        async with client.following(first["session"]["id"]) as follower:
            (tmp_path / "go").touch()
            await follower.until("agent.session.idle")
            await creation.rest()
            assert without_padding(creation.events)[-len(follower.events) :] == without_padding(
                follower.events
            )


async def test_a_stream_goes_on_over_turns(client: AgentsClient) -> None:
    id = await client.idle_session()
    async with client.following(id) as reader:
        for word in ("one", "two"):
            await client.send(id, message(word))
            await reader.until("agent.session.idle")
    kinds = [event["type"] for event in reader.events]
    assert kinds.count("agent.session.turn.completed") == 2
    assert "agent.session.created" not in kinds


async def test_a_stream_has_no_terminator_and_no_names_of_events(proxy: Proxy) -> None:
    answer = await AgentsClient(proxy).ask("POST", "/sessions", session_body("Hello.", stream=True))
    assert answer.status == 201
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    assert answer.headers["x-request-id"]
    assert "[DONE]" not in answer.text
    assert not re.search(r"^(event|id):", answer.text, re.MULTILINE)


@pytest.mark.parametrize(
    ("query", "padded"), [("", True), ("?stream=true", True), ("?include_obfuscation=false", False)]
)
async def test_events_are_padded_unless_the_client_says_otherwise(
    client: AgentsClient, query: str, padded: bool
) -> None:
    id = await client.idle_session()
    async with client.following(id, query) as reader:
        await client.send(id, message("Hello."))
        await reader.until("agent.session.idle")
    assert {"obfuscation" in event for event in reader.events} == {padded}


async def test_a_creation_stream_is_padded_unless_its_options_say_otherwise(client: AgentsClient) -> None:
    events = await client.whole_stream(stream_options={"include_obfuscation": False})
    assert not any("obfuscation" in event for event in events)
    assert all(event["obfuscation"].isalnum() for event in await client.whole_stream())


async def test_a_reader_that_leaves_changes_nothing(client: AgentsClient, tmp_path: Path) -> None:
    async with client.creation("[[fake:text hold=1]]") as creation:
        first = await creation.next()
        assert first is not None
        await creation.until("agent.session.turn.output_text.delta")
    id = first["session"]["id"]
    (tmp_path / "go").touch()

    async def idle() -> bool:
        return (await client.get(f"/sessions/{id}"))["status"] == "idle"  # type: ignore[no-any-return]

    await poll(idle)
    (turn,) = await client.all(f"/sessions/{id}/turns")
    assert turn["status"] == "completed"


async def test_a_reader_that_does_not_read_is_told_so_and_the_turn_goes_on(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_BEHIND", 200_000)
    id = await client.idle_session()
    async with client.following(id) as lazy, client.following(id) as keen:
        await client.send(id, message("[[fake:count n=40 size=400000]]"))
        ended = await keen.until(*TURN_ENDS)
        assert ended["type"] == "agent.session.turn.completed"
        await keen.until("agent.session.idle")
        events = await lazy.rest()
    assert events[-1]["type"] == "error"
    assert events[-1]["error"]["code"] == "stream_interrupted"
    assert (await client.get(f"/sessions/{id}"))["status"] == "idle"


async def test_what_waits_for_all_readers_has_a_limit_and_is_given_back(client: AgentsClient) -> None:
    sessions = client.proxy.app[SESSIONS]
    sessions.streams.unread.total = 200_000
    ids = [await client.idle_session() for _ in range(2)]
    async with AsyncExitStack() as stack:
        lazy = [await stack.enter_async_context(client.following(id)) for id in ids]
        for id in ids:
            await client.send(id, message("[[fake:count n=40 size=400000]]"))
            await poll(partial(is_idle, client, id))
        ends = [(await reader.rest())[-1] for reader in lazy]
        assert {end["error"]["code"] for end in ends} == {"stream_interrupted"}
    await eventually(lambda: sessions.streams.unread.held == 0)


async def is_idle(client: AgentsClient, id: str) -> bool:
    """Whether the session's last turn has ended."""
    return bool((await client.get(f"/sessions/{id}"))["status"] == "idle")


async def test_a_long_answer_reaches_a_reader_that_reads(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_BEHIND", 200_000)
    events = await client.whole_stream("[[fake:count n=1 size=400000]]")
    assert events[-1]["type"] == "agent.session.idle"


async def test_deletion_ends_streams_without_an_event(client: AgentsClient) -> None:
    id = await client.idle_session()
    async with client.following(id) as reader:
        await client.delete(f"/sessions/{id}")
        assert await reader.rest() == []


async def test_every_snapshot_of_a_stream_is_what_a_read_finds_then(client: AgentsClient) -> None:
    id = await client.idle_session()
    async with client.following(id) as reader:
        await client.send(id, message("[[fake:tool_calls]]"))
        while True:
            event = await reader.next()
            assert event is not None
            if event["type"] == "agent.session.requires_action":
                assert await client.get(f"/sessions/{id}") == event["session"]
                turn = await client.get(
                    f"/sessions/{id}/turns/{event['session']['required_actions'][0]['turn_id']}"
                )
                assert turn["status"] == "waiting"
                await client.send(id, CANCEL)
            elif event["type"] in TURN_ENDS:
                assert await client.get(f"/sessions/{id}/turns/{event['turn_id']}") == event["turn"]
            elif event["type"] == "agent.session.turn.item.done":
                items = await client.all(f"/sessions/{id}/items")
                assert event["item"] in items
            elif event["type"] == "agent.session.idle":
                assert await client.get(f"/sessions/{id}") == event["session"]
                return


async def test_a_stream_is_attached_when_its_headers_are_sent(client: AgentsClient) -> None:
    id = await client.idle_session()
    url = f"{client.proxy.url}/v1/agents/sessions/{id}/events"
    for _ in range(5):
        async with client.proxy.session.get(url, headers=BETA) as reply:
            await client.send(id, CANCEL, message("Hello."))
            async with asyncio.timeout(30):
                while b"turn.created" not in await reply.content.readline():
                    pass
        async with client.following(id) as reader:
            if (await client.get(f"/sessions/{id}"))["status"] != "idle":
                await reader.until("agent.session.idle")


async def test_a_session_whose_stream_is_one_too_many_is_not_created(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "MAX_STREAMS", 1)
    id = await client.idle_session()
    async with client.following(id):
        answer = await client.ask("POST", "/sessions", session_body("Hello.", stream=True))
        assert answer.status == 429, answer.text
        assert (await client.ask("GET", f"/sessions/{id}/events")).status == 429
    assert len(await client.all("/sessions")) == 1
