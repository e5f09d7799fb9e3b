"""A thread that rests, between two turns or on its calls, and what takes it up again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from codex_proxy.agents.base import NOTHING, Ended
from codex_proxy.core import events as ev
from codex_proxy.core.events import Event, Stop, TurnEnded
from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryMessage, RawHistoryItem, TextPart
from tests.agents.app_server_dialogue import (
    HISTORY,
    SUNNY,
    THREAD,
    TURN,
    Dialogue,
    idle,
    output,
    parked,
    said,
)

SECOND = "U2"
AGAIN = HistoryMessage("user", (TextPart("And now?"),))
SPENT = ev.Usage(10, 4, 2, 1)
"""What every response of a dialogue costs."""
LOST = "The agent has lost this conversation. Send the request again."


def second_turn(talk: Dialogue) -> Dialogue:
    talk.proceeds(AGAIN)
    talk.started_anew(SECOND)
    return talk


def usages(events: list[Event]) -> list[ev.Usage]:
    return [event.usage for event in events if isinstance(event, ev.UsageReported)]


# --- what rests -----------------------------------------------------------------------------------


def test_a_thread_rests_only_while_nothing_runs_on_it() -> None:
    talk = Dialogue(kept=True)
    told = [talk.turn.can_resume]
    talk.start_thread()
    told.append(talk.turn.can_resume)
    talk.answers("thread/inject_items")
    talk.answers("turn/start", {"turn": {"id": TURN}})
    talk.tells("item/agentMessage/delta", itemId="msg_1", delta="Hel")
    told.append(talk.turn.can_resume)
    talk.ends()
    assert [*told, talk.turn.can_resume] == [False, False, False, True]
    assert not talk.turn.finished


def test_an_end_that_comes_before_the_answer_to_the_start_makes_no_thread_rest_until_that_is_there() -> None:
    talk = Dialogue(kept=True)
    talk.start_thread()
    talk.answers("thread/inject_items")
    talk.ends()
    assert not talk.turn.can_resume
    talk.answers("turn/start", {"turn": {"id": TURN}})
    assert talk.turn.can_resume


@pytest.mark.parametrize(
    "how", ["failed", "interrupted", "cut", "cut midway", "garbled", "interrupt", "eof", "refused"]
)
def test_a_thread_whose_turn_did_not_end_well_does_not_rest(how: str) -> None:
    talk = Dialogue(kept=True).start()
    incomplete = {
        "message": "x",
        "additionalDetails": "Incomplete response returned, reason: max_output_tokens",
    }
    match how:
        case "failed" | "interrupted":
            talk.ends(how)
        case "cut":
            talk.ends("failed", error=incomplete)
        case "cut midway":
            talk.tells("error", error=incomplete, willRetry=True)
        case "garbled":
            talk.tells("turn/completed", turn=5)
        case "interrupt":
            talk.take(talk.turn.interrupt())
        case "eof":
            talk.take(talk.turn.eof(Ended(code=0)))
        case "refused":
            talk = idle()
            talk.proceeds(AGAIN)
            talk.refuses("turn/start", "thread not found")
            talk.answers("thread/inject_items")
    assert isinstance(talk.events[-1], TurnEnded)
    assert not talk.turn.can_resume


@pytest.mark.parametrize("make", [idle, parked])
def test_a_thread_that_was_given_up_rests_no_more(make: Callable[[], Dialogue]) -> None:
    talk = make()
    talk.take(talk.turn.interrupt())
    assert not talk.turn.can_resume


def test_nothing_comes_from_an_idle_thread() -> None:
    talk = idle()
    total = {"total": {"inputTokens": 900, "outputTokens": 9}}
    late = [
        talk.tells("item/agentMessage/delta", itemId="msg_9", delta="late"),
        talk.tells("item/started", item={"type": "commandExecution", "id": "c_1", "command": "ls"}),
        talk.tells("thread/tokenUsage/updated", tokenUsage=total),
        talk.calls(1),
        talk.completes(),
        talk.ends(),
        talk.ends("failed"),
        talk.wants_output(1),
        talk.asks(9, "item/commandExecution/requestApproval", command="ls"),
    ]
    assert late == [[]] * len(late)
    assert [line["error"]["code"] for line in talk.sent[-2:]] == [-32601, -32601], "it must not wait for us"
    assert talk.turn.can_resume


def test_nothing_comes_from_a_parked_thread_while_the_agent_asks_for_its_outputs() -> None:
    talk = Dialogue(kept=True).start()
    talk.step(1, 2)
    total = {"total": {"inputTokens": 10, "cachedInputTokens": 4, "outputTokens": 2}}
    before = len(talk.sent)
    late = [
        talk.tells("item/started", item={"type": "dynamicToolCall", "id": "call_1"}),
        talk.wants_output(1),
        talk.wants_output(2),
        talk.tells("thread/tokenUsage/updated", tokenUsage=total),
    ]
    assert late == [[]] * 4
    assert talk.sent[before:] == []
    assert talk.turn.can_resume


def test_a_thread_whose_agent_went_on_without_our_output_does_not_wait_for_it() -> None:
    talk = Dialogue(kept=True).start()
    talk.step(1, 2)
    refused = {"type": "function_call_output", "call_id": "call_1", "output": "failed to parse"}
    assert talk.tells("rawResponseItem/completed", item=refused) == []
    assert not talk.turn.can_resume
    assert talk.replies("call_1", SUNNY) is None
    talk.wants_output(2)
    assert talk.replies("call_2", SUNNY) == said(2), "where it is our answer, the turn goes on all the same"


def test_an_idle_thread_that_the_agent_closes_rests_no_more_and_needs_no_more_words() -> None:
    talk = idle()
    assert talk.tells("thread/closed") == []
    assert not talk.turn.can_resume
    assert talk.turn.interrupt() == NOTHING
    assert talk.turn.finished


# --- idle -----------------------------------------------------------------------------------------


def test_an_idle_thread_takes_what_is_new_and_starts_another_turn_in_one_write() -> None:
    talk = idle()
    before = len(talk.sent)
    assert talk.proceeds(AGAIN, effort="high") == [ev.TurnStarted(THREAD, "m-1")]
    inject, start = talk.sent[before:]
    assert (inject["method"], start["method"]) == ("thread/inject_items", "turn/start")
    assert [item["content"][0]["text"] for item in inject["params"]["items"]] == ["And now?"]
    assert start["params"] == {"threadId": THREAD, "input": [], "effort": "high"}
    assert not talk.turn.can_resume


def test_an_idle_agent_is_told_the_new_message_as_a_person_would_type_it() -> None:
    talk = idle("agent")
    before = len(talk.sent)
    talk.proceeds(AGAIN)
    [start] = talk.sent[before:]
    assert (start["method"], start["params"]["input"][0]["text"]) == ("turn/start", "And now?")


def test_what_is_new_gets_the_same_ids_as_if_all_had_come_again() -> None:
    kept, anew = idle(), Dialogue(history=(*HISTORY, AGAIN))
    kept.proceeds(AGAIN)
    anew.start_thread()
    [fresh] = kept.sent[-2]["params"]["items"]
    assert fresh == anew.sent[1]["params"]["items"][-1]


def test_a_second_turn_ends_and_rests_as_the_first() -> None:
    talk = second_turn(idle())
    said_before = len(talk.events)
    talk.tells("item/agentMessage/delta", turnId=SECOND, itemId="msg_2", delta="Yes")
    talk.completes(turn=SECOND)
    talk.ends(id=SECOND)
    assert talk.events[said_before:] == [
        ev.TextDelta("msg_2", "Yes"),
        ev.UsageReported(SPENT, "provider"),
        ev.StepCompleted(SPENT),
        TurnEnded(Stop.STOP),
    ]
    assert talk.turn.can_resume
    third = talk.proceeds(AGAIN)
    assert third == [ev.TurnStarted(THREAD, "m-1")]


def test_a_second_turn_is_told_its_own_tokens_only() -> None:
    talk = second_turn(idle())
    total = {"inputTokens": 20, "cachedInputTokens": 8, "outputTokens": 4, "reasoningOutputTokens": 2}
    assert usages(talk.completes(turn=SECOND)) == [SPENT]
    assert usages(talk.tells("thread/tokenUsage/updated", tokenUsage={"total": total})) == [SPENT]
    more = total | {"inputTokens": 50}
    assert usages(talk.tells("thread/tokenUsage/updated", tokenUsage={"total": more})) == [
        ev.Usage(40, 4, 2, 1)
    ]


def test_a_second_turn_never_costs_less_than_nothing() -> None:
    talk = second_turn(idle())
    told = talk.tells("thread/tokenUsage/updated", tokenUsage={"total": {"inputTokens": 100}})
    assert usages(told) == [ev.Usage(90, 0, 0, 0)]


def test_late_words_about_the_first_turn_are_not_about_the_second() -> None:
    talk = idle()
    talk.proceeds(AGAIN)
    assert talk.ends("failed") == [], "the second has no id yet"
    talk.started_anew(SECOND)
    assert talk.ends("failed") == []
    assert talk.calls(1) == talk.completes() == []
    assert talk.ends(id=SECOND) == [TurnEnded(Stop.STOP)]


def test_a_message_that_the_first_turn_left_open_is_no_refusal_of_the_second() -> None:
    talk = Dialogue(kept=True).start()
    talk.tells("item/started", item={"type": "agentMessage", "id": "msg_1"})
    assert [type(event) for event in talk.ends()] == [ev.RefusalDelta, TurnEnded]
    second_turn(talk)
    assert talk.ends(id=SECOND) == [TurnEnded(Stop.STOP)]


def test_a_second_turn_that_is_interrupted_is_stopped_by_its_own_id() -> None:
    talk = second_turn(idle())
    assert talk.take(talk.turn.interrupt()) == [TurnEnded(Stop.INTERRUPTED)]
    assert talk.sent[-1]["params"] == {"threadId": THREAD, "turnId": SECOND}


def test_an_idle_thread_that_is_given_up_is_forgotten_without_an_event() -> None:
    talk = idle()
    before = len(talk.asked)
    assert talk.take(talk.turn.interrupt()) == []
    assert talk.asked[before:] == ["thread/unsubscribe"]
    talk.answers("thread/unsubscribe")
    assert talk.turn.finished


# --- too late -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [AGAIN, output(1), RawHistoryItem(b"{}"), HistoryCall("c", "f", "{}")])
@pytest.mark.parametrize("make", [idle, parked])
def test_a_turn_on_a_thread_whose_child_is_gone_fails_at_once(
    make: Callable[[], Dialogue], fresh: HistoryItem
) -> None:
    talk = make()
    talk.take(talk.turn.eof(Ended(signal=9)))
    assert not talk.turn.can_resume
    assert talk.turn.finished
    step = talk.turn.resume(talk.wanted, (fresh,))
    [end] = step.events
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert (end.failure.kind, end.failure.message, step.writes) == ("agent_crashed", LOST, b"")
    assert talk.turn.finished


def test_a_turn_on_a_thread_that_runs_fails_and_what_runs_is_stopped() -> None:
    talk = Dialogue().start()
    talk.proceeds(AGAIN)
    assert talk.failure() == "agent_crashed"
    assert talk.asked[3:] == ["turn/interrupt"]


def test_a_child_that_dies_after_a_thread_was_taken_up_fails_the_new_turn() -> None:
    for talk in (second_turn(idle()), parked()):
        if talk.turn.can_resume:
            talk.proceeds(output(1))
        [end] = talk.take(talk.turn.eof(Ended(code=1)))
        assert isinstance(end, TurnEnded)
        assert end.stop == Stop.FAILED


def test_the_death_of_a_child_ends_a_parked_turn_and_is_nothing_to_an_idle_thread() -> None:
    assert idle().turn.eof(Ended()) == NOTHING
    [end] = parked().turn.eof(Ended()).events
    assert isinstance(end, TurnEnded)
