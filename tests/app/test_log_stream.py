"""The stream of the log keeps the server running, whatever becomes of the log."""

from __future__ import annotations

import fcntl
import os
import select
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from codex_proxy.app.logs import PATIENCE_SECONDS, LogStream


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """A small pipe: its two ends."""
    reader, writer = os.pipe()
    if hasattr(fcntl, "F_SETPIPE_SZ"):
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 4 * select.PIPE_BUF)
    yield reader, writer
    for end in (reader, writer):
        with suppress(OSError):  # a test may have closed it
            os.close(end)


def test_lines_are_written_whole_whatever_their_length(pipe: tuple[int, int]) -> None:
    stream = LogStream(pipe[1])
    stream.write("one\n")
    stream.write("zwei: \u00e4\ud800\n")
    assert os.read(pipe[0], 100) == "one\nzwei: ä\\ud800\n".encode()
    assert stream.lost == 0


def test_a_reader_that_does_not_read_costs_lines_and_one_short_wait(pipe: tuple[int, int]) -> None:
    stream = LogStream(pipe[1])
    line = "x" * 999 + "\n"
    began = time.monotonic()
    for _ in range(1000):
        stream.write(line)
    assert time.monotonic() - began < 100 * PATIENCE_SECONDS
    assert stream.lost > 900
    os.read(pipe[0], 1 << 20)
    stream.write("again\n")
    assert stream.lost == 0
    assert os.read(pipe[0], 100) == b"again\n"


def test_the_line_after_one_that_was_cut_begins_a_new_line(pipe: tuple[int, int]) -> None:
    stream = LogStream(pipe[1])
    stream.write("x" * 50_000 + "\n")
    assert stream.lost == 1
    os.read(pipe[0], 1 << 20)
    stream.write("whole\n")
    assert os.read(pipe[0], 100) == b"\nwhole\n"


def test_a_reader_that_has_ended_costs_nothing_but_the_lines(pipe: tuple[int, int]) -> None:
    os.close(pipe[0])
    stream = LogStream(pipe[1])
    stream.write("one\n")
    stream.write("two\n")
    assert stream.lost == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="only Linux has /dev/full")
def test_a_full_disk_costs_nothing_but_the_lines() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    try:
        stream = LogStream(full)
        stream.write("one\n")
        assert stream.lost == 1
    finally:
        os.close(full)
