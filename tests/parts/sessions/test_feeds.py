"""The stream of all sessions of a key: every event of each, and the summaries of those that have changed."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.parts.sessions import feeds, stream
from codex_proxy.parts.sessions.service import SESSIONS
from tests.access.keyed import key_of, write_keys
from tests.http.serving import fake_proxy
from tests.parts.sessions.approving import START_KEY, keyless_proxy
from tests.parts.sessions.driving import BETA, TURN_ENDS, AgentsClient, Frames, message
from tests.parts.sessions.test_summaries import change, summary
from tests.waiting import eventually


class Feed(Frames):
    """Reads a stream, whose types OpenAI's SDK does not know."""

    async def next(self) -> dict[str, Any] | None:
        """The next event; None at the end of the stream."""
        data = await self.next_data()
        if data is None:
            return None
        self.events.append(json.loads(data, object_pairs_hook=_object))
        return self.events[-1]

    async def until(self, *kinds: str, session: str = "") -> dict[str, Any]:
        """The next event of one of these types, of a session."""
        while (event := await self.next()) is not None:
            if event["type"] in kinds and session in ("", event.get("session_id")):
                return event
        raise AssertionError(f"the stream ended without {kinds}")

    async def summary(self, id: str, **fields: Any) -> dict[str, Any]:
        """The next summary of a session with these fields."""
        while True:
            found: dict[str, Any] = (await self.until("agent.session.summary"))["summary"]
            if found["id"] == id and fields.items() <= found.items():
                return found


