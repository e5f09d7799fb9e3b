"""An answer without text, refusal and call is never silent: it is an error, or its end says why."""

from __future__ import annotations

from typing import Any

import pytest

from codex_proxy.core import events as ev
from codex_proxy.core.events import (
    NO_MODEL_CALL,
    PERMISSION_DECLINED,
    Event,
    ItemEnded,
    ItemStarted,
    Stop,
    TextDelta,
    TurnEnded,
    Usage,
)
from codex_proxy.core.faults import FaultKind
from codex_proxy.core.items import Activity, Message, Reasoning, ToolCall
from tests.runs.actors import DONE, end_of
from tests.runs.test_run import begin_run
from tests.runs.virtual import virtual

NO_TEXT: list[Event] = [ItemStarted(Message("a")), ItemEnded("a")]
USAGE = ev.UsageReported(Usage(input=10, output=1), "provider")
STEP = ev.StepCompleted()
THOUGHT: list[Event] = [ItemStarted(Reasoning("r")), ev.ReasoningDelta("r", "Hm.")]
WORK: list[Event] = [ItemStarted(Activity("w", "file_change", "Write a.txt")), ItemEnded("w")]
APPROVAL = ev.ApprovalRequested("ask_1", "command", "")


async def end_after(*events: Event, **turn: Any) -> TurnEnded:
    """The end of a turn with these events."""
    run, lane, _ = await begin_run(**turn)
    lane.say(ev.TurnStarted(), *events)
    return end_of(run)


@pytest.mark.parametrize(
    ("events", "reason"),
    [
        ([*NO_TEXT, USAGE], "no-output"),
        ([STEP], "no-output"),
        ([*THOUGHT, USAGE], "reasoning-only"),
        ([*WORK, *THOUGHT], "activity-only"),
    ],
)
@virtual
async def test_an_empty_answer_that_the_turn_explains_says_why(events: list[Event], reason: str) -> None:
    assert await end_after(*events, DONE) == TurnEnded(Stop.STOP, empty=reason)  # type: ignore[arg-type]


@pytest.mark.parametrize("nothing", [[], NO_TEXT, [ev.UsageReported(Usage(input=10), "provider")]])
@virtual
async def test_an_empty_answer_that_nothing_explains_is_a_failure(nothing: list[Event]) -> None:
    end = await end_after(*nothing, DONE)
    assert (end.stop, end.failure) == (Stop.FAILED, NO_MODEL_CALL)


@pytest.mark.parametrize("before", [[], WORK, THOUGHT])
@virtual
async def test_an_empty_answer_after_a_declined_permission_is_a_failure(before: list[Event]) -> None:
    end = await end_after(*before, APPROVAL, USAGE, DONE)
    assert (end.stop, end.failure) == (Stop.FAILED, PERMISSION_DECLINED)
    assert PERMISSION_DECLINED.kind is FaultKind.NOT_ALLOWED, "a client that tries again gets the same"


@pytest.mark.parametrize(
    "content",
    [
        [ItemStarted(Message("a")), TextDelta("a", " ")],
        [ev.RefusalDelta("a", "No.")],
        [ItemStarted(ToolCall("c", "call_1", "f")), ItemEnded("c")],
    ],
)
@virtual
async def test_text_a_refusal_or_a_call_is_no_empty_answer(content: list[Event]) -> None:
    assert await end_after(APPROVAL, *content, DONE) == DONE


@pytest.mark.parametrize("stop", [Stop.LENGTH, Stop.CONTENT_FILTER, "provider_word"])
@virtual
async def test_an_empty_answer_whose_stop_reason_says_why_stays_as_it_is(stop: str) -> None:
    assert await end_after(TurnEnded(stop)) == TurnEnded(stop)


@virtual
async def test_an_answer_that_begins_with_the_stop_sequence_is_empty_because_of_it() -> None:
    end = await end_after(ItemStarted(Message("a")), TextDelta("a", "END of it"), stop=("END",))
    assert (end.stop, end.stop_sequence, end.empty) == (Stop.STOP, "END", "stop-sequence")
    end = await end_after(ItemStarted(Message("a")), TextDelta("a", "It. END of it"), stop=("END",))
    assert (end.stop_sequence, end.empty) == ("END", "")


@pytest.mark.parametrize("stops", [None, {0: "stop", 1: "interrupted"}])
@virtual
async def test_a_turn_that_the_agent_cancels_says_so_behind_its_text(stops: dict[int, str] | None) -> None:
    said: list[Event] = [ItemStarted(Message("a")), TextDelta("a", "Half")]
    cancelled = TurnEnded(Stop.STOP if stops else Stop.INTERRUPTED, choice_stops=stops)
    end = await end_after(*said, cancelled)
    assert (end.stop, end.failure, end.empty) == (cancelled.stop, None, "cancelled")


@virtual
async def test_a_cancelled_turn_without_a_text_is_an_empty_answer_as_any_other() -> None:
    cancelled = TurnEnded(Stop.INTERRUPTED)
    assert (await end_after(USAGE, cancelled)).empty == "cancelled"
    assert (await end_after(cancelled)).failure == NO_MODEL_CALL
    assert (await end_after(APPROVAL, USAGE, cancelled)).failure == PERMISSION_DECLINED


@virtual
async def test_a_turn_that_its_client_interrupts_needs_no_reason() -> None:
    run, lane, _ = await begin_run()
    lane.say(ev.TurnStarted(), ItemStarted(Message("a")), TextDelta("a", "Half"))
    run.interrupt()
    assert end_of(run) == TurnEnded(Stop.INTERRUPTED)
