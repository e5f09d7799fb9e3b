"""Turns that wait for a client: they cost no place, have a limit of their own, and are not lost at their ends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import aiohttp
import psutil
import pytest

from codex_proxy.parts.sessions import service
from codex_proxy.parts.sessions.service import SESSIONS
from tests.http.serving import Proxy, fake_proxy, user
from tests.parts.sessions.driving import (
    CANCEL,
    TURN_ENDS,
    AgentsClient,
    message,
    result,
    session_body,
    text_of,
)
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.test_steering import claude_code
from tests.waiting import poll


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, max_running_turns=1) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> AgentsClient:
    return AgentsClient(proxy)


async def test_waiting_sessions_take_no_place_of_other_requests(client: AgentsClient) -> None:
    async with AsyncExitStack() as stack:
        waiting = []
        for _ in range(16):
            reader = await stack.enter_async_context(client.creation("[[fake:tool_call]]"))
            event = await reader.until("agent.session.requires_action")
            waiting.append((reader, event["session"]))
        assert (await client.proxy.ask(user())).status == 200
        for _, session in waiting:
            await client.send(session["id"], *map(result, session["required_actions"]))
        for reader, _ in waiting:
            kinds = [event["type"] for event in await reader.rest()]
            assert kinds[-2:] == ["agent.session.turn.completed", "agent.session.idle"]


async def test_sessions_that_wait_for_their_client_have_a_limit(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_WAITING", 1)
    async with client.creation("[[fake:tool_call]]") as reader:
        session = (await reader.until("agent.session.requires_action"))["session"]
        answer = await client.ask("POST", "/sessions", session_body("Hello."))
        assert (answer.status, answer.error["type"]) == (429, "rate_limit_error")
        assert "cancel some" in answer.error["message"]
        await client.send(session["id"], *map(result, session["required_actions"]))
        await reader.rest()
    await client.idle_session()


async def test_more_sessions_than_places_take_their_turns(client: AgentsClient) -> None:
    sessions = [await client.new_session("[[fake:text]]") for _ in range(6)]
    for session in sessions:
        async with client.following(session["id"]) as reader:
            if (await client.get(f"/sessions/{session['id']}"))["status"] != "idle":
                await reader.until("agent.session.idle")
        (turn,) = await client.all(f"/sessions/{session['id']}/turns")
        assert turn["status"] == "completed"


@pytest.mark.exhaustive
async def test_with_200_sessions_idle_and_50_at_work_each_of_these_ends_and_others_are_served(
    proxy: Proxy, tmp_path: Path
) -> None:
    """The idle ones are read: their streams take no place of turns, and they have no process."""
    children = psutil.Process().children
    unlimited = aiohttp.TCPConnector(limit=0)
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=unlimited))
        client = AgentsClient(Proxy(proxy.server, session, proxy.url))
        idle = [(await client.post("/sessions", hosted(tmp_path)))["id"] for _ in range(200)]
        readers = [await stack.enter_async_context(client.following(id)) for id in idle]
        assert len(children()) <= 1, "the process that waits for the next turn of any"
        working = [(await client.new_session("[[fake:text]]"))["id"] for _ in range(50)]
        assert (await client.proxy.ask(user())).status == 200

        async def all_rest() -> bool:
            found = [await client.get(f"/sessions/{id}") for id in working]
            return all(session["status"] == "idle" for session in found)

        await poll(all_rest)
        for id in working:
            (turn,) = await client.all(f"/sessions/{id}/turns")
            assert turn["status"] == "completed"
        for id, reader in zip(idle[::40], readers[::40], strict=True):
            await client.send(id, message("Hello."))
            await reader.until("agent.session.idle")
        assert not any(reader.events for reader in readers[1:40])


async def test_a_turn_that_waits_too_long_fails_with_a_reason(
    client: AgentsClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert client.proxy.server.app is not None
    monkeypatch.setattr(client.proxy.server.app[SESSIONS].settings, "action_timeout", 0.01)
    async with client.creation("[[fake:tool_call]]") as reader:
        waits = await reader.until("agent.session.requires_action")
        told = await reader.rest()
    assert [event["type"] for event in told] == [
        "agent.session.turn.item.done",
        "agent.session.turn.failed",
        "error",
        "agent.session.idle",
    ]
    assert told[1]["turn"]["error"]["code"] == "request_timeout"
    assert "0.01 seconds" in told[1]["turn"]["error"]["message"]
    (call,) = waits["session"]["required_actions"]
    assert (await client.refused(waits["session"]["id"], result(call))).status == 409
    again = await client.turn(waits["session"]["id"], message("[[fake:text]]"))
    assert again[-2]["type"] == "agent.session.turn.completed"


@pytest.mark.parametrize("rounds", [20, pytest.param(300, marks=pytest.mark.exhaustive)])
async def test_a_message_at_the_moment_of_the_end_of_a_turn_gets_its_turn(
    client: AgentsClient, rounds: int
) -> None:
    """Each message is sent at another event near the end of the turn before."""
    id = await client.idle_session()
    moments = ("turn.output_text.done", "turn.item.done", "turn.completed", "idle")
    async with client.following(id) as reader:
        await client.send(id, message("Message 0."))
        for number in range(1, rounds):
            await reader.until(f"agent.session.{moments[number % 4]}")
            await client.send(id, message(f"Message {number}."))
        ends = sum(event["type"] in TURN_ENDS for event in reader.events)
        while ends < rounds:
            await reader.until(*TURN_ENDS)
            ends += 1
        await reader.until("agent.session.idle")
    items = await client.all(f"/sessions/{id}/items")
    said = [text_of(item) for item in items if item["role"] == "user"]
    assert said == ["Hello.", *(f"Message {number}." for number in range(rounds))]
    assert (await client.get(f"/sessions/{id}"))["status"] == "idle"


async def test_a_cancel_at_the_moment_of_the_end_of_a_turn_leaves_the_next_one_alone(
    client: AgentsClient,
) -> None:
    id = await client.idle_session()
    for moment in ("turn.output_text.done", "turn.item.done", "turn.completed", "idle") * 3:
        async with client.following(id) as reader:
            await client.send(id, message("[[fake:text]]"))
            await reader.until(f"agent.session.{moment}")
            await client.send(id, CANCEL)
            if moment != "idle":
                await reader.until("agent.session.idle")
            await client.send(id, message("[[fake:text]]"))
            ended = await reader.until(*TURN_ENDS)
            assert ended["type"] == "agent.session.turn.completed"
            await reader.until("agent.session.idle")


async def test_a_late_result_of_a_call_whose_id_came_again_is_a_conflict(tmp_path: Path) -> None:
    """The fake of Claude Code counts its calls anew in each process."""
    async with claude_code(tmp_path, {}) as proxy:
        client = AgentsClient(proxy)
        async with client.creation(
            "[[fake:tool_call]]", environment=hosted(tmp_path)["environment"]
        ) as reader:
            first = (await reader.until("agent.session.requires_action"))["session"]
            await client.send(first["id"], CANCEL)
            await reader.rest()
        async with client.following(first["id"]) as reader:
            await client.send(first["id"], message("[[fake:tool_call]]"))
            second = (await reader.until("agent.session.requires_action"))["session"]
            [late], [call] = first["required_actions"], second["required_actions"]
            assert late["call_id"] == call["call_id"]
            assert (await client.refused(first["id"], result(late))).status == 409
            assert (await client.refused(first["id"], result({**late, "turn_id": "turn_9"}))).status == 400
            await client.send(first["id"], result(call))
            await reader.until("agent.session.idle")
