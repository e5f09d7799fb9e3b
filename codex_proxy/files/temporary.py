"""Temporary folders that are removed even if their process is killed. A folder is locked (`flock`) as long as a process
that uses it lives, and `remove_left_folders` removes those that nobody has locked.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

SUFFIX: Final = ".temporary"
_NAME: Final = re.compile(r"codex-proxy-[a-z]+-[a-z0-9_]{8}\.temporary")
"""The name of a folder that only this module makes: no other is removed."""


class TemporaryFolder(NamedTuple):
    path: str
    lock: int
    """A descriptor. A child that inherits it (`pass_fds`) keeps the folder until it has ended."""


@contextlib.contextmanager
def temporary_folder(use: str, place: str | Path | None = None) -> Iterator[TemporaryFolder]:
    """Makes a new, empty folder (0700) in `place` (None: the system's temporary folder) for the body of the
    `with`. `use` is a word of its name. In the system's, folders of killed processes are removed first.
    """
    if place is None:
        remove_left_folders()
    folder = _locked_folder(use, place)
    try:
        yield folder
    finally:
        shutil.rmtree(folder.path, ignore_errors=True)
        os.close(folder.lock)


def remove_left_folders(place: str | Path | None = None) -> None:
    """Removes folders in `place` that `temporary_folder` has made for processes that were killed."""
    with contextlib.suppress(OSError), os.scandir(place or tempfile.gettempdir()) as entries:
        for path in [entry.path for entry in entries if _NAME.fullmatch(entry.name)]:
            with contextlib.suppress(OSError):
                _remove_left(path)


def _remove_left(path: str) -> None:
    lock = _opened(path)
    try:
        found = os.fstat(lock)
        if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == stat.S_IRWXU:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path, ignore_errors=True)
    finally:
        os.close(lock)


def _locked_folder(use: str, place: str | Path | None) -> TemporaryFolder:
    while True:
        path = tempfile.mkdtemp(SUFFIX, f"codex-proxy-{use}-", place)
        try:
            lock = _opened(path)
        except FileNotFoundError:  # taken for one that was left, before it was locked
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:  # it is being removed
            os.close(lock)
            continue
        except OSError:  # a file system without locks: nobody else can lock it either, and so it stays
            return TemporaryFolder(path, lock)
        if os.fstat(lock).st_nlink:
            return TemporaryFolder(path, lock)
        os.close(lock)


def _opened(path: str) -> int:
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
