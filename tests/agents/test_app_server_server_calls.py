"""Calls that the agent answers by itself, before the client's in one step: the step waits for their outputs."""

from __future__ import annotations

from typing import Any

from codex_proxy.core.events import Event, RawItem, Retrying, StepCompleted, ToolCallRequested
from tests.agents.app_server_dialogue import ASK_1, Dialogue

USAGE = {"inputTokens": 1, "outputTokens": 1}


def started(**turn: Any) -> Dialogue:
    talk = Dialogue(kept=True, **turn)
    talk.start()
    return talk


def own_call(talk: Dialogue, id: str = "own") -> list[Event]:
    item = {
        "type": "function_call",
        "id": f"fc_{id}",
        "call_id": id,
        "name": "exec_command",
        "arguments": "{}",
    }
    return talk.tells("rawResponseItem/completed", item=item)


def own_output(talk: Dialogue, id: str = "own") -> list[Event]:
    item = {"type": "function_call_output", "call_id": id, "output": "made"}
    return talk.tells("rawResponseItem/completed", item=item)


def client_call(talk: Dialogue) -> list[Event]:
    item = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "get_weather",
        "arguments": "{}",
    }
    return talk.tells("rawResponseItem/completed", item=item)


def over(talk: Dialogue) -> list[Event]:
    return talk.tells("rawResponse/completed", usage=USAGE)


def command(talk: Dialogue, method: str, id: str = "own") -> list[Event]:
    item = {"type": "commandExecution", "id": id, "command": "make", "status": "inProgress"}
    return talk.tells(method, item=item)


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


def test_the_calls_come_when_the_agent_has_answered_its_own() -> None:
    talk = started(mode="agent")
    own_call(talk)
    client_call(talk)
    assert not {ToolCallRequested, StepCompleted} & set(kinds(over(talk)))
    found = own_output(talk)
    assert kinds(found) == [RawItem, RawItem, RawItem, ToolCallRequested, StepCompleted]
    assert found[3] == ASK_1
    assert talk.turn.can_resume


def test_outputs_that_are_there_before_the_end_of_the_response_are_not_waited_for() -> None:
    talk = started(mode="agent")
    own_call(talk)
    own_output(talk)
    client_call(talk)
    assert kinds(over(talk))[-2:] == [ToolCallRequested, StepCompleted]


def test_a_call_behind_the_client_s_is_not_waited_for() -> None:
    talk = started(mode="agent")
    client_call(talk)
    own_call(talk)
    assert kinds(over(talk))[-2:] == [ToolCallRequested, StepCompleted]


def test_a_step_without_a_call_of_the_client_s_waits_for_nothing() -> None:
    talk = started(mode="agent")
    own_call(talk)
    assert kinds(over(talk))[-1] is StepCompleted


def test_a_call_that_the_agent_has_not_begun_when_it_asks_for_the_client_s_output_waits_for_that() -> None:
    talk = started(mode="agent")
    own_call(talk)
    client_call(talk)
    over(talk)
    assert kinds(talk.wants_output(1))[-2:] == [ToolCallRequested, StepCompleted]


def test_a_command_that_runs_is_waited_for_also_when_the_agent_asks_for_the_client_s_output() -> None:
    talk = started(mode="agent")
    own_call(talk)
    client_call(talk)
    over(talk)
    command(talk, "item/started")
    assert StepCompleted not in kinds(talk.wants_output(1))
    assert kinds(own_output(talk))[-2:] == [ToolCallRequested, StepCompleted]


def test_of_several_calls_every_one_is_waited_for() -> None:
    talk = started(mode="agent")
    own_call(talk, "one")
    own_call(talk, "two")
    client_call(talk)
    over(talk)
    assert own_output(talk, "one") == []
    assert kinds(own_output(talk, "two"))[-1] is StepCompleted


def test_a_retry_forgets_what_was_waited_for() -> None:
    talk = started(mode="agent")
    own_call(talk)
    talk.tells("error", error={"message": "cut", "codexErrorInfo": "other"}, willRetry=True)
    assert Retrying in kinds(talk.events)
    client_call(talk)
    assert kinds(over(talk))[-2:] == [ToolCallRequested, StepCompleted]
