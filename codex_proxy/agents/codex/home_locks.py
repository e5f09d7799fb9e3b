"""A lock on Codex's files, for all servers with one state folder: two first starts of a release at once fail at its
database.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
