"""A thread that is parked: its agent waits for outputs, and its turn goes on when they come."""

from __future__ import annotations

import json

import pytest

from codex_proxy.agents.base import ToolReply
from codex_proxy.core import events as ev
from codex_proxy.core.events import Event, Stop, TurnEnded
from codex_proxy.core.items import TextPart
from tests.agents.app_server_dialogue import (
    SUNNY,
    THREAD,
    Dialogue,
    output,
    parked,
    said,
)

SPENT = ev.Usage(10, 4, 2, 1)
"""What every response of a dialogue costs."""


def usages(events: list[Event]) -> list[ev.Usage]:
    return [event.usage for event in events if isinstance(event, ev.UsageReported)]


@pytest.mark.parametrize("requested", [True, False])
def test_outputs_go_to_the_agent_that_waits_for_them_and_its_turn_goes_on(requested: bool) -> None:
    talk = parked(requested=requested)
    before = len(talk.asked)
    assert talk.proceeds(output(1)) == [ev.TurnStarted(THREAD, "m-1")]
    if not requested:
        talk.wants_output(1)
    assert talk.sent[-1] == said(1)
    assert talk.asked[before:] == [], "no new turn of the agent's"
    assert not talk.turn.can_resume
    talk.tells("item/agentMessage/delta", itemId="msg_2", delta="Sunny.")
    assert usages(talk.completes()) == [SPENT], "not what the first turn cost"
    assert talk.ends() == [TurnEnded(Stop.STOP)]
    assert talk.turn.can_resume


def test_outputs_of_several_calls_each_find_their_own() -> None:
    talk = Dialogue(kept=True).start()
    talk.calls(1)
    talk.wants_output(1)
    talk.calls(2)
    talk.calls(3)
    talk.completes()
    talk.wants_output(3)
    before = len(talk.sent)
    talk.proceeds(output(3, "three"), output(2, "two"), output(1, "one"))
    talk.wants_output(2)
    assert talk.sent[before:] == [said(3, "three"), said(1, "one"), said(2, "two")]


def test_an_output_of_ours_goes_with_the_clients_and_only_then_the_thread_waits_no_more() -> None:
    talk = Dialogue(kept=True).start()
    talk.step(1, 2)
    talk.wants_output(1)
    talk.wants_output(2)
    talk.proceeds(output(1))
    assert talk.replies("call_2", ToolReply((TextPart("Deferred."),))) == said(2, "Deferred.")
    assert not talk.turn.can_resume


def test_an_output_of_a_call_that_does_not_wait_goes_nowhere() -> None:
    talk = parked()
    before = len(talk.sent)
    talk.proceeds(output(7), output(1))
    assert talk.sent[before:] == [said(1)]
    assert talk.wants_output(7) != [], "it is a call like any other"


def test_what_the_client_brought_itself_is_no_news_to_it_but_what_we_answered_in_its_turn_is() -> None:
    talk = parked()
    talk.proceeds(output(1))
    talk.tells("rawResponseItem/completed", item={"type": "function_call_output", "call_id": "call_1"})
    talk.step(2)
    talk.replies("call_2", SUNNY)
    talk.tells("rawResponseItem/completed", item={"type": "function_call_output", "call_id": "call_2"})
    talk.completes()
    raw = [json.loads(event.json) for event in talk.events if isinstance(event, ev.RawItem)]
    assert [(item["type"], item["call_id"]) for item in raw] == [
        ("function_call", "call_1"),
        ("function_call", "call_2"),
        ("function_call_output", "call_2"),
    ]


def test_a_thread_may_be_parked_again_and_again() -> None:
    talk = parked()
    for n in (1, 2, 3):
        talk.proceeds(output(n))
        assert talk.sent[-1] == said(n)
        talk.step(n + 1)
        talk.wants_output(n + 1)
        assert talk.turn.can_resume
    assert usages(talk.events) == [SPENT] * 4


@pytest.mark.parametrize(
    ("mode", "cleaning"), [("model", []), ("agent", ["thread/backgroundTerminals/clean"])]
)
def test_a_parked_turn_that_is_given_up_is_stopped_and_forgotten(mode: str, cleaning: list[str]) -> None:
    talk = parked(mode=mode)
    before = len(talk.asked)
    assert talk.take(talk.turn.interrupt()) == [TurnEnded(Stop.INTERRUPTED)]
    assert talk.asked[before:] == ["turn/interrupt"]
    assert talk.replies("call_1", SUNNY) is None
    assert talk.wants_output(2) == []
    assert talk.sent[-1]["error"]["code"] == -32601
    for method in ("turn/interrupt", *cleaning, "thread/unsubscribe"):
        assert not talk.turn.finished
        talk.answers(method)
    assert talk.asked[before:] == ["turn/interrupt", *cleaning, "thread/unsubscribe"]
    assert talk.turn.finished


def test_a_parked_turn_that_fails_rests_no_more() -> None:
    talk = parked()
    talk.ends("failed", error={"message": "usage limit", "codexErrorInfo": "usageLimitExceeded"})
    assert talk.failure() == "usage_limit_reached"
    assert not talk.turn.can_resume
