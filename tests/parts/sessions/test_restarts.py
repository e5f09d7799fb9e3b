"""What is left of sessions where a server stops, dies, or cannot reach its store: nothing that was accepted is lost."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

from codex_proxy.app.server import make_server
from codex_proxy.app.store_lifecycle import open_store
from codex_proxy.app.system import SystemClock
from codex_proxy.parts.sessions.records import SESSION
from codex_proxy.store.values import Record
from tests.http.serving import ENVIRONMENT, Proxy, fake_proxy, settings_of
from tests.parts.sessions.driving import CANCEL, AgentsClient, message, result, text_of
from tests.waiting import poll


@asynccontextmanager
async def served(folder: Path, **settings: Any) -> AsyncIterator[AgentsClient]:
    release = {"STREAM_RELEASE_FILE": str(folder / "go")}
    async with fake_proxy(folder, release, **settings) as proxy:
        yield AgentsClient(proxy)


@asynccontextmanager
async def served_after_kill(folder: Path, to: Path) -> AsyncIterator[AgentsClient]:
    """A server on the files of another one as they are now, as if that were killed in this moment."""
    shutil.copytree(folder / "state", to / "state", ignore=shutil.ignore_patterns("*.lock", "*.sock"))
    async with served(to) as client:
        yield client


async def all_of(client: AgentsClient, id: str) -> tuple[Any, ...]:
    return (
        await client.get(f"/sessions/{id}"),
        await client.all(f"/sessions/{id}/items"),
        await client.all(f"/sessions/{id}/turns"),
    )


async def until_idle(client: AgentsClient, id: str) -> None:
    async def idle() -> bool:
        return (await client.get(f"/sessions/{id}"))["status"] == "idle"  # type: ignore[no-any-return]

    await poll(idle)


async def test_what_is_read_after_a_restart_is_what_was_read_before(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        id = await client.idle_session("[[fake:tool_calls]]")
        await client.turn(id, message("[[fake:course]]"))
        agent = await client.post("", {"model": "codex-5", "name": "n"})
        before = await all_of(client, id)
    async with served(tmp_path) as client:
        assert await all_of(client, id) == before
        assert await client.get(f"/{agent['id']}") == agent
        again = await client.turn(id, message("[[fake:echo]]"))
        assert again[-2]["type"] == "agent.session.turn.completed"
        assert "sunny" in text_of(again[-3]["item"])


async def test_a_session_that_waits_takes_its_result_after_a_restart(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        async with client.creation("[[fake:tool_calls say='{outputs}']]") as reader:
            event = await reader.until("agent.session.requires_action")
            id, (one, two) = event["session"]["id"], event["session"]["required_actions"]
            await client.send(id, result(one, "rainy"))
        before = await all_of(client, id)
    async with served(tmp_path) as client:
        assert await all_of(client, id) == before
        async with client.following(id) as reader:
            await client.send(id, result(one, "rainy"))
            await client.send(id, result(two, "windy"))
            await reader.until("agent.session.turn.completed")
            await reader.until("agent.session.idle")
        items = await client.all(f"/sessions/{id}/items")
        assert "rainy" in text_of(items[-1])
        assert "windy" in text_of(items[-1])
        assert [item["id"] for item in items[: len(before[1])]] == [item["id"] for item in before[1]]
        assert len({item["id"] for item in items}) == len(items)


async def test_a_session_that_waits_can_be_cancelled_after_a_restart(tmp_path: Path) -> None:
    async with served(tmp_path) as client, client.creation("[[fake:tool_call]]") as reader:
        event = await reader.until("agent.session.requires_action")
        id = event["session"]["id"]
    async with served(tmp_path) as client:
        told = await client.turn(id, CANCEL)
        assert told[-2]["type"] == "agent.session.turn.cancelled"


async def test_a_turn_at_work_fails_with_a_reason_where_its_server_is_killed(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    async with served(tmp_path / "one") as client, client.creation("[[fake:text hold=1]]") as reader:
        created = await reader.next()
        assert created is not None
        id = created["session"]["id"]
        await reader.until("agent.session.turn.output_text.delta")
        await client.send(id, message("[[fake:text say=Next.]]"))
        async with served_after_kill(tmp_path / "one", tmp_path / "two") as after:
            await until_idle(after, id)
            failed, completed = await after.all(f"/sessions/{id}/turns")
            assert (failed["status"], failed["error"]["code"]) == ("failed", "internal_error")
            assert "restarted" in failed["error"]["message"]
            assert failed["completed_at"] is not None
            assert completed["status"] == "completed"
            assert text_of((await after.all(f"/sessions/{id}/items"))[-1]) == "Next."


async def test_a_result_that_was_accepted_is_not_lost_where_the_server_is_killed(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    async with served(tmp_path / "one") as client, client.creation("[[fake:tool_call]]") as reader:
        event = await reader.until("agent.session.requires_action")
        id, (call,) = event["session"]["id"], event["session"]["required_actions"]
        await client.send(id, result(call, "rainy"))
        async with served_after_kill(tmp_path / "one", tmp_path / "two") as after:
            await until_idle(after, id)
            items = await after.all(f"/sessions/{id}/items")
            assert items[-1]["output"] == "rainy"
            told = await after.turn(id, message("[[fake:echo]]"))
            assert "rainy" in text_of(told[-3]["item"])


async def test_a_message_that_was_accepted_begins_when_the_server_is_there_again(tmp_path: Path) -> None:
    async with served(tmp_path) as client, client.creation("[[fake:tool_call]]") as reader:
        event = await reader.until("agent.session.requires_action")
        id, (call,) = event["session"]["id"], event["session"]["required_actions"]
        await client.send(id, message("[[fake:text say=One.]]"))
        await client.send(id, message("[[fake:text say=Two.]]"))
    async with served(tmp_path) as client:
        async with client.following(id) as reader:
            await client.send(id, result(call))
            await reader.until("agent.session.idle")
        texts = [
            text_of(item) for item in await client.all(f"/sessions/{id}/items") if item["type"] == "message"
        ]
        assert texts[-3::2] == ["One.", "Two."]


async def test_a_stop_ends_streams_and_turns_cleanly(tmp_path: Path) -> None:
    server = await make_server(settings_of(tmp_path), ENVIRONMENT)
    await server.start()
    async with aiohttp.ClientSession() as session:
        client = AgentsClient(Proxy(server, session, f"http://127.0.0.1:{server.port}"))
        idle = await client.idle_session()
        async with client.following(idle) as quiet, client.creation("[[fake:text misbehave=hang]]") as reader:
            created = await reader.next()
            assert created is not None
            id = created["session"]["id"]
            await reader.until("agent.session.turn.in_progress")
            await client.send(id, message("[[fake:text say=Later.]]"))
            await server.stop()
            assert await quiet.rest() == []
            told = [event["type"] for event in await reader.rest()]
    assert told[-2:] in (
        ["agent.session.turn.cancelled", "agent.session.idle"],
        ["error", "agent.session.idle"],
    )
    async with served(tmp_path) as client:
        await until_idle(client, id)
        texts = [text_of(item) for item in await client.all(f"/sessions/{id}/items")]
        assert texts[-1] == "Later."


async def test_a_turn_that_ends_within_the_time_to_drain_is_completed(tmp_path: Path) -> None:
    async with served(tmp_path, drain_ms=60_000) as client, client.creation("[[fake:text hold=1]]") as reader:
        created = await reader.next()
        assert created is not None
        await reader.until("agent.session.turn.output_text.delta")
        client.proxy.server.runs.begin_drain()
        (tmp_path / "go").touch()
        told = [event["type"] for event in await reader.rest()]
        assert told[-2:] == ["agent.session.turn.completed", "agent.session.idle"]


async def test_a_stream_that_is_opened_while_the_server_stops_ends_at_once(tmp_path: Path) -> None:
    async with served(tmp_path) as client:
        id = await client.idle_session()
        client.proxy.server.runs.begin_drain()
        url = f"/sessions/{id}/events"
        answer = await client.ask("GET", url)
        assert answer.status in (200, 503)
        assert (await client.refused(id, message("x"))).status == 503


async def test_a_session_that_cannot_be_read_keeps_the_server_and_no_other_session_from_going_on(
    tmp_path: Path,
) -> None:
    async with served(tmp_path) as client, client.creation("[[fake:tool_call]]") as reader:
        event = await reader.until("agent.session.requires_action")
        id, (call,) = event["session"]["id"], event["session"]["required_actions"]
    store = await open_store(settings_of(tmp_path), SystemClock())
    unreadable = Record(kind=SESSION.name, id="sess_x", json=b"{}", created=1.0, busy=True)
    await store.write_records("", [unreadable])
    await store.close()
    async with served(tmp_path) as client:
        await client.send(id, result(call, "rainy"))
        await until_idle(client, id)
