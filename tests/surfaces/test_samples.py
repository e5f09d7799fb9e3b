"""Several turns, told as one with several choices."""

from __future__ import annotations

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    StepCompleted,
    Stop,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Message, ToolCall
from codex_proxy.surfaces.answers.samples import Samples

CRASH = Failure(kind=FaultKind.AGENT_CRASHED, message="It crashed.")


def message(text: str, choice: int | None = None) -> list[Event]:
    return [TurnStarted(), ItemStarted(Message("m", choice)), TextDelta("m", text), ItemEnded("m")]


def test_items_of_the_same_name_in_two_turns_are_two_items_of_two_choices() -> None:
    samples = Samples(2)
    events = samples.feed(0, message("a")) + samples.feed(1, message("b"))
    assert events == [
        ItemStarted(Message("0/m", choice=0)),
        TextDelta("0/m", "a"),
        ItemEnded("0/m"),
        ItemStarted(Message("1/m", choice=1)),
        TextDelta("1/m", "b"),
        ItemEnded("1/m"),
    ]


def test_a_call_keeps_the_id_that_its_own_turn_gave_it() -> None:
    samples = Samples(2)
    call: list[Event] = [ItemStarted(ToolCall("i", call_id="call_x", name="f")), ArgumentsDelta("i", "{}")]
    started, delta = samples.feed(1, call)
    assert started == ItemStarted(ToolCall("1/i", call_id="call_x", name="f", choice=1))
    assert delta == ArgumentsDelta("1/i", "{}")


def test_the_common_turn_ends_when_the_last_one_has_with_a_reason_for_each() -> None:
    samples = Samples(2)
    assert samples.feed(1, [TurnEnded("length", "token_count")]) == []
    assert not samples.ended
    end = TurnEnded("stop", "task_complete", choice_stops={0: "stop", 1: "length"})
    assert samples.feed(0, [TurnEnded("stop")]) == [end]
    assert samples.ended


def test_the_prompt_counts_once_and_the_answers_are_summed() -> None:
    samples = Samples(2)
    samples.feed(0, [UsageReported(Usage(10, 4, 3, 1)), TurnEnded("stop")])
    events = samples.feed(1, [StepCompleted(Usage(10, 4, 5, 2)), TurnEnded("stop")])
    assert events[0] == UsageReported(Usage(10, 4, 8, 3), "token_count")


def test_usage_of_several_turns_is_estimated_where_one_of_them_reports_none() -> None:
    samples = Samples(2)
    samples.feed(0, [UsageReported(Usage(10, 0, 3, 0)), TurnEnded("stop")])
    assert [type(event) for event in samples.feed(1, [TurnEnded("stop")])] == [TurnEnded]


def test_if_one_turn_reported_a_part_of_its_usage_the_whole_is_partial() -> None:
    samples = Samples(2)
    samples.feed(0, [UsageReported(Usage(10, 0, 3, 0)), TurnEnded("stop")])
    events = samples.feed(1, [UsageReported(Usage(10, 0, 5, 0), partial=True), TurnEnded("stop")])
    assert events[0] == UsageReported(Usage(10, 0, 8, 0), "token_count", partial=True)


def test_the_first_failure_ends_it_and_nothing_follows() -> None:
    samples = Samples(2)
    failed = TurnEnded(Stop.FAILED, "provider", CRASH)
    assert samples.feed(1, [failed, *message("late")]) == [failed]
    assert samples.ended
    assert samples.feed(0, [*message("later"), TurnEnded("stop")]) == []


def test_of_a_turn_that_itself_reports_several_choices_only_the_first_was_asked_for() -> None:
    samples = Samples(2)
    assert samples.feed(0, message("second", choice=1)) == []
    assert len(samples.feed(0, message("first", choice=0))) == 3
    samples.feed(0, [TurnEnded("stop", choice_stops={0: "length", 1: "stop"})])
    (end,) = samples.feed(1, [TurnEnded("stop")])
    assert isinstance(end, TurnEnded)
    assert end.choice_stops == {0: "length", 1: "stop"}
