"""A buffer of frames and its readers: each has everything, in its own time, and nobody holds what nobody wants."""

from __future__ import annotations

import asyncio

from codex_proxy.responses.running import FrameBuffer, FrameReader
from codex_proxy.runs.event_log import TAKEN_AT_ONCE
from codex_proxy.store.values import Frame
from tests.runs.virtual import settle, virtual


def frames(*numbers: int) -> list[Frame]:
    return [(number, b"x" * 10) for number in numbers]


def test_each_reader_takes_every_frame_in_its_own_time() -> None:
    buffer = FrameBuffer()
    quick, slow = buffer.reader(), buffer.reader()
    buffer.append(frames(0))
    assert quick.take() == frames(0)
    buffer.append(frames(1, 2))
    assert quick.take() == frames(1, 2)
    assert slow.take() == frames(0, 1, 2)
    assert quick.take() == slow.take() == []


def test_a_late_reader_takes_what_comes_from_then_on_and_can_see_what_it_has_missed() -> None:
    buffer = FrameBuffer()
    assert buffer.next == 0
    buffer.append(frames(0, 1))
    late = buffer.reader()
    assert buffer.next == 2
    buffer.append(frames(2))
    assert late.take() == frames(2)


def test_the_buffer_is_drained_whenever_no_reader_has_anything_left() -> None:
    drained: list[int] = []
    buffer = FrameBuffer(lambda: drained.append(buffer.next))
    quick, slow = buffer.reader(), buffer.reader()
    buffer.append([])
    assert drained == [0]
    buffer.append(frames(0))
    quick.take()
    assert drained == [0]
    slow.take()
    assert drained == [0, 1]
    buffer.append(frames(1))
    quick.take()
    slow.close()
    assert drained == [0, 1, 2]


def test_without_readers_nothing_is_held() -> None:
    drained: list[int] = []
    buffer = FrameBuffer(lambda: drained.append(buffer.next))
    buffer.append(frames(0, 1))
    assert drained == [2]
    assert buffer.reader().take() == []


def test_a_bounded_reader_that_falls_behind_loses_its_frames_and_reports_one_overrun() -> None:
    buffer = FrameBuffer()
    bounded, other = buffer.reader(max_bytes=25), buffer.reader()
    buffer.append(frames(0, 1))
    assert not bounded.overrun
    buffer.append(frames(2))
    buffer.append(frames(3))
    assert bounded.overrun
    assert bounded.take() == []
    assert not bounded.overrun
    buffer.append(frames(4))
    assert bounded.take() == frames(4)
    assert other.take() == frames(0, 1, 2, 3, 4)


async def pushed_to(reader: FrameReader) -> tuple[list[list[Frame]], asyncio.Task[None]]:
    """A task that waits with a push, and the frames that were pushed to it."""
    pushed: list[list[Frame]] = []

    def push() -> bool:
        pushed.append(reader.take())
        return True

    waiting = asyncio.create_task(reader.wait(push))
    await settle()
    return pushed, waiting


@virtual
async def test_a_reader_that_waits_is_woken_by_frames_and_by_the_end() -> None:
    buffer = FrameBuffer()
    reader = buffer.reader()
    waiting = asyncio.create_task(reader.wait())
    await settle()
    assert not waiting.done()
    buffer.append(frames(0))
    await waiting
    assert reader.take() == frames(0)
    waiting = asyncio.create_task(reader.wait())
    await settle()
    buffer.end()
    await waiting
    assert not reader.finished, "it has not taken the end"
    assert reader.take() == []
    assert reader.finished


@virtual
async def test_a_reader_whose_wait_was_cut_off_can_wait_again() -> None:
    buffer = FrameBuffer()
    reader = buffer.reader()
    waiting = asyncio.create_task(reader.wait())
    await settle()
    waiting.cancel()
    buffer.append(frames(0))
    await reader.wait()
    assert reader.take() == frames(0)
    await asyncio.gather(waiting, return_exceptions=True)


@virtual
async def test_a_reader_of_a_buffer_that_has_ended_is_finished_with_its_first_look() -> None:
    buffer = FrameBuffer()
    early = buffer.reader()
    buffer.append(frames(0))
    buffer.end()
    late = buffer.reader()
    await late.wait()
    assert late.take() == []
    assert late.finished
    assert early.take() == frames(0), "what it had not taken is still there"
    assert early.finished


@virtual
async def test_the_last_frames_are_not_pushed_but_taken_with_the_end() -> None:
    buffer = FrameBuffer()
    reader = buffer.reader()
    pushed, waiting = await pushed_to(reader)
    buffer.append(frames(0))
    buffer.append(frames(1), last=True)
    buffer.end()
    await waiting
    assert pushed == [frames(0)]
    assert reader.take() == frames(1)
    assert reader.finished


@virtual
async def test_of_much_that_waits_a_part_is_taken_at_a_time_and_the_end_with_the_last() -> None:
    drained: list[int] = []
    buffer = FrameBuffer(lambda: drained.append(buffer.next))
    reader = buffer.reader()
    sizes = [40_000, 20_000, 40_000, 3 * TAKEN_AT_ONCE, 10, 10]
    given = [(number, bytes(size)) for number, size in enumerate(sizes)]
    buffer.append(given[:2])
    buffer.append(given[2:], last=True)
    buffer.end()
    taken: list[list[Frame]] = []
    while not reader.finished:
        await reader.wait()
        taken.append(reader.take())
    assert taken == [given[:2], given[2:3], given[3:4], given[4:]]
    assert drained == []


@virtual
async def test_a_reader_that_has_left_a_part_counts_as_behind() -> None:
    drained: list[int] = []
    buffer = FrameBuffer(lambda: drained.append(buffer.next))
    reader = buffer.reader()
    buffer.append([(0, bytes(TAKEN_AT_ONCE)), (1, b"x")])
    reader.take()
    assert drained == []
    reader.take()
    assert drained == [2]


@virtual
async def test_a_batch_that_is_too_large_to_be_pushed_is_left_to_the_reader() -> None:
    buffer = FrameBuffer()
    reader = buffer.reader()
    pushed, waiting = await pushed_to(reader)
    buffer.append([(0, bytes(TAKEN_AT_ONCE)), (1, b"x")])
    await waiting
    assert not pushed
    assert [len(reader.take()), len(reader.take())] == [1, 1]