def _object(fields: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(fields)
    assert len(found) == len(fields), f"a field is there twice: {fields}"
    return found


@asynccontextmanager
async def feed(client: AgentsClient, key: str = "") -> AsyncIterator[Feed]:
    headers = BETA | ({"Authorization": f"Bearer {key}"} if key else {})
    url = f"{client.proxy.url}/v1/agents/session_events"
    async with client.proxy.session.get(url, headers=headers) as reply:
        assert reply.status == 200, await reply.text()
        yield Feed(reply)


@pytest.fixture
async def client(tmp_path: Path) -> AsyncIterator[AgentsClient]:
    async with fake_proxy(tmp_path) as proxy:
        yield AgentsClient(proxy)


async def test_the_stream_begins_with_the_newest_sessions_that_are_not_archived(client: AgentsClient) -> None:
    one, two = [await client.idle_session(text) for text in ("One.", "Two.")]
    await change(client, one, archived=True)
    async with feed(client) as reader:
        first = await reader.next()
        assert first is not None
        assert (first["type"], first["data"]) == ("agent.session.summaries", [await summary(client, two)])


async def test_events_of_all_sessions_come_with_their_sessions(client: AgentsClient) -> None:
    known = await client.idle_session("One.")
    async with feed(client) as reader:
        await reader.next()
        async with client.following(known) as alone:
            await client.send(known, message("Two."))
            await alone.until("agent.session.idle")
        new = await client.idle_session("Three.")
        await reader.until("agent.session.idle", session=new)
    told = [each for each in reader.events[1:] if each["type"] != "agent.session.summary"]
    assert {each["session_id"] for each in told} == {known, new}
    of_known = [each for each in told if each["session_id"] == known]
    for mine, theirs in zip(of_known, alone.events, strict=True):
        theirs.pop("obfuscation")
        assert mine == {"session_id": known, **theirs}
    of_new = [each["type"] for each in told if each["session_id"] == new]
    assert (of_new[0], of_new[-1]) == ("agent.session.created", "agent.session.idle")


async def test_an_event_with_its_session_is_not_given_it_twice(client: AgentsClient) -> None:
    kind, id = "agent.output.command_execution_output.delta", await client.idle_session()
    async with feed(client) as reader:
        await reader.next()
        told = client.proxy.app[SESSIONS].streams.feed("local")
        assert told is not None
        told.add(id, [(kind, stream.encode_event({"type": kind, "session_id": id}, "event_1"))])
        assert (await reader.until(kind))["session_id"] == id


async def test_a_summary_comes_whenever_it_has_changed(client: AgentsClient) -> None:
    async with feed(client) as reader:
        await reader.next()
        id = await client.idle_session("Mend the roof.")
        await reader.summary(id, status="in_progress")
        ended = await reader.summary(id, status="idle")
        assert ended == await summary(client, id)
        await change(client, id, title="Roof")
        await reader.summary(id, title="Roof")
        await change(client, id, archived=True)
        await reader.summary(id, archived=True)
        await client.delete(f"/sessions/{id}")
        await reader.until("agent.session.deleted", session=id)


async def test_summaries_of_a_busy_session_are_few(client: AgentsClient) -> None:
    id = await client.idle_session()
    async with feed(client) as reader:
        await reader.next()
        for number in range(100):
            await change(client, id, title=f"Title {number}")
        await reader.summary(id, title="Title 99")
    assert len(reader.events) < 60


async def test_each_of_several_streams_has_everything(client: AgentsClient) -> None:
    async with feed(client) as one, feed(client) as other:
        for reader in (one, other):
            await reader.next()
        id = await client.idle_session()
        for reader in (one, other):
            await reader.until("agent.session.idle", session=id)
    kinds = [[each["type"] for each in reader.events] for reader in (one, other)]
    assert [each for each in kinds[0] if "summary" not in each] == [
        each for each in kinds[1] if "summary" not in each
    ]


async def test_a_client_that_does_not_read_is_told_and_holds_up_nothing(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stream, "MAX_BEHIND", 200_000)
    id = await client.idle_session()
    async with feed(client) as lazy, client.following(id) as keen:
        await client.send(id, message("[[fake:count n=40 size=400000]]"))
        await keen.until(*TURN_ENDS)
        await keen.until("agent.session.idle")
        while await lazy.next() is not None:
            pass
    assert lazy.events[-1]["error"]["code"] == "stream_interrupted"
    streams = client.proxy.app[SESSIONS].streams
    await eventually(lambda: streams.feed("local") is None)


async def test_the_stream_says_that_a_session_has_gone_on_at_another_server(client: AgentsClient) -> None:
    id = await client.idle_session()
    async with feed(client) as reader:
        await reader.next()
        async with client.proxy.app[SESSIONS].live("local", id) as live:
            live.on_lease_lost()
        assert (await reader.until("error"))["error"]["code"] == "stream_interrupted"
        assert await reader.next() is None


async def test_the_stream_says_that_a_summary_is_missing(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: object) -> None:
        raise Fault.of(FaultKind.UNAVAILABLE, "The store does not answer.")

    id = await client.idle_session()
    async with feed(client) as reader:
        await reader.next()
        monkeypatch.setattr(feeds, "summary_of", fail)
        await change(client, id, title="Roof")
        assert (await reader.until("error"))["error"]["code"] == "stream_interrupted"
        assert await reader.next() is None


async def test_a_key_hears_of_its_own_sessions_only(tmp_path: Path) -> None:
    write_keys(tmp_path, one={}, other={})
    async with fake_proxy(tmp_path) as proxy:
        mine, theirs = (AgentsClient(proxy, key_of(name)) for name in ("one", "other"))
        async with feed(mine, key_of("one")) as reader:
            await reader.next()
            theirs_id = await theirs.idle_session()
            mine_id = await mine.idle_session()
            await reader.until("agent.session.idle", session=mine_id)
            assert theirs_id not in json.dumps(reader.events)


async def test_a_summary_shows_the_rights_of_the_moment(tmp_path: Path) -> None:
    write_keys(tmp_path, one={"may_approve": False})
    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy, key_of("one"))
        id = await client.idle_session()
        async with feed(client, key_of("one")) as reader:
            await reader.next()
            keys = proxy.server.keyring.current()
            write_keys(tmp_path, one={"may_approve": True})
            await eventually(lambda: proxy.server.keyring.current() is not keys)
            await change(client, id, title="Roof")
            assert (await reader.summary(id, title="Roof"))["may_approve"]


async def test_with_the_key_of_this_start_each_summary_says_that_it_may_approve(tmp_path: Path) -> None:
    async with keyless_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy, START_KEY)
        id = await client.idle_session()
        async with feed(client, START_KEY) as reader:
            await reader.next()
            await change(client, id, title="Roof")
            assert (await reader.summary(id, title="Roof"))["may_approve"]


async def test_a_server_that_stops_ends_the_stream(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy, feed(AgentsClient(proxy)) as reader:
        await reader.next()
        proxy.app[SESSIONS].on_draining()
        assert await reader.next() is None
