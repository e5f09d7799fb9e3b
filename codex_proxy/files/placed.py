"""Files that are put below a folder in which others work, too. No link is followed in any part of the path, nothing
that exists is changed, and only what was put there is removed. All functions raise `OSError`.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

_FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_NEW_FILE: Final = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class FileMark(NamedTuple):
    """What tells a file from another one of its name, and from what it was before a change."""

    inode: int
    size: int
    modified: int
    """Nanoseconds since 1970."""


class NewFile:
    """A file that is being written, for its owner alone: `write` its bytes, then `finish`."""

    def __init__(self, folder: str, names: Sequence[str]) -> None:
        """`folder`: an absolute path without links. `names`: the folders below it, made if needed, and the file's name.
        Raises `FileExistsError` if there is anything of that name.
        """
        with _opened(folder, names[:-1], make=True) as place:
            self._out = os.fdopen(os.open(names[-1], _NEW_FILE, 0o600, dir_fd=place), "wb", buffering=0)
        self._path = folder, names

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._out.write(rest) :]

    def finish(self) -> FileMark:
        with self._out:
            return mark_of(os.fstat(self._out.fileno()))

    def discard(self) -> None:
        """Removes what was written."""
        with contextlib.suppress(OSError):
            remove_placed(*self._path, self.finish())


def remove_placed(folder: str, names: Sequence[str], mark: FileMark) -> None:
    """Removes a file, if it is still the one that was put there, and unchanged."""
    with contextlib.suppress(FileNotFoundError), _opened(folder, names[:-1], make=False) as place:
        if mark_of(os.stat(names[-1], dir_fd=place, follow_symlinks=False)) == mark:
            os.unlink(names[-1], dir_fd=place)


def mark_of(found: os.stat_result) -> FileMark:
    return FileMark(found.st_ino, found.st_size, found.st_mtime_ns)


@contextlib.contextmanager
def _opened(folder: str, names: Sequence[str], *, make: bool) -> Iterator[int]:
    """Yields a descriptor of a folder, which is opened from the root part by part."""
    root, *above = Path(folder).parts
    with (
        opened_below(root, above) as top,
        opened_below(".", names, at=top, make=0o700 if make else None) as place,
    ):
        yield place


@contextlib.contextmanager
def opened_below(
    start: str,
    names: Iterable[str | bytes],
    *,
    at: int | None = None,
    make: int | None = None,
    on_made: Callable[[int], None] = lambda _: None,
) -> Iterator[int]:
    """Yields a descriptor of the folder `names` below `start`, which is opened part by part; a link among the parts is
    an error. `at`: the descriptor of the folder in which `start` is. `make`: the mode with which missing folders are
    made; None: they are an error. `on_made` is told the place among `names` of each folder that was made.
    """
    here = os.open(start, _FOLDER, dir_fd=at)
    try:
        for index, name in enumerate(names):
            try:
                below = os.open(name, _FOLDER, dir_fd=here)
            except FileNotFoundError:
                if make is None:
                    raise
                with contextlib.suppress(FileExistsError):
                    os.mkdir(name, make, dir_fd=here)
                    on_made(index)
                below = os.open(name, _FOLDER, dir_fd=here)
            os.close(here)
            here = below
        yield here
    finally:
        os.close(here)
