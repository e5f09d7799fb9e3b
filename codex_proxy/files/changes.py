"""What a turn has done to the files of a folder: for each path what was there before and what is there after. Nothing
here does IO.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from operator import attrgetter
from typing import Final, Literal, TypeAlias

import msgspec

StatusMark: TypeAlias = tuple[int, int, int, int, int]
"""Mode, inode, size, and the times of the last change of the content and of anything, in nanoseconds: a file that has
the same ones again need not be read again, unless it was changed within `FRESH` before.
"""
FRESH: Final = 2_000_000_000
"""Nanoseconds: a file that was changed so shortly before may change once more without another time of change."""


class FileState(msgspec.Struct, frozen=True):
    """A file, or a symbolic link with its target as its content."""

    kind: Literal["file", "link"]
    digest: str
    """The id that git gives to the content (see `digest_of`)."""
    size: int
    """The bytes of the content."""
    mode: int = 0o644
    """The permission bits of a file; of a link they mean nothing."""


class FileChange(msgspec.Struct, frozen=True):
    """One path that has changed: below the folder, with `/` between names; not always UTF-8. `before`, `after`: None
    where nothing was there.
    """

    path: bytes
    before: FileState | None
    after: FileState | None


def digest_of(content: bytes) -> str:
    """Returns the id that git gives to a blob with this content, in 40 hex digits."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


status_mark: Final[Callable[[os.stat_result], StatusMark]] = attrgetter(
    "st_mode", "st_ino", "st_size", "st_mtime_ns", "st_ctime_ns"
)
