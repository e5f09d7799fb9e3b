"""A Codex home for one question to the binary, which is removed afterwards, also after a kill: by the next start.

Who uses one holds a lock on the folder, which the system takes back with the process. So a folder whose lock is free
was left behind, however young it is, and another server's is left alone.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

PREFIX = "home-"


@contextmanager
def private_home(state: str) -> Iterator[str]:
    """A new, empty folder in the state folder, which is gone behind the block."""
    folder, lock = _new_home(state)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_homes(state: str) -> None:
    """Removes the folders of those who were killed."""
    for folder in Path(state).glob(f"{PREFIX}*"):
        lock = _lock(str(folder))
        if lock is not None:
            shutil.rmtree(folder, ignore_errors=True)
            os.close(lock)


def _new_home(state: str) -> tuple[str, int]:
    while True:
        folder = tempfile.mkdtemp(prefix=PREFIX, dir=state)
        lock = _lock(folder)
        if lock is not None and os.fstat(lock).st_nlink:
            return folder, lock
        if lock is not None:  # another start took it for one that was left, before it was locked
            os.close(lock)


def _lock(folder: str) -> int | None:
    """A descriptor that holds the folder's lock; None where somebody else does, or there is no such folder."""
    try:
        opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(opened)
        return None
    return opened
