"""What is kept of a session is enough for the events of Anthropic's Managed Agents API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from anthropic.types.beta.sessions import BetaManagedAgentsSessionEvent

from codex_proxy.core.keys import NO_KEY_OWNER
from codex_proxy.parts.sessions.records import TURN
from codex_proxy.parts.sessions.service import SESSIONS
from codex_proxy.store.values import PageRequest
from tests.http.serving import Proxy, fake_proxy
from tests.parts.sessions.anthropic_events import anthropic_events
from tests.parts.sessions.driving import CANCEL, AgentsClient, message, result, text_of
from tests.parts.sessions.sdk_values import differences
from tests.parts.sessions.test_scenarios import SCENARIOS
from tests.parts.sessions.test_steering import Given, app_server, serving, until_work
from tests.pictures import PIXEL


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    return Given(monkeypatch)


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path) as proxy:
        yield proxy


async def rendered(proxy: Proxy, id: str) -> list[dict[str, Any]]:
    """The events of a session, from the store alone."""
    store = proxy.app[SESSIONS].store
    turns = await store.page(NO_KEY_OWNER, TURN, PageRequest(100, "asc", None), parent=id)
    events = anthropic_events(turns.items, await store.all_entries(NO_KEY_OWNER, id))
    for event in events:
        found = differences(event, BetaManagedAgentsSessionEvent)
        assert not found, (found, event)
    check_order(events)
    return events


def check_order(events: Iterable[dict[str, Any]]) -> None:
    """Ids do not repeat; each call has at most one result, each result a call before it; who waits names what for."""
    seen: set[str] = set()
    calls: dict[str, bool] = {}
    runs = False
    for event in events:
        assert event["id"] not in seen
        seen.add(event["id"])
        kind = event["type"]
        if kind.endswith("tool_use"):
            assert runs
            calls[event["id"]] = False
        elif kind.endswith("tool_result"):
            (use,) = (value for name, value in event.items() if name.endswith("tool_use_id"))
            assert calls[use] is False
            calls[use] = True
        elif kind == "session.status_running":
            assert not runs
            runs = True
        elif kind == "session.status_idle":
            runs = False
            if event["stop_reason"]["type"] == "requires_action":
                assert event["stop_reason"]["event_ids"]
                assert not any(calls[each] for each in event["stop_reason"]["event_ids"])
    assert not runs


def kinds_of(events: Iterable[dict[str, Any]]) -> list[str]:
    return [event["type"] for event in events]


@pytest.mark.sampled(every=8, first=3)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_each_scenario_can_be_told_as_events_of_the_other_api(proxy: Proxy, scenario: str) -> None:
    client = AgentsClient(proxy)
    id = await client.idle_session(f"[[fake:{scenario}]]")
    events = await rendered(proxy, id)
    items = await client.all(f"/sessions/{id}/items")
    assert events[0]["type"] == "user.message"
    assert events[-1]["type"] == "session.status_idle"

    told = [event["content"][0]["text"] for event in events if event["type"] == "agent.message"]
    messages = [item for item in items if item["type"] == "message" and item["role"] == "assistant"]
    assert told == [text_of(item) for item in messages if item["content"]]
    for theirs, ours in (
        ("agent.custom_tool_use", {"function_call"}),
        ("user.custom_tool_result", {"function_call_output"}),
        ("agent.tool_use", {"command_execution", "web_search_call"}),
        ("agent.tool_result", {"command_execution", "web_search_call"}),
        ("agent.thinking", {"reasoning"}),
    ):
        assert kinds_of(events).count(theirs) == sum(item["type"] in ours for item in items)
    (turn,) = await client.all(f"/sessions/{id}/turns")
    assert ("session.error" in kinds_of(events)) is (turn["status"] == "failed")

    await client.turn(id, message("[[fake:text]]"))
    assert (await rendered(proxy, id))[: len(events)] == events


async def test_the_log_only_grows_while_calls_are_answered(proxy: Proxy) -> None:
    client = AgentsClient(proxy)
    logs = []
    async with client.creation("[[fake:tool_calls]]") as reader:
        event = await reader.until("agent.session.requires_action")
        id, (one, two) = event["session"]["id"], event["session"]["required_actions"]
        logs.append(await rendered(proxy, id))
        await client.send(id, result(two, "rainy"))
        logs.append(await rendered(proxy, id))
        await client.send(id, result(one))
        await reader.rest()
    logs.append(await rendered(proxy, id))
    for before, after in pairwise(logs):
        assert after[: len(before)] == before
    assert kinds_of(logs[-1]) == [
        "user.message",
        "session.status_running",
        "agent.custom_tool_use",
        "agent.custom_tool_use",
        "session.status_idle",
        "user.custom_tool_result",
        "session.status_idle",
        "user.custom_tool_result",
        "session.status_running",
        "agent.message",
        "session.status_idle",
    ]
    uses = [event["id"] for event in logs[-1][2:4]]
    assert logs[-1][4]["stop_reason"]["event_ids"] == uses
    assert logs[-1][5]["custom_tool_use_id"] == uses[1]
    assert logs[-1][6]["stop_reason"]["event_ids"] == uses[:1]


async def test_a_cancelled_turn_is_an_interrupt(proxy: Proxy) -> None:
    client = AgentsClient(proxy)
    async with client.creation("[[fake:tool_call]]") as reader:
        event = await reader.until("agent.session.requires_action")
        await client.send(event["session"]["id"], CANCEL)
        await reader.rest()
    events = await rendered(proxy, event["session"]["id"])
    assert kinds_of(events)[-3:] == ["session.status_idle", "user.interrupt", "session.status_idle"]
    assert events[-1]["stop_reason"] == {"type": "end_turn"}


async def test_an_image_is_a_block_of_its_data(proxy: Proxy) -> None:
    client = AgentsClient(proxy)
    content = [{"type": "input_text", "text": "See."}, {"type": "input_image", "image_url": PIXEL}]
    session = await client.new_session(input=[{"role": "user", "content": content}])
    async with client.following(session["id"]) as reader:
        if (await client.get(f"/sessions/{session['id']}"))["status"] != "idle":
            await reader.until("agent.session.idle")
    first = (await rendered(proxy, session["id"]))[0]
    assert [block["type"] for block in first["content"]] == ["text", "image"]
    assert first["content"][1]["source"]["media_type"] == "image/png"


async def test_a_message_that_steered_a_turn_is_told_where_the_agent_took_it(
    tmp_path: Path, given: Given
) -> None:
    async with serving(app_server, tmp_path) as steered:
        async with steered.creation("[[fake:work hold=1]]") as reader:
            id = await until_work(reader)
            await steered.client.send(id, message("[[fake:text say=Yes.]]"))
            await given.until(1)
            steered.go()
            await reader.rest()
        assert kinds_of(await rendered(steered.proxy, id)) == [
            *("user.message", "session.status_running", "agent.tool_use", "agent.tool_result"),
            *("user.message", "agent.message", "session.status_idle"),
        ]
