"""Locks on Codex's files, for all servers with one state folder. Two first starts of a release at once fail at its
database (`first_start_lock`). A temporary home (`private_home`) is locked while used; the next start removes others.
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


@asynccontextmanager
async def first_start_lock(mark: str, within: float) -> AsyncIterator[None]:
    """Holds a lock if the file `mark` does not exist, then creates `mark`. After `within` seconds goes on without the
    lock.
    """
    if not mark or _exists(mark):
        yield
        return
    lock = os.open(f"{mark}.lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    try:
        await _wait_for_lock(lock, within)
        yield
        os.close(os.open(mark, os.O_CREAT | os.O_WRONLY, 0o600))
    finally:
        os.close(lock)


async def _wait_for_lock(lock: int, within: float) -> None:
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
    """Yields a new, empty folder in the state folder, and removes it."""
    folder, lock = _new_home(state)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        os.close(lock)


def remove_left_homes(state: str) -> None:
    """Removes folders of `private_home` that killed processes have left."""
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
