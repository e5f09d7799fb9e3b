"""Tools of which the client is asked: nothing runs before it is allowed, and a denial's words reach the model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.http.claude import claude_proxy
from tests.http.serving import Proxy, fake_proxy
from tests.parts.managed_agents.driving import TOOLSET
from tests.parts.managed_agents.following import (
    IDLE,
    INTERRUPT,
    RUNNING,
    ManagedClient,
    Stream,
    confirm,
    kinds,
    message,
    result_texts,
    said,
)
from tests.parts.sessions.approving import ASKING, KEY

ASK = TOOLSET | {"default_config": {"permission_policy": {"type": "always_ask"}}}


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with claude_proxy(tmp_path, sandbox="danger-full-access", api_key=KEY) as proxy:
        yield proxy


@pytest.fixture
def client(proxy: Proxy) -> ManagedClient:
    return ManagedClient(proxy, KEY)


async def asked(client: ManagedClient, stream: Stream, id: str) -> str:
    """The event of the first call of which the client is asked."""
    await client.send(id, message("[[fake:toolset]]"))
    (use,) = (await stream.until(IDLE))["stop_reason"]["event_ids"]
    return str(use)


async def test_each_call_is_asked_about_and_a_denial_has_words(client: ManagedClient) -> None:
    id = await client.new_session(tools=[ASK])
    async with client.stream(id) as stream:
        use = await asked(client, stream, id)
        calls = [event for event in stream.events if event["type"] == "agent.tool_use"]
        assert [call["name"] for call in calls] == ["bash", "bash", "write"]
        assert calls[0]["input"] == {"command": "make one"}
        assert {call["evaluated_permission"] for call in calls} == {"ask"}
        assert use == calls[0]["id"]
        assert "agent.tool_result" not in kinds(stream.events)
        (sent,) = await client.send(id, confirm(use, "deny", deny_message="Not this one."))
        assert sent["deny_message"] == "Not this one."
        for call in calls[1:]:
            assert (await stream.until(IDLE))["stop_reason"]["event_ids"] == [call["id"]]
            await client.send(id, confirm(call["id"]))
        told = await client.until_rest(id, stream)
    results = {each["tool_use_id"]: each for each in told if each["type"] == "agent.tool_result"}
    assert [results[call["id"]]["is_error"] for call in calls] == [True, False, False]
    assert result_texts(told)[calls[0]["id"]] == "Not this one."
    assert said(told) == ["All done."]
    assert told == await client.events(id)
    assert kinds(told).count(RUNNING) == 4


@pytest.mark.parametrize(
    ("words", "told_as"),
    [
        ({"deny_message": "Ask me tomorrow."}, "Ask me tomorrow."),
        ({}, "This call was declined and did not run."),
    ],
)
async def test_a_denied_call_of_codex_has_a_result_with_the_words_of_the_denial(
    tmp_path: Path, words: dict[str, str], told_as: str
) -> None:
    async with fake_proxy(tmp_path, **ASKING) as proxy:
        client = ManagedClient(proxy, KEY)
        commands = {"name": "bash", "permission_policy": {"type": "always_ask"}}
        id = await client.new_session(tools=[TOOLSET | {"configs": [commands]}])
        async with client.stream(id) as stream:
            await client.send(id, message("[[fake:approvals]]"))
            uses = (await stream.until(IDLE))["stop_reason"]["event_ids"]
            while len(uses) < 2:
                uses = (await stream.until(IDLE))["stop_reason"]["event_ids"]
            denied, allowed = uses
            await client.send(id, confirm(denied, "deny", **words), confirm(allowed))
            while not stream.rests:
                await stream.next()
            told = stream.events
        assert result_texts(told) == {denied: told_as, allowed: "ok\n"}
        assert told == await client.events(id)


@pytest.mark.parametrize(("decision", "failed"), [("allow", False), ("deny", True)])
async def test_what_a_subagent_asks_for_is_asked_and_answered_in_the_session(
    client: ManagedClient, decision: str, failed: bool
) -> None:
    several = {"multiagent": {"type": "coordinator", "agents": [{"type": "self"}]}}
    agent = await client.well("POST", "/agents", {"name": "Boss", "model": "m", "tools": [ASK], **several})
    id = await client.new_session(agent=agent["id"])
    async with client.stream(id) as stream:
        await client.send(id, message("[[fake:subagent args='[[fake:approval]]']]"))
        (use,) = (await stream.until(IDLE))["stop_reason"]["event_ids"]
        copied = next(event for event in stream.events if event["id"] == use)
        assert copied["input"] == {"command": "make three"}
        assert copied["evaluated_permission"] == "ask"
        (sent,) = await client.send(id, confirm(use, decision))
        told = await client.until_rest(id, stream)
    assert told == await client.events(id)
    _, child = await client.threads(id)
    answer = next(event for event in told if event["type"] == "user.tool_confirmation")
    assert answer["id"] == sent["id"]
    threads = [event["session_thread_id"] for event in (copied, answer, sent)]
    assert threads == [child["id"]] * 3
    own = await client.events(id, thread=child["id"])
    call = next(event for event in own if event["type"] == "agent.tool_use")
    assert call["id"] == use
    assert "session_thread_id" not in call
    results = [event for event in own if event["type"] == "agent.tool_result"]
    assert [(each["tool_use_id"], each["is_error"]) for each in results] == [(use, failed)]
    assert "agent.tool_result" not in kinds(told), "what came of it is in the subagent's log"


async def test_answers_that_come_before_the_agent_asks_are_given_when_it_asks(client: ManagedClient) -> None:
    id = await client.new_session(tools=[ASK])
    async with client.stream(id) as stream:
        first = await asked(client, stream, id)
        calls = [event["id"] for event in stream.events if event["type"] == "agent.tool_use"]
        await client.send(id, *map(confirm, reversed(calls)))
        told = await client.until_rest(id, stream)
    assert first == calls[0]
    assert kinds(told).count(IDLE) == 2, "the session has waited once"
    assert kinds(told).count("agent.tool_result") == 3


async def test_of_two_readers_who_confirm_one_wins(client: ManagedClient) -> None:
    id = await client.new_session(tools=[ASK])
    async with client.stream(id) as stream, client.stream(id) as other:
        use = await asked(client, stream, id)
        body = {"events": [confirm(use)]}
        answers = await asyncio.gather(
            *(client.ask("POST", f"/sessions/{id}/events", body) for _ in range(4))
        )
        assert sorted(answer.status for answer in answers) == [200, 400, 400, 400]
        lost = next(answer for answer in answers if answer.status == 400)
        assert lost.body["error"]["message"] == (
            f'`tool_use_id` "{use}" does not match any `agent.tool_use` event in this session'
        )
        await client.send(id, INTERRUPT)
        for each in (stream, other):
            while not each.rests:
                await each.next()
        assert other.events == stream.events == await client.events(id)
    results = [event for event in stream.events if event["type"] == "agent.tool_result"]
    assert len(results) == 3


async def test_an_interrupt_closes_the_calls_with_errors(client: ManagedClient) -> None:
    id = await client.new_session(tools=[ASK])
    async with client.stream(id) as stream:
        await asked(client, stream, id)
        await client.send(id, INTERRUPT)
        told = await client.until_rest(id, stream)
    assert [each["is_error"] for each in told if each["type"] == "agent.tool_result"] == [True] * 3
    assert told[-1]["stop_reason"] == {"type": "end_turn"}


async def test_a_message_behind_an_interrupt_begins_the_next_turn(client: ManagedClient) -> None:
    id = await client.new_session(tools=[ASK])
    async with client.stream(id) as stream:
        await asked(client, stream, id)
        await client.send(id, INTERRUPT, message("Hello"))
        told = await client.until_rest(id, stream)
    assert [each["is_error"] for each in told if each["type"] == "agent.tool_result"] == [True] * 3
    behind = kinds(told)[kinds(told).index("user.interrupt") :]
    assert behind[-1] == IDLE
    assert behind.count(IDLE) == behind.count("user.message") == 1
    assert told == await client.events(id)


async def test_a_session_that_waits_for_an_answer_may_be_deleted(client: ManagedClient) -> None:
    id = await client.new_session(tools=[ASK])
    async with client.stream(id) as stream:
        await asked(client, stream, id)
        assert (await client.well("DELETE", f"/sessions/{id}"))["type"] == "session_deleted"
        assert (await stream.whole())[-1]["type"] == "session.deleted"


async def test_words_are_for_denials_only(client: ManagedClient) -> None:
    id = await client.new_session(tools=[ASK])
    body = {"events": [confirm("sevt_x", deny_message="Why?")]}
    assert "deny" in await client.refused(400, f"/sessions/{id}/events", body)
