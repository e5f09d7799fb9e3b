"""A thread that is parked: its agent waits for outputs, and its turn goes on when they come."""

from __future__ import annotations

import json

import pytest

from codex_proxy.agents.dialect import ToolReply
from codex_proxy.core import events as ev
from codex_proxy.core.events import Event, Stop, TurnEnded
from codex_proxy.core.items import TextPart
from tests.agents.app_server_dialogue import (
    SUNNY,
    THREAD,
    Dialogue,
    output,
    tool_output_line,
    waiting_for_output,
)

SPENT = ev.Usage(10, 4, 2, 1)
"""What every response of a dialogue costs."""


def usages(events: list[Event]) -> list[ev.Usage]:
    return [event.usage for event in events if isinstance(event, ev.UsageReported)]


@pytest.mark.parametrize("requested", [True, False])
def test_outputs_go_to_the_agent_that_waits_for_them_and_its_turn_goes_on(requested: bool) -> None:
    dialogue = waiting_for_output(requested=requested)
    before = len(dialogue.methods)
    assert dialogue.client_resumes(output(1)) == [ev.TurnStarted(THREAD, "m-1")]
    if not requested:
        dialogue.wants_output(1)
    assert dialogue.sent[-1] == tool_output_line(1)
    assert dialogue.methods[before:] == [], "no new turn of the agent's"
    assert not dialogue.turn.can_resume
    dialogue.agent_notifies("item/agentMessage/delta", itemId="msg_2", delta="Sunny.")
    assert usages(dialogue.completes()) == [SPENT], "not what the first turn cost"
    assert dialogue.ends() == [TurnEnded(Stop.STOP)]
    assert dialogue.turn.can_resume


def test_outputs_of_several_calls_each_find_their_own() -> None:
    dialogue = Dialogue(keeps_thread=True).start()
    dialogue.calls(1)
    dialogue.wants_output(1)
    dialogue.calls(2)
    dialogue.calls(3)
    dialogue.completes()
    dialogue.wants_output(3)
    before = len(dialogue.sent)
    dialogue.client_resumes(output(3, "three"), output(2, "two"), output(1, "one"))
    dialogue.wants_output(2)
    assert dialogue.sent[before:] == [
        tool_output_line(3, "three"),
        tool_output_line(1, "one"),
        tool_output_line(2, "two"),
    ]


def test_an_output_of_the_proxys_goes_with_the_clients_and_only_then_the_thread_stops_waiting() -> None:
    dialogue = Dialogue(keeps_thread=True).start()
    dialogue.step(1, 2)
    dialogue.wants_output(1)
    dialogue.wants_output(2)
    dialogue.client_resumes(output(1))
    assert dialogue.client_replies("call_2", ToolReply((TextPart("Deferred."),))) == tool_output_line(
        2, "Deferred."
    )
    assert not dialogue.turn.can_resume


def test_an_output_of_a_call_that_does_not_wait_goes_nowhere() -> None:
    dialogue = waiting_for_output()
    before = len(dialogue.sent)
    dialogue.client_resumes(output(7), output(1))
    assert dialogue.sent[before:] == [tool_output_line(1)]
    assert dialogue.wants_output(7) != [], "it is a call like any other"


def test_what_the_client_brought_itself_is_not_reported_to_it_but_what_the_proxy_answered_is() -> None:
    dialogue = waiting_for_output()
    dialogue.client_resumes(output(1))
    dialogue.agent_notifies(
        "rawResponseItem/completed", item={"type": "function_call_output", "call_id": "call_1"}
    )
    dialogue.step(2)
    dialogue.client_replies("call_2", SUNNY)
    dialogue.agent_notifies(
        "rawResponseItem/completed", item={"type": "function_call_output", "call_id": "call_2"}
    )
    dialogue.completes()
    raw = [json.loads(event.json) for event in dialogue.events if isinstance(event, ev.RawItem)]
    assert [(item["type"], item["call_id"]) for item in raw] == [
        ("function_call", "call_1"),
        ("function_call", "call_2"),
        ("function_call_output", "call_2"),
    ]


def test_a_thread_may_wait_for_outputs_again_and_again() -> None:
    dialogue = waiting_for_output()
    for n in (1, 2, 3):
        dialogue.client_resumes(output(n))
        assert dialogue.sent[-1] == tool_output_line(n)
        dialogue.step(n + 1)
        dialogue.wants_output(n + 1)
        assert dialogue.turn.can_resume
    assert usages(dialogue.events) == [SPENT] * 4


@pytest.mark.parametrize(
    ("mode", "cleaning"), [("model", []), ("agent", ["thread/backgroundTerminals/clean"])]
)
def test_a_waiting_turn_that_is_given_up_is_interrupted_and_unsubscribed(
    mode: str, cleaning: list[str]
) -> None:
    dialogue = waiting_for_output(mode=mode)
    before = len(dialogue.methods)
    assert dialogue.take(dialogue.turn.interrupt()) == [TurnEnded(Stop.INTERRUPTED)]
    assert dialogue.methods[before:] == ["turn/interrupt"]
    assert dialogue.client_replies("call_1", SUNNY) is None
    assert dialogue.wants_output(2) == []
    assert dialogue.sent[-1]["error"]["code"] == -32601
    for method in ("turn/interrupt", *cleaning, "thread/unsubscribe"):
        assert not dialogue.turn.finished
        dialogue.agent_answers(method)
    assert dialogue.methods[before:] == ["turn/interrupt", *cleaning, "thread/unsubscribe"]
    assert dialogue.turn.finished


def test_a_waiting_turn_that_fails_cannot_be_resumed() -> None:
    dialogue = waiting_for_output()
    dialogue.ends("failed", error={"message": "usage limit", "codexErrorInfo": "usageLimitExceeded"})
    assert dialogue.failure() == "usage_limit_reached"
    assert not dialogue.turn.can_resume
