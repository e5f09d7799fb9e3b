"""Locks on files of Codex, for all servers that share a state folder: who starts first, and whose a folder is.

A new release lays out its database at its first start, and fails where two processes do so at once: they take turns
(`alone_the_first_time`) until a file says that the release has started there. A home for one question to the binary
(`private_home`) is removed afterwards, also after a kill: by the next start. Its user holds a lock on the folder, which
the system takes back with the process; so a folder whose lock is free was left behind, however young it is.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

POLL_SECONDS = 0.02
"""A lock on a file cannot be awaited. A start takes 70 ms and more."""


@asynccontextmanager
async def alone_the_first_time(mark: str, within: float) -> AsyncIterator[None]:
    """The body runs alone as long as the file `mark` is missing; it is made when the body succeeds.

    Waits for its turn for `within` seconds at most, and then goes on all the same: whoever holds the lock that
    long is stuck, and a failed start says more than a failed lock. An empty `mark` means no turns at all.
    """
    if not mark or _exists(mark):
        yield
        return
    lock = os.open(f"{mark}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        await _locked(lock, within)
        yield
        os.close(os.open(mark, os.O_CREAT | os.O_WRONLY, 0o600))
    finally:
        os.close(lock)


async def _locked(lock: int, within: float) -> None:
    loop = asyncio.get_running_loop()
    give_up = loop.time() + within
    while loop.time() < give_up:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            await asyncio.sleep(POLL_SECONDS)
        else:
            return


def _exists(mark: str) -> bool:
    return os.path.exists(mark)


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
