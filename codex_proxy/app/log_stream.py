"""The stream of the log: a line that cannot be written is dropped and counted, so that a full disk or a reader that has
ended or does not read cannot stop the server.
"""

from __future__ import annotations

import io
import os
import select
import sys
from typing import Final

PATIENCE_SECONDS: Final = 0.1
"""Seconds that a line waits for a reader that is behind. After a line has waited in vain, the next ones do not wait
until the reader reads.
"""
PIECE: Final = select.PIPE_BUF
"""Bytes that a pipe takes at once if it takes any."""


class LogStream(io.TextIOBase):
    """Writes to a descriptor; never raises, or waits for longer than `PATIENCE_SECONDS`."""

    def __init__(self, descriptor: int) -> None:
        self.lost = 0
        """Texts lost since the last that was written."""
        self._descriptor = descriptor
        self._poll = select.poll()
        self._poll.register(descriptor, select.POLLOUT)
        self._cut = False
        """Whether only the beginning of the last text was written."""

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        if self._cut:
            data = b"\n" + data
        if self._write_all(data):
            self.lost = 0
        else:
            self.lost += 1
        return len(text)

    def _write_all(self, data: bytes) -> bool:
        for start in range(0, len(data), PIECE):
            if not self._poll.poll(0 if self.lost else PATIENCE_SECONDS * 1000):
                return False
            try:
                written = os.write(self._descriptor, data[start : start + PIECE])
            except OSError:
                return False  # the disk is full, or nobody reads any more
            self._cut = start + written < len(data)
            if written < min(PIECE, len(data) - start):
                return False
        return True

    def fileno(self) -> int:
        return self._descriptor

    def isatty(self) -> bool:
        return os.isatty(self._descriptor)


def use_log_streams() -> None:
    """Puts log streams in the place of stdout and stderr. A closed standard descriptor is opened on /dev/null first:
    otherwise the next file or socket would get its number, and its output.
    """
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
            os.set_inheritable(null, True)
    sys.stdout, sys.stderr = LogStream(1), LogStream(2)
