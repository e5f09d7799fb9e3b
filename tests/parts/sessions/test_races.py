"""What meets in a session: a session is one object as long as somebody uses it, and none after that."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.keys import NO_KEY_OWNER
from codex_proxy.parts.sessions import service
from codex_proxy.parts.sessions.records import SessionStore
from codex_proxy.parts.sessions.running import LiveSession
from codex_proxy.parts.sessions.service import SESSIONS
from codex_proxy.parts.sessions.state import SessionState
from codex_proxy.parts.sessions.stream import CONNECTED, EventReader
from codex_proxy.parts.sessions.turn_requests import TurnRequests
from codex_proxy.responses import service as responses
from codex_proxy.store.record_leases import Following, SingleNodeRecords, WrittenRecords
from codex_proxy.store.values import Record
from tests.http.serving import Proxy, fake_proxy
from tests.parts.sessions.driving import AGENT, CANCEL, AgentsClient, message, session_body
from tests.waiting import eventually, poll


def in_memory(proxy: Proxy) -> dict[tuple[str, str], LiveSession]:
    """The sessions that the server keeps beside its store."""
    assert proxy.server.app is not None
    return proxy.server.app[SESSIONS]._live


async def test_a_message_while_a_turn_s_end_is_stored_is_known_to_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, reached = asyncio.Event(), asyncio.Event()
    write = SessionStore.write

    async def slow(self: SessionStore, owner: str, records: Sequence[Record], **more: Any) -> WrittenRecords:
        if any(record.kind == "session_turn" and b'"completed"' in record.json for record in records):
            reached.set()
            await goes_on.wait()
        return await write(self, owner, records, **more)

    monkeypatch.setattr(SessionStore, "write", slow)
    async with fake_proxy(tmp_path, {"STREAM_RELEASE_FILE": str(tmp_path / "go")}) as proxy:
        client = AgentsClient(proxy)
        id = (await client.new_session())["id"]
        await reached.wait()
        sending = asyncio.create_task(client.send(id, message("[[fake:text hold=1]]")))
        live = in_memory(proxy)["local", id]
        await eventually(lambda: live.lock._waiters)
        goes_on.set()
        await sending
        async with client.following(id) as reader:  # had failed the turn: nobody knew that it was at work
            (tmp_path / "go").touch()
            await reader.until("agent.session.turn.completed")
        statuses = [turn["status"] for turn in await client.all(f"/sessions/{id}/turns")]
        assert statuses == ["completed", "completed"]


async def test_sessions_at_rest_are_not_kept_in_memory(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        folder = {"type": "self_hosted", "workspace_directory": str(tmp_path)}
        one = await client.post("/sessions", {"environment": folder, "agent": AGENT})
        assert one["status"] == "idle"
        await client.send(one["id"], CANCEL)
        async with client.creation("[[fake:tool_call]]") as reader:
            two = (await reader.until("agent.session.requires_action"))["session"]["id"]
        await client.send(two, CANCEL)
        await client.post(f"/sessions/{two}", {"metadata": {"a": "b"}})
        await client.ask("DELETE", f"/sessions/{two}")
        await eventually(lambda: not in_memory(proxy))


async def test_changes_at_the_same_time_keep_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    goes_on, reached = asyncio.Event(), asyncio.Event()
    check = TurnRequests.check_settings

    async def slow(self: TurnRequests, *args: Any) -> Any:
        reached.set()
        await goes_on.wait()
        return await check(self, *args)

    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        id = await client.idle_session()
        monkeypatch.setattr(TurnRequests, "check_settings", slow)
        changing = asyncio.create_task(client.post(f"/sessions/{id}", {"agent": {"tools": []}}))
        await reached.wait()
        await client.post(f"/sessions/{id}", {"metadata": {"a": "b"}})
        goes_on.set()
        changed = await changing
        assert (changed["metadata"], changed["agent"]["tools"]) == ({"a": "b"}, [])
        assert await client.get(f"/sessions/{id}") == changed


async def test_requests_that_come_at_once_for_a_stored_session_share_it(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        id = (await client.post("/sessions", session_body("Hello.")))["id"]
        await eventually(lambda: not in_memory(proxy))
        await asyncio.gather(*(client.send(id, message(f"{n}")) for n in range(10)))

        async def is_idle() -> bool:
            return (await client.get(f"/sessions/{id}"))["status"] == "idle"  # type: ignore[no-any-return]

        await poll(is_idle)
        turns = await client.all(f"/sessions/{id}/turns")
        assert [turn["status"] for turn in turns] == ["completed"] * 11


async def test_a_turn_that_met_an_internal_error_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError

    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        monkeypatch.setattr(SessionState, "on_run_ended", fail)
        id = (await client.new_session())["id"]

        async def is_idle() -> bool:
            return (await client.get(f"/sessions/{id}"))["status"] == "idle"  # type: ignore[no-any-return]

        await poll(is_idle)  # had been at work until somebody sent events
        (turn,) = await client.all(f"/sessions/{id}/turns")
        assert (turn["status"], turn["error"]["code"]) == ("failed", "internal_error")


async def test_an_agent_that_is_deleted_while_it_is_changed_stays_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = SessionStore.write

    async with fake_proxy(tmp_path) as proxy:
        client = AgentsClient(proxy)
        id = (await client.post("", {"model": "codex-5"}))["id"]

        async def late(
            self: SessionStore, owner: str, records: Sequence[Record], **more: Any
        ) -> WrittenRecords:
            await client.delete(f"/{id}")
            return await write(self, owner, records, **more)

        monkeypatch.setattr(SessionStore, "write", late)
        assert (await client.ask("POST", f"/{id}", {"name": "n"})).status == 404
        assert (await client.ask("GET", f"/{id}")).status == 404


async def test_a_store_that_takes_no_writes_holds_up_neither_a_start_nor_a_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}

    async def fail(*_: object, **__: object) -> None:
        raise Fault.of(FaultKind.UNAVAILABLE, "The store cannot be written.")

    monkeypatch.setattr(responses, "CLOSE_SECONDS", 0.1)
    monkeypatch.setattr(service, "RECOVERY_SECONDS", 0.1)
    async with fake_proxy(tmp_path, release) as proxy:
        client = AgentsClient(proxy)
        async with client.creation("[[fake:text hold=1]]") as reader:
            event = await reader.until("agent.session.turn.output_text.delta")
            monkeypatch.setattr(SessionStore, "write", fail)
    async with asyncio.timeout(30), fake_proxy(tmp_path, release) as proxy:
        client = AgentsClient(proxy)
        assert (await client.ask("GET", "/sessions")).status == 200
        assert (await client.refused(event["session_id"], message("Hello."))).status == 503


async def test_a_stream_that_is_opened_beside_one_that_has_missed_events_follows_the_session_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow, begun = SingleNodeRecords.follow, list[Following]()

    async def noted(self: SingleNodeRecords, owner: str, kind: str, id: str) -> Following:
        begun.append(await follow(self, owner, kind, id))
        return begun[-1]

    monkeypatch.setattr(SingleNodeRecords, "follow", noted)
    async with fake_proxy(tmp_path) as proxy:
        assert proxy.server.app is not None
        id, sessions = await AgentsClient(proxy).idle_session("Hello."), proxy.server.app[SESSIONS]
        first = await sessions.follow(NO_KEY_OWNER, id, EventReader)
        begun[0].lose()
        second = await sessions.follow(NO_KEY_OWNER, id, EventReader)
        assert len(begun) == 2
        assert b"stream_interrupted" in first.take()
        assert second.take() == CONNECTED
        first.close()
        second.close()
