"""A thread that rests, between two turns or on its calls, and what takes it up again."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from codex_proxy.agents.dialect import NOTHING, Ended
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
    tool_output_line,
    waiting_for_output,
)

SECOND = "U2"
AGAIN = HistoryMessage("user", (TextPart("And now?"),))
SPENT = ev.Usage(10, 4, 2, 1)
"""What every response of a dialogue costs."""
LOST = "The agent has lost this conversation. Send the request again."


def second_turn(dialogue: Dialogue) -> Dialogue:
    dialogue.client_resumes(AGAIN)
    dialogue.agent_starts_turn(SECOND)
    return dialogue


def usages(events: list[Event]) -> list[ev.Usage]:
    return [event.usage for event in events if isinstance(event, ev.UsageReported)]


# --- what rests -----------------------------------------------------------------------------------


def test_a_thread_can_be_resumed_only_while_nothing_runs_on_it() -> None:
    dialogue = Dialogue(keeps_thread=True)
    told = [dialogue.turn.can_resume]
    dialogue.start_thread()
    told.append(dialogue.turn.can_resume)
    dialogue.agent_answers("thread/inject_items")
    dialogue.agent_answers("turn/start", {"turn": {"id": TURN}})
    dialogue.agent_notifies("item/agentMessage/delta", itemId="msg_1", delta="Hel")
    told.append(dialogue.turn.can_resume)
    dialogue.ends()
    assert [*told, dialogue.turn.can_resume] == [False, False, False, True]
    assert not dialogue.turn.finished


def test_an_end_that_comes_before_the_answer_to_the_start_lets_no_thread_be_resumed_until_that_is_there() -> (
    None
):
    dialogue = Dialogue(keeps_thread=True)
    dialogue.start_thread()
    dialogue.agent_answers("thread/inject_items")
    dialogue.ends()
    assert not dialogue.turn.can_resume
    dialogue.agent_answers("turn/start", {"turn": {"id": TURN}})
    assert dialogue.turn.can_resume


@pytest.mark.parametrize(
    "how", ["failed", "interrupted", "cut", "cut midway", "garbled", "interrupt", "eof", "refused"]
)
def test_a_thread_whose_turn_did_not_end_well_cannot_be_resumed(how: str) -> None:
    dialogue = Dialogue(keeps_thread=True).start()
    incomplete = {
        "message": "x",
        "additionalDetails": "Incomplete response returned, reason: max_output_tokens",
    }
    match how:
        case "failed" | "interrupted":
            dialogue.ends(how)
        case "cut":
            dialogue.ends("failed", error=incomplete)
        case "cut midway":
            dialogue.agent_notifies("error", error=incomplete, willRetry=True)
        case "garbled":
            dialogue.agent_notifies("turn/completed", turn=5)
        case "interrupt":
            dialogue.take(dialogue.turn.interrupt())
        case "eof":
            dialogue.take(dialogue.turn.eof(Ended(code=0)))
        case "refused":
            dialogue = idle()
            dialogue.client_resumes(AGAIN)
            dialogue.agent_refuses("turn/start", "thread not found")
            dialogue.agent_answers("thread/inject_items")
    assert isinstance(dialogue.events[-1], TurnEnded)
    assert not dialogue.turn.can_resume


@pytest.mark.parametrize("make", [idle, waiting_for_output])
def test_a_thread_that_was_given_up_cannot_be_resumed(make: Callable[[], Dialogue]) -> None:
    dialogue = make()
    dialogue.take(dialogue.turn.interrupt())
    assert not dialogue.turn.can_resume


def test_nothing_comes_from_an_idle_thread() -> None:
    dialogue = idle()
    total = {"total": {"inputTokens": 900, "outputTokens": 9}}
    late = [
        dialogue.agent_notifies("item/agentMessage/delta", itemId="msg_9", delta="late"),
        dialogue.agent_notifies(
            "item/started", item={"type": "commandExecution", "id": "c_1", "command": "ls"}
        ),
        dialogue.agent_notifies("thread/tokenUsage/updated", tokenUsage=total),
        dialogue.calls(1),
        dialogue.completes(),
        dialogue.ends(),
        dialogue.ends("failed"),
        dialogue.wants_output(1),
        dialogue.agent_requests(9, "item/commandExecution/requestApproval", command="ls"),
    ]
    assert late == [[]] * len(late)
    assert [line["error"]["code"] for line in dialogue.sent[-2:]] == [-32601, -32601], (
        "it must not wait for us"
    )
    assert dialogue.turn.can_resume


def test_nothing_comes_from_a_waiting_thread_while_the_agent_asks_for_its_outputs() -> None:
    dialogue = Dialogue(keeps_thread=True).start()
    dialogue.step(1, 2)
    total = {"total": {"inputTokens": 10, "cachedInputTokens": 4, "outputTokens": 2}}
    before = len(dialogue.sent)
    late = [
        dialogue.agent_notifies("item/started", item={"type": "dynamicToolCall", "id": "call_1"}),
        dialogue.wants_output(1),
        dialogue.wants_output(2),
        dialogue.agent_notifies("thread/tokenUsage/updated", tokenUsage=total),
    ]
    assert late == [[]] * 4
    assert dialogue.sent[before:] == []
    assert dialogue.turn.can_resume


def test_a_thread_whose_agent_went_on_without_the_proxys_output_does_not_wait_for_it() -> None:
    dialogue = Dialogue(keeps_thread=True).start()
    dialogue.step(1, 2)
    refused = {"type": "function_call_output", "call_id": "call_1", "output": "failed to parse"}
    assert dialogue.agent_notifies("rawResponseItem/completed", item=refused) == []
    assert not dialogue.turn.can_resume
    assert dialogue.client_replies("call_1", SUNNY) is None
    dialogue.wants_output(2)
    assert dialogue.client_replies("call_2", SUNNY) == tool_output_line(2), (
        "where it is our answer, the turn goes on all the same"
    )


def test_the_next_turn_of_a_thread_that_went_on_without_an_output_waits_for_its_own() -> None:
    dialogue = waiting_for_output()
    refused = {"type": "function_call_output", "call_id": "call_1", "output": "failed to parse"}
    dialogue.agent_notifies("rawResponseItem/completed", item=refused)
    dialogue.completes()
    dialogue.ends()
    second_turn(dialogue)
    dialogue.calls(2, turn=SECOND)
    dialogue.completes(turn=SECOND)
    assert dialogue.turn.can_resume


def test_an_idle_thread_that_the_agent_closes_cannot_be_resumed_and_needs_no_more_requests() -> None:
    dialogue = idle()
    assert dialogue.agent_notifies("thread/closed") == []
    assert not dialogue.turn.can_resume
    assert dialogue.turn.interrupt() == NOTHING
    assert dialogue.turn.finished


# --- idle -----------------------------------------------------------------------------------------


def test_an_idle_thread_takes_what_is_new_and_starts_another_turn_in_one_write() -> None:
    dialogue = idle()
    before = len(dialogue.sent)
    assert dialogue.client_resumes(AGAIN, effort="high") == [ev.TurnStarted(THREAD, "m-1")]
    inject, start = dialogue.sent[before:]
    assert (inject["method"], start["method"]) == ("thread/inject_items", "turn/start")
    assert [item["content"][0]["text"] for item in inject["params"]["items"]] == ["And now?"]
    assert start["params"] == {"threadId": THREAD, "input": [], "effort": "high"}
    assert not dialogue.turn.can_resume


def test_an_idle_agent_gets_the_new_message_as_a_person_would_type_it() -> None:
    dialogue = idle("agent")
    before = len(dialogue.sent)
    dialogue.client_resumes(AGAIN)
    [start] = dialogue.sent[before:]
    assert (start["method"], start["params"]["input"][0]["text"]) == ("turn/start", "And now?")


def test_what_is_new_gets_the_same_ids_as_if_all_had_come_again() -> None:
    keeps_thread, anew = idle(), Dialogue(history=(*HISTORY, AGAIN))
    keeps_thread.client_resumes(AGAIN)
    anew.start_thread()
    [fresh] = keeps_thread.sent[-2]["params"]["items"]
    assert fresh == anew.sent[1]["params"]["items"][-1]


def test_a_second_turn_ends_and_can_be_resumed_as_the_first() -> None:
    dialogue = second_turn(idle())
    said_before = len(dialogue.events)
    dialogue.agent_notifies("item/agentMessage/delta", turnId=SECOND, itemId="msg_2", delta="Yes")
    dialogue.completes(turn=SECOND)
    dialogue.ends(id=SECOND)
    assert dialogue.events[said_before:] == [
        ev.TextDelta("msg_2", "Yes"),
        ev.UsageReported(SPENT, "provider"),
        ev.StepCompleted(SPENT),
        TurnEnded(Stop.STOP),
    ]
    assert dialogue.turn.can_resume
    third = dialogue.client_resumes(AGAIN)
    assert third == [ev.TurnStarted(THREAD, "m-1")]


def test_a_second_turn_reports_its_own_tokens_only() -> None:
    dialogue = second_turn(idle())
    total = {"inputTokens": 20, "cachedInputTokens": 8, "outputTokens": 4, "reasoningOutputTokens": 2}
    assert usages(dialogue.completes(turn=SECOND)) == [SPENT]
    assert usages(dialogue.agent_notifies("thread/tokenUsage/updated", tokenUsage={"total": total})) == [
        SPENT
    ]
    more = total | {"inputTokens": 50}
    assert usages(dialogue.agent_notifies("thread/tokenUsage/updated", tokenUsage={"total": more})) == [
        ev.Usage(40, 4, 2, 1)
    ]


def test_a_second_turn_never_costs_less_than_nothing() -> None:
    dialogue = second_turn(idle())
    told = dialogue.agent_notifies("thread/tokenUsage/updated", tokenUsage={"total": {"inputTokens": 100}})
    assert usages(told) == [ev.Usage(90, 0, 0, 0)]


def test_late_messages_about_the_first_turn_do_not_belong_to_the_second() -> None:
    dialogue = idle()
    dialogue.client_resumes(AGAIN)
    assert dialogue.ends("failed") == [], "the second has no id yet"
    dialogue.agent_starts_turn(SECOND)
    assert dialogue.ends("failed") == []
    assert dialogue.calls(1) == dialogue.completes() == []
    assert dialogue.ends(id=SECOND) == [TurnEnded(Stop.STOP)]


def test_a_message_that_the_first_turn_left_open_is_no_refusal_of_the_second() -> None:
    dialogue = Dialogue(keeps_thread=True).start()
    dialogue.agent_notifies("item/started", item={"type": "agentMessage", "id": "msg_1"})
    assert [type(event) for event in dialogue.ends()] == [ev.RefusalDelta, TurnEnded]
    second_turn(dialogue)
    assert dialogue.ends(id=SECOND) == [TurnEnded(Stop.STOP)]


def test_a_second_turn_that_is_interrupted_is_stopped_by_its_own_id() -> None:
    dialogue = second_turn(idle())
    assert dialogue.take(dialogue.turn.interrupt()) == [TurnEnded(Stop.INTERRUPTED)]
    assert dialogue.sent[-1]["params"] == {"threadId": THREAD, "turnId": SECOND}


def test_an_idle_thread_that_is_given_up_is_forgotten_without_an_event() -> None:
    dialogue = idle()
    before = len(dialogue.methods)
    assert dialogue.take(dialogue.turn.interrupt()) == []
    assert dialogue.methods[before:] == ["thread/unsubscribe"]
    dialogue.agent_answers("thread/unsubscribe")
    assert dialogue.turn.finished


# --- too late -------------------------------------------------------------------------------------


@pytest.mark.parametrize("fresh", [AGAIN, output(1), RawHistoryItem(b"{}"), HistoryCall("c", "f", "{}")])
@pytest.mark.parametrize("make", [idle, waiting_for_output])
def test_a_turn_on_a_thread_whose_child_is_gone_fails_at_once(
    make: Callable[[], Dialogue], fresh: HistoryItem
) -> None:
    dialogue = make()
    dialogue.take(dialogue.turn.eof(Ended(signal=9)))
    assert not dialogue.turn.can_resume
    assert dialogue.turn.finished
    step = dialogue.turn.resume(dialogue.wanted, (fresh,))
    [end] = step.events
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert (end.failure.kind, end.failure.message, step.writes) == ("agent_crashed", LOST, b"")
    assert dialogue.turn.finished


def test_a_turn_on_a_thread_that_runs_fails_and_what_runs_is_stopped() -> None:
    dialogue = Dialogue().start()
    dialogue.client_resumes(AGAIN)
    assert dialogue.failure() == "agent_crashed"
    assert dialogue.methods[3:] == ["turn/interrupt"]


def test_a_child_that_dies_after_a_thread_was_resumed_fails_the_new_turn() -> None:
    for dialogue in (second_turn(idle()), waiting_for_output()):
        if dialogue.turn.can_resume:
            dialogue.client_resumes(output(1))
        [end] = dialogue.take(dialogue.turn.eof(Ended(code=1)))
        assert isinstance(end, TurnEnded)
        assert end.stop == Stop.FAILED


def test_the_death_of_a_child_ends_a_waiting_turn_and_is_nothing_to_an_idle_thread() -> None:
    assert idle().turn.eof(Ended()) == NOTHING
    [end] = waiting_for_output().turn.eof(Ended()).events
    assert isinstance(end, TurnEnded)
