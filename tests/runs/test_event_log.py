"""One log, many readers: each at its own place, none left waiting, and no more memory than the slowest needs."""

from __future__ import annotations

import asyncio

import pytest

from codex_proxy.core.events import Event, Notice, ReasoningDelta, TextDelta
from codex_proxy.runs.event_log import EVENTS_AT_ONCE, LOW_WATER, TEXT_AT_ONCE, EventLog
from tests.runs.virtual import settle, virtual


def note(number: int) -> Event:
    return Notice(str(number))


def numbers(events: list[Event]) -> list[int]:
    return [int(event.code) for event in events if isinstance(event, Notice)]


def test_two_readers_see_the_same_each_in_its_own_time() -> None:
    log = EventLog()
    quick, slow = log.cursor(), log.cursor()
    log.append([note(1)], 10)
    assert numbers(quick.take()) == [1]
    log.append([note(2), note(3)], 10, ended=True)
    assert numbers(quick.take()) == [2, 3]
    assert numbers(slow.take()) == [1, 2, 3]
    assert quick.finished
    assert slow.finished


def test_a_late_reader_begins_with_what_the_log_still_holds() -> None:
    log = EventLog()
    log.append([note(1)], 10)
    early = log.cursor()
    early.take()  # the only reader has seen it: it is gone
    log.append([note(2)], 10)
    late = log.cursor()
    assert log.backlog == 10
    assert numbers(late.take()) == [2]
    early.take()
    assert log.backlog == 0


def test_events_that_every_reader_has_seen_are_dropped() -> None:
    log = EventLog()
    quick, slow = log.cursor(), log.cursor()
    for number in range(100):
        log.append([note(number)], 1)
        quick.take()
    assert len(list(log.batches)) == 100, "the slow one has not seen it"
    slow.take()
    assert list(log.batches) == []
    assert log.end == 100


def test_the_backlog_is_that_of_the_slowest_reader_and_goes_with_it() -> None:
    told: list[int] = []
    log = EventLog(told.append)
    quick, slow = log.cursor(), log.cursor()
    log.append([note(1)], LOW_WATER)
    quick.take()
    assert told[-1] == log.backlog == LOW_WATER
    slow.detach()
    assert told[-1] == log.backlog == 0
    slow.detach()


def test_a_reader_that_is_hardly_behind_concerns_nobody() -> None:
    told: list[int] = []
    log = EventLog(told.append)
    reader = log.cursor()
    log.append([note(1)], LOW_WATER - 1)
    reader.take()
    assert told == []
    log.append([note(2)], LOW_WATER)
    reader.take()
    log.append([note(3)], 1)
    assert told == [LOW_WATER, 0]


def test_without_readers_nothing_is_dropped_and_nobody_is_behind() -> None:
    log = EventLog()
    log.append([note(1)], 30, ended=True)
    assert log.backlog == 0
    assert numbers(log.cursor().take()) == [1]


@virtual
async def test_a_reader_that_waits_is_woken_by_news_and_by_the_end() -> None:
    log = EventLog()
    cursor = log.cursor()
    for number, ended in ((1, False), (2, True)):
        waiting = asyncio.create_task(cursor.wait())
        await settle()
        assert not waiting.done()
        log.append([note(number)], 1, ended=ended)
        await waiting
        assert numbers(cursor.take()) == [number]
    await cursor.wait()
    assert cursor.take() == []


@virtual
async def test_a_reader_whose_wait_was_cut_off_can_wait_again() -> None:
    log = EventLog()
    cursor = log.cursor()
    waiting = asyncio.create_task(cursor.wait())
    await settle()
    waiting.cancel()
    log.append([note(1)], 1)
    await cursor.wait()
    assert numbers(cursor.take()) == [1]
    await asyncio.gather(waiting, return_exceptions=True)


def test_events_that_a_reader_has_taken_for_another_are_its_backlog_until_they_are_passed_on() -> None:
    told: list[int] = []
    log = EventLog(told.append)
    reader = log.cursor()
    log.append([note(1)], LOW_WATER)
    assert numbers(reader.take(passed_on=False)) == [1]
    assert log.backlog == LOW_WATER
    assert list(log.batches) == [], "the log holds it no more"
    log.append([note(2)], LOW_WATER)
    reader.pass_on()
    assert told[-1] == log.backlog == LOW_WATER, "the second was not taken"
    reader.take()
    assert told[-1] == log.backlog == 0


# --- pushes ---------------------------------------------------------------------------------------


