"""Calls that the agent answers by itself, before the client's in one step: the step waits for their outputs."""

from __future__ import annotations

from typing import Any

from codex_proxy.core.events import Event, RawItem, Retrying, StepCompleted, ToolCallRequested
from tests.agents.app_server_dialogue import ASK_1, Dialogue

USAGE = {"inputTokens": 1, "outputTokens": 1}


def started_dialogue(**turn: Any) -> Dialogue:
    dialogue = Dialogue(keeps_thread=True, **turn)
    dialogue.start()
    return dialogue


def own_call(dialogue: Dialogue, id: str = "own") -> list[Event]:
    item = {
        "type": "function_call",
        "id": f"fc_{id}",
        "call_id": id,
        "name": "exec_command",
        "arguments": "{}",
    }
    return dialogue.agent_notifies("rawResponseItem/completed", item=item)


def own_output(dialogue: Dialogue, id: str = "own") -> list[Event]:
    item = {"type": "function_call_output", "call_id": id, "output": "made"}
    return dialogue.agent_notifies("rawResponseItem/completed", item=item)


def client_call(dialogue: Dialogue) -> list[Event]:
    item = {
        "type": "function_call",
        "id": "fc_1",
        "call_id": "call_1",
        "name": "get_weather",
        "arguments": "{}",
    }
    return dialogue.agent_notifies("rawResponseItem/completed", item=item)


def over(dialogue: Dialogue) -> list[Event]:
    return dialogue.agent_notifies("rawResponse/completed", usage=USAGE)


def command(dialogue: Dialogue, method: str, id: str = "own") -> list[Event]:
    item = {"type": "commandExecution", "id": id, "command": "make", "status": "inProgress"}
    return dialogue.agent_notifies(method, item=item)


def kinds(events: list[Event]) -> list[type]:
    return [type(event) for event in events]


def test_the_calls_come_when_the_agent_has_answered_its_own() -> None:
    dialogue = started_dialogue(mode="agent")
    own_call(dialogue)
    client_call(dialogue)
    assert not {ToolCallRequested, StepCompleted} & set(kinds(over(dialogue)))
    found = own_output(dialogue)
    assert kinds(found) == [RawItem, RawItem, RawItem, ToolCallRequested, StepCompleted]
    assert found[3] == ASK_1
    assert dialogue.turn.can_resume


def test_outputs_that_are_there_before_the_end_of_the_response_are_not_waited_for() -> None:
    dialogue = started_dialogue(mode="agent")
    own_call(dialogue)
    own_output(dialogue)
    client_call(dialogue)
    assert kinds(over(dialogue))[-2:] == [ToolCallRequested, StepCompleted]


def test_a_call_behind_the_clients_is_not_waited_for() -> None:
    dialogue = started_dialogue(mode="agent")
    client_call(dialogue)
    own_call(dialogue)
    assert kinds(over(dialogue))[-2:] == [ToolCallRequested, StepCompleted]


def test_a_step_without_a_call_of_the_clients_waits_for_nothing() -> None:
    dialogue = started_dialogue(mode="agent")
    own_call(dialogue)
    assert kinds(over(dialogue))[-1] is StepCompleted


def test_a_call_that_the_agent_has_not_begun_when_it_asks_for_the_clients_output_waits_for_that() -> None:
    dialogue = started_dialogue(mode="agent")
    own_call(dialogue)
    client_call(dialogue)
    over(dialogue)
    assert kinds(dialogue.wants_output(1))[-2:] == [ToolCallRequested, StepCompleted]


def test_a_command_that_runs_is_waited_for_also_when_the_agent_asks_for_the_clients_output() -> None:
    dialogue = started_dialogue(mode="agent")
    own_call(dialogue)
    client_call(dialogue)
    over(dialogue)
    command(dialogue, "item/started")
    assert StepCompleted not in kinds(dialogue.wants_output(1))
    assert kinds(own_output(dialogue))[-2:] == [ToolCallRequested, StepCompleted]


def test_of_several_calls_every_one_is_waited_for() -> None:
    dialogue = started_dialogue(mode="agent")
    own_call(dialogue, "one")
    own_call(dialogue, "two")
    client_call(dialogue)
    over(dialogue)
    assert own_output(dialogue, "one") == []
    assert kinds(own_output(dialogue, "two"))[-1] is StepCompleted


def test_a_retry_ends_the_wait() -> None:
    dialogue = started_dialogue(mode="agent")
    own_call(dialogue)
    dialogue.agent_notifies("error", error={"message": "cut", "codexErrorInfo": "other"}, willRetry=True)
    assert Retrying in kinds(dialogue.events)
    client_call(dialogue)
    assert kinds(over(dialogue))[-2:] == [ToolCallRequested, StepCompleted]
