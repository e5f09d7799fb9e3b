"""The ends of a pipe do not wake the event loop when they have nothing to do."""

import asyncio
import os

import pytest

from codex_proxy.process.pipes import PipeReader, PipeWriter
from tests.waiting import eventually


async def test_a_writer_that_has_sent_everything_no_longer_wakes_the_loop() -> None:
    loop = asyncio.get_running_loop()
    read_end, write_end = os.pipe()
    received = bytearray()
    reader = PipeReader(loop, read_end, received.extend, lambda: None)
    writer = PipeWriter(loop, write_end)
    writer.write(b"x" * 1_000_000)
    assert writer.unsent > 0
    await eventually(lambda: len(received) == 1_000_000)
    assert writer.unsent == 0
    assert not loop.remove_writer(write_end), "nothing was registered any more"
    writer.close()
    reader.close()


async def test_what_is_written_in_one_turn_of_the_loop_goes_out_in_one_piece() -> None:
    loop = asyncio.get_running_loop()
    read_end, write_end = os.pipe()
    chunks: list[bytes] = []
    reader = PipeReader(loop, read_end, chunks.append, lambda: None)
    writer = PipeWriter(loop, write_end)
    for word in (b"one ", b"two ", b"three"):
        writer.write(word)
    writer.close_when_sent()
    reader.read_available(100)
    assert chunks == [], "it is not sent yet"
    await eventually(lambda: reader.at_end)
    assert chunks == [b"one two three"]


async def test_a_write_that_waits_for_the_loop_is_dropped_by_a_close() -> None:
    loop = asyncio.get_running_loop()
    read_end, write_end = os.pipe()
    chunks: list[bytes] = []
    reader = PipeReader(loop, read_end, chunks.append, lambda: None)
    writer = PipeWriter(loop, write_end)
    writer.write(b"unsent")
    writer.close()
    await eventually(lambda: reader.at_end)
    assert chunks == []


@pytest.mark.parametrize("size", [6, 1 << 20])
async def test_a_write_that_breaks_ends_the_reader(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also one that waits until the full pipe has room."""

    def fail(*_: object) -> int:
        raise MemoryError

    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda *_: None)
    read_end, write_end = os.pipe()
    reader = PipeReader(loop, read_end, lambda _: None, lambda: None)
    writer = PipeWriter(loop, write_end)
    writer.write(b"." * size)
    with monkeypatch.context() as broken:
        broken.setattr(os, "write", fail)
        writer.write(b"unsent")
        await eventually(lambda: reader.at_end)
    assert writer.unsent == 0


async def test_a_reader_reports_the_end_once_and_not_when_it_was_closed_here() -> None:
    loop = asyncio.get_running_loop()
    ends: list[str] = []
    read_end, write_end = os.pipe()
    ended = PipeReader(loop, read_end, lambda _: None, lambda: ends.append("of the writer"))
    os.close(write_end)
    await eventually(lambda: ended.at_end)
    ended.read_available(100)
    ended.close()

    read_end, write_end = os.pipe()
    closed = PipeReader(loop, read_end, lambda _: None, lambda: ends.append("from here"))
    closed.close()
    closed.resume()
    os.close(write_end)
    assert ends == ["of the writer"]