class PushReader:
    """A reader that takes what is pushed as long as it is `able`."""

    def __init__(self, log: EventLog) -> None:
        self.cursor = log.cursor()
        self.able = True
        self.numbers: list[int] = []
        self.waiting = asyncio.create_task(self.cursor.wait(self.push))

    def push(self) -> bool:
        if self.able:
            self.numbers += numbers(self.cursor.take())
        return self.able


@virtual
async def test_a_push_takes_what_is_appended_while_its_reader_goes_on_waiting() -> None:
    log = EventLog()
    reader = PushReader(log)
    await settle()
    log.append([note(1)], 10)
    log.append([note(2)], 10)
    assert reader.numbers == [1, 2]
    assert log.backlog == 0
    await settle()
    assert not reader.waiting.done()
    log.append([note(3)], 10, ended=True)
    await reader.waiting
    assert reader.numbers == [1, 2], "the end is not pushed"
    assert numbers(reader.cursor.take()) == [3]


@virtual
async def test_events_that_a_push_leaves_are_backlog_and_end_the_wait() -> None:
    log = EventLog()
    reader = PushReader(log)
    await settle()
    reader.able = False
    log.append([note(1)], 10)
    reader.able = True
    log.append([note(2)], 10)  # its reader has not run yet, and is to see the first before this
    assert reader.numbers == []
    assert log.backlog == 20
    await reader.waiting
    assert numbers(reader.cursor.take()) == [1, 2]


@virtual
async def test_an_error_of_a_push_is_its_readers() -> None:
    log = EventLog()
    cursor, other = log.cursor(), PushReader(log)

    def breaks() -> bool:
        raise ValueError("it breaks")

    waiting = asyncio.create_task(cursor.wait(breaks))
    await settle()
    log.append([note(1)], 10)
    assert other.numbers == [1]
    with pytest.raises(ValueError, match="it breaks"):
        await waiting
    assert numbers(cursor.take()) == [1]
    other.waiting.cancel()


@virtual
async def test_events_that_are_appended_by_a_push_come_after_it() -> None:
    log = EventLog()
    cursor = log.cursor()
    written: list[int] = []

    def push() -> bool:
        got = numbers(cursor.take())
        if got == [1]:
            log.append([note(2)], 10)
        written.extend(got)
        return True

    waiting = asyncio.create_task(cursor.wait(push))
    await settle()
    log.append([note(1)], 10)
    assert written == [1]
    await waiting
    assert numbers(cursor.take()) == [2]


@virtual
async def test_nothing_is_pushed_to_a_reader_that_does_not_wait() -> None:
    log = EventLog()
    reader = PushReader(log)
    await settle()
    reader.waiting.cancel()
    log.append([note(1)], 10)
    await settle()
    log.append([note(2)], 10)
    assert reader.numbers == []
    assert numbers(reader.cursor.take()) == [1, 2]


async def test_a_reader_that_is_behind_is_given_a_part_at_once_and_others_are_served_in_between() -> None:
    log = EventLog()
    cursor = log.cursor()
    log.append([TextDelta("m", str(number)) for number in range(4 * EVENTS_AT_ONCE)], 4000, ended=True)
    others = 0
    taken: list[int] = []

    async def serve() -> None:
        nonlocal others
        while not cursor.finished:
            others += 1
            await asyncio.sleep(0)

    serving = asyncio.create_task(serve())
    while not cursor.finished:
        await cursor.wait()
        taken.append(len(cursor.take()))
    await serving
    assert taken == [EVENTS_AT_ONCE] * 4
    assert others >= 3
    assert cursor.seen == log.appended == 4000


@pytest.mark.parametrize(
    "text", ["words " * TEXT_AT_ONCE, "\ud83d\ude00" * TEXT_AT_ONCE], ids=["words", "pairs"]
)
def test_a_long_text_is_given_in_pieces_one_at_once_that_are_together_the_text(text: str) -> None:
    log = EventLog()
    cursor = log.cursor()
    log.append([note(1), ReasoningDelta("r", text, 2, "summary"), note(2)], 10, ended=True)
    taken: list[list[Event]] = []
    while not cursor.finished:
        taken.append(cursor.take())
    pieces = [event for events in taken for event in events if isinstance(event, ReasoningDelta)]
    assert "".join(piece.text for piece in pieces) == text
    assert {(piece.id, piece.part, piece.kind) for piece in pieces} == {("r", 2, "summary")}
    assert max(sum(len(getattr(event, "text", "")) for event in events) for events in taken) <= TEXT_AT_ONCE
    assert all(piece.text.encode("utf-16-le", "surrogatepass").decode("utf-16-le") for piece in pieces)
    assert (cursor.seen, log.appended) == (10, 10)
