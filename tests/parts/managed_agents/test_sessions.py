"""Sessions of the Managed Agents API: what happens in a turn, in the order that the API promises, the same in the list
and in every stream.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.http.claude import claude_proxy
from tests.http.serving import Proxy, fake_proxy
from tests.parts.managed_agents.driving import sdk
from tests.parts.managed_agents.following import (
    IDLE,
    INTERRUPT,
    RUNNING,
    STEP,
    TURN,
    ManagedClient,
    kinds,
    message,
    result,
    said,
)
from tests.parts.sessions.driving import AgentsClient
from tests.parts.sessions.test_scenarios import SCENARIOS


@pytest.mark.sampled(every=8, first=3)
@pytest.mark.parametrize("scenario", SCENARIOS)
async def test_each_scenario_is_told_alike_in_the_list_and_the_stream(
    client: ManagedClient, scenario: str
) -> None:
    id = await client.new_session()
    told = await client.turn(id, message(f"[[fake:{scenario}]]"))
    assert told == await client.events(id)
    assert kinds(told)[:2] == list(TURN)
    assert told[-1]["type"] == IDLE
    assert ("session.error" in kinds(told)) is (told[-1]["stop_reason"]["type"] == "retries_exhausted")
    again = await client.turn(id, message("[[fake:text say='I am still here.']]"))
    assert said(again) == ["I am still here."]
    assert await client.events(id) == [*told, *again]


async def test_a_turn_is_a_message_a_model_request_and_rest(client: ManagedClient) -> None:
    id = await client.new_session()
    assert (await client.session(id))["status"] == "idle"
    told = await client.turn(id, message("[[fake:text say=Hello.]]"))
    assert kinds(told) == [*TURN, *STEP, IDLE]
    assert told[-1]["stop_reason"] == {"type": "end_turn"}
    assert told[-2]["model_usage"]["output_tokens"] > 0
    session = await client.session(id)
    assert session["usage"]["output_tokens"] == told[-2]["model_usage"]["output_tokens"]


async def test_initial_events_begin_the_first_turn(client: ManagedClient) -> None:
    id = await client.new_session("[[fake:text say=One.]]", "And this.")
    async with client.stream(id) as stream:
        if (await client.session(id))["status"] != "idle":
            await client.until_rest(id, stream)
    events = await client.events(id)
    assert said(events, "user.message") == ["[[fake:text say=One.]]", "And this."]
    assert kinds(events)[:3] == ["user.message", *TURN]


async def test_the_answer_to_a_message_is_its_event(client: ManagedClient) -> None:
    id = await client.new_session()
    async with client.stream(id) as stream:
        (sent,) = await client.send(id, message("[[fake:text]]"))
        await client.until_rest(id, stream)
    assert stream.events[0] == sent


async def test_a_message_during_a_turn_begins_the_next_one_without_a_rest(client: ManagedClient) -> None:
    id = await client.new_session()
    async with client.stream(id) as stream:
        await client.send(id, message("[[fake:count n=30 delay=10]]"))
        await stream.until(RUNNING)
        (held,) = await client.send(id, message("[[fake:text say=Next.]]"))
        assert held["processed_at"] is None
        told = await client.until_rest(id, stream)
    assert kinds(told) == [*TURN, *STEP, "user.message", *STEP, IDLE]
    assert told[5] == held | {"processed_at": told[5]["processed_at"]}
    assert said(told)[-1] == "Next."


async def test_previews_are_pieces_of_the_message_that_follows(client: ManagedClient) -> None:
    id = await client.new_session()
    async with client.stream(id, "?event_deltas%5B%5D=agent.message") as stream:
        await client.send(id, message("[[fake:text say='Some words.']]"))
        await client.until_rest(id, stream)
    names = kinds(stream.frames)
    begin, end = names.index("event_start"), names.index("agent.message")
    assert names[:begin] == [*TURN, STEP[0]]
    assert set(names[begin + 1 : end]) == {"event_delta"}
    whole = stream.frames[end]
    assert stream.frames[begin]["event"] == {"type": "agent.message", "id": whole["id"]}
    deltas = [frame for frame in stream.frames if frame["type"] == "event_delta"]
    assert "".join(each["delta"]["content"]["text"] for each in deltas) == "Some words."
    assert stream.events == await client.events(id)


async def test_other_previews_are_refused(client: ManagedClient) -> None:
    id = await client.new_session()
    path = f"/sessions/{id}/events/stream?event_deltas%5B%5D=agent.tool_use"
    assert "agent.tool_use" in await client.refused(400, path, method="GET")


async def test_each_answer_that_leaves_calls_open_tells_of_the_rest(client: ManagedClient) -> None:
    id = await client.new_session()
    async with client.stream(id) as stream:
        await client.send(id, message("[[fake:tool_calls]]"))
        first = await stream.until(IDLE)
        one, two = first["stop_reason"]["event_ids"]
        assert (await client.session(id))["status"] == "idle"
        (sent,) = await client.send(id, result(two, "rainy"))
        assert (await stream.until(IDLE))["stop_reason"]["event_ids"] == [one]
        await client.send(id, result(one))
        told = await client.until_rest(id, stream)
    assert sent in told
    assert kinds(told)[:6] == [*TURN, STEP[0], *2 * ["agent.custom_tool_use"], STEP[2]]
    assert kinds(told)[6:11] == [IDLE, "user.custom_tool_result", IDLE, "user.custom_tool_result", RUNNING]
    assert [event["name"] for event in told[3:5]] == ["get_weather"] * 2


async def test_a_message_is_refused_while_a_call_is_open(client: ManagedClient) -> None:
    id = await client.new_session()
    async with client.stream(id) as stream:
        await client.send(id, message("[[fake:tool_call]]"))
        (use,) = (await stream.until(IDLE))["stop_reason"]["event_ids"]
        before = await client.events(id)
        said = await client.refused(400, f"/sessions/{id}/events", {"events": [message("Hello?")]})
        assert said == (
            f"Invalid user.message event at events[0]: waiting on responses to events [{use}]; only "
            "`user.tool_confirmation`, `user.custom_tool_result`, `user.tool_result`, or `user.interrupt` may be sent"
        )
        assert await client.events(id) == before
        await client.send(id, result(use), message("[[fake:text say=Both.]]"))
        await stream.until("agent.message")


async def test_a_batch_is_accepted_whole_or_not_at_all(client: ManagedClient) -> None:
    id = await client.new_session()
    body = {"events": [message("[[fake:text]]"), result("sevt_fc_1_1")]}
    said = await client.refused(400, f"/sessions/{id}/events", body)
    assert said == (
        '`custom_tool_use_id` "sevt_fc_1_1" does not match any `agent.custom_tool_use` event in this session'
    )
    assert await client.events(id) == []


async def test_the_second_result_of_a_call_is_refused(client: ManagedClient) -> None:
    id = await client.new_session()
    async with client.stream(id) as stream:
        await client.send(id, message("[[fake:tool_call]]"))
        (use,) = (await stream.until(IDLE))["stop_reason"]["event_ids"]
        await client.send(id, result(use))
        assert use in await client.refused(400, f"/sessions/{id}/events", {"events": [result(use)]})


async def test_an_error_of_a_tool_reaches_the_agent(client: ManagedClient) -> None:
    id = await client.new_session()
    async with client.stream(id) as stream:
        await client.send(id, message("[[fake:tool_call]]"))
        (use,) = (await stream.until(IDLE))["stop_reason"]["event_ids"]
        (sent,) = await client.send(id, result(use, "no such city", is_error=True))
        await client.until_rest(id, stream)
    assert (sent["is_error"], sent["content"][0]["text"]) == (True, "no such city")
    assert sent in await client.events(id)


async def test_an_interrupt_ends_the_turn_as_its_own_end(client: ManagedClient) -> None:
    id = await client.new_session()
    async with client.stream(id) as stream:
        await client.send(id, message("[[fake:count n=1000 delay=10]]"))
        await stream.until(STEP[0])
        (sent,) = await client.send(id, INTERRUPT)
        told = await client.until_rest(id, stream)
    assert sent in told
    assert told[-1]["stop_reason"] == {"type": "end_turn"}
    assert told == await client.events(id)


async def test_an_interrupt_of_calls_that_wait_ends_the_turn(client: ManagedClient) -> None:
    id = await client.new_session()
    async with client.stream(id) as stream:
        await client.send(id, message("[[fake:tool_call]]"))
        await stream.until(IDLE)
        await client.send(id, INTERRUPT, message("[[fake:text say=Well.]]"))
        told = await client.until_rest(id, stream)
    assert kinds(told)[-7:] == [IDLE, "user.interrupt", *TURN, *STEP, IDLE][-7:]
    assert said(told) == ["Well."]


@pytest.mark.parametrize("serving", [fake_proxy, claude_proxy])
async def test_an_answer_that_the_model_refuses_to_go_on_with_ends_the_turn_as_a_refusal(
    tmp_path: Path, serving: Any
) -> None:
    async with serving(tmp_path) as proxy:
        client = ManagedClient(proxy)
        id = await client.new_session()
        ended = (await client.turn(id, message("[[fake:content_filter]]")))[-1]
        assert ended["stop_reason"] == {"type": "refusal"}
        assert ended["stop_details"] == {"type": "refusal", "category": None, "explanation": None}
        fork = await AgentsClient(proxy).post(f"/sessions/{id}/fork", {})
        copied = (await client.events(fork["id"]))[-1]
        assert copied["stop_reason"] == {"type": "refusal"}
        after = await client.turn(id, message("[[fake:text say=Hi.]]"))
        assert (after[-1]["stop_reason"], after[-1]["stop_details"]) == ({"type": "end_turn"}, None)


async def test_an_interrupt_at_rest_changes_nothing(client: ManagedClient) -> None:
    id = await client.new_session()
    (sent,) = await client.send(id, INTERRUPT)
    assert await client.events(id) == [sent]
    assert (await client.session(id))["status"] == "idle"


async def test_lists_of_events_have_pages_both_orders_types_and_times(client: ManagedClient) -> None:
    id = await client.new_session()
    await client.turn(id, message("[[fake:tool_calls]]"))
    events = await client.events(id)
    for limit in (1, 3, 7):
        assert await client.events(id, limit) == events
        assert await client.events(id, limit, "&order=desc") == events[::-1]
    chosen = "&types%5B%5D=user.message&types%5B%5D=agent.message"
    assert kinds(await client.events(id, query=chosen)) == ["user.message", "agent.message"]
    middle = events[4]["processed_at"]
    assert await client.events(id, 2, f"&created_at%5Bgt%5D={middle}") == events[5:]
    assert await client.events(id, 2, f"&created_at%5Blte%5D={middle}") == events[:5]
    page = (await client.well("GET", f"/sessions/{id}/events?limit=2"))["next_page"]
    assert "order" in await client.refused(400, f"/sessions/{id}/events?order=desc&page={page}", method="GET")


async def test_the_sdk_runs_a_whole_session(proxy: Proxy) -> None:
    async with sdk(proxy) as anthropic:
        beta = anthropic.beta
        environment = await beta.environments.create(name="here")
        agent = await beta.agents.create(name="A", model="codex-5")
        session = await beta.sessions.create(agent=agent.id, environment_id=environment.id, title="Mine")
        async with await beta.sessions.events.stream(session.id) as stream:
            await beta.sessions.events.send(
                session.id,
                events=[
                    {"type": "user.message", "content": [{"type": "text", "text": "[[fake:text say=Hi.]]"}]}
                ],
            )
            told = []
            async for event in stream:
                told.append(event)
                if event.type == "session.status_idle":
                    break
        listed = [event async for event in beta.sessions.events.list(session.id)]
        assert [event.type for event in listed] == [event.type for event in told]
        assert [each.id async for each in beta.sessions.list()] == [session.id]
        updated = await beta.sessions.update(session.id, title="Yours", metadata={"a": "b"})
        assert (updated.title, updated.metadata) == ("Yours", {"a": "b"})
        (thread,) = [each async for each in beta.sessions.threads.list(session.id)]
        assert thread.parent_thread_id is None
        assert (await beta.sessions.archive(session.id)).archived_at is not None
        assert (await beta.sessions.delete(session.id)).type == "session_deleted"
