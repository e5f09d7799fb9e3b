"""What is remembered of turns: names, times and counts, in bounded numbers, and no text."""

from __future__ import annotations

from codex_proxy.core.events import (
    ItemEnded,
    ItemStarted,
    Stop,
    TextDelta,
    ToolCallRequested,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Message
from codex_proxy.core.turn import Turn
from codex_proxy.runs.observers import MAX_EVENTS, MAX_TURNS, TurnRecord, TurnRecords


class GivenClock:
    """A clock that shows what it was set to."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def epoch(self) -> float:
        return 1000.0 + self.now


def begin_record(records: TurnRecords, owner: str = "a") -> TurnRecord:
    return records.begin(Turn(model="m", history=(), owner=owner), "fake")


def test_a_turn_has_the_times_of_its_first_word_and_its_end_and_its_tokens() -> None:
    clock = GivenClock()
    records = TurnRecords(clock)
    record = begin_record(records)
    record.add([TurnStarted()])
    clock.now = 2.0
    record.add([ItemStarted(Message("m")), TextDelta("m", "secret words")])
    assert (record.summary().first, record.summary().doing) == (2.0, "writing the answer")
    clock.now = 5.0
    usage = UsageReported(Usage(input=10, output=3), "provider")
    record.add([TextDelta("m", "more"), ItemEnded("m"), usage, TurnEnded(Stop.STOP)])
    summary = record.summary()
    assert (summary.started, summary.first, summary.seconds) == (1000.0, 2.0, 5.0)
    assert (summary.input, summary.output, summary.end, summary.error) == (10, 3, "stop", None)
    assert [each.event for each in record.timeline] == [
        "first_word",
        "item_started",
        "item_ended",
        "turn_ended",
    ]
    assert "secret" not in repr((summary, record.timeline))


def test_a_failed_turn_says_why() -> None:
    record = begin_record(TurnRecords(GivenClock()))
    record.add([TurnEnded(Stop.FAILED, failure=Failure(kind=FaultKind.TIMED_OUT, message="Too slow."))])
    assert (record.summary().error, record.summary().message) == ("timed_out", "Too slow.")


def test_a_turn_that_fails_at_once_has_no_first_word() -> None:
    record = begin_record(TurnRecords(GivenClock()))
    record.add([TurnEnded(Stop.FAILED, failure=Failure(kind=FaultKind.TIMED_OUT, message="Too slow."))])
    assert record.summary().first is None


def test_tokens_of_a_turn_are_estimated_while_it_runs() -> None:
    records = TurnRecords(GivenClock())
    record, other = begin_record(records), begin_record(records, "b")
    record.add([ItemStarted(Message("m")), TextDelta("m", "12345678")])
    record.add([TextDelta("m", "9")])
    assert records.estimates("a") == {record.id: 3}
    assert (record.summary().estimated, record.summary().output) == (3, None)
    other.add([TurnEnded(Stop.STOP)])
    assert records.estimates("b") == {}


def test_tokens_of_a_call_that_has_only_begun_do_not_replace_the_estimate() -> None:
    records = TurnRecords(GivenClock())
    record = begin_record(records)
    record.add([TurnStarted(), UsageReported(Usage(5231), "provider", partial=True)])
    record.add([ItemStarted(Message("m")), TextDelta("m", "a" * 400)])
    shown = record.summary()
    assert (shown.input, shown.output, shown.estimated) == (None, None, 100)


def test_two_processes_have_no_number_of_a_turn_in_common() -> None:
    first, second = (TurnRecords(GivenClock(), worker) for worker in (1, 2))
    assert begin_record(first).id != begin_record(second).id


def test_text_alone_changes_no_record() -> None:
    records = TurnRecords(GivenClock())
    record = begin_record(records)
    record.add([ItemStarted(Message("m")), TextDelta("m", "a")])
    version = records.version
    record.add([TextDelta("m", "b")] * 100)
    assert records.version == version


def test_an_owner_gets_the_own_records_that_have_changed_newest_first() -> None:
    records = TurnRecords(GivenClock())
    first, other, second = begin_record(records), begin_record(records, "b"), begin_record(records)
    seen = records.version
    assert records.of_owner("a") == [second, first]
    first.add([TurnEnded(Stop.STOP)])
    assert records.of_owner("a", after=seen) == [first]
    assert records.find("a", other.id) is None
    assert records.find("b", other.id) is other


def test_the_number_of_turns_and_of_their_events_is_bounded() -> None:
    records = TurnRecords(GivenClock())
    record = begin_record(records)
    record.add([ToolCallRequested("r", "c", "tool", "{}", "c")] * (MAX_EVENTS + 7))
    record.add([TurnEnded(Stop.STOP)])
    assert (len(record.timeline), record.events_left_out) == (MAX_EVENTS + 1, 7)
    for _ in range(MAX_TURNS):
        begin_record(records).add([TurnEnded(Stop.STOP)])
    assert len(records.of_owner("a")) == MAX_TURNS
    assert records.find("a", record.id) is None


def test_an_owner_with_many_turns_displaces_none_of_another() -> None:
    records = TurnRecords(GivenClock())
    other = begin_record(records, "b")
    other.add([TurnEnded(Stop.STOP)])
    for _ in range(MAX_TURNS + 1):
        begin_record(records).add([TurnEnded(Stop.STOP)])
    assert records.find("b", other.id) is other
    assert len(records.of_owner("a")) == MAX_TURNS - 1
