"""Reads files in folders in which others work: no link is followed, and nothing waits for a pipe."""

from __future__ import annotations

import errno
import os
import stat
import time
from typing import Final

from codex_proxy.files.changes import FRESH, StatusMark, status_mark

READS: Final = 3
"""How often a file is read that changes meanwhile."""
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def read_file(folder: int, name: str, most: int) -> tuple[bytes, StatusMark]:
    """Returns a file's content, and its mark, as `lasting` makes it. `folder`: a descriptor; `most`: maximum bytes.
    Raises `OSError`: `EFBIG` for a larger file, `EINVAL` for what is none.
    """
    descriptor = os.open(name, _OPEN, dir_fd=folder)
    try:
        after = status_mark(os.fstat(descriptor))
        for _ in range(READS):
            before = after
            if not stat.S_ISREG(before[0]):
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
            if before[2] > most:
                raise OSError(errno.EFBIG, os.strerror(errno.EFBIG))
            content = os.pread(descriptor, before[2], 0)
            while len(content) < before[2] and (
                piece := os.pread(descriptor, before[2] - len(content), len(content))
            ):
                content += piece
            after = status_mark(os.fstat(descriptor))
            if before == after:
                return content, lasting(after)
    finally:
        os.close(descriptor)
    return content, _never(after)


def lasting(mark: StatusMark) -> StatusMark:
    """Returns a mark that is never found again if the file may have changed since without another time of change."""
    return _never(mark) if max(mark[3:]) >= time.time_ns() - FRESH else mark


def _never(mark: StatusMark) -> StatusMark:
    return (mark[0], -1, *mark[2:])
