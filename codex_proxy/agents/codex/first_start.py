"""One process at a time, until one has started: Codex lays out its database then, and fails where two do so at once.

The turn-taking is across servers that share a state folder. Once a version has started there, a file says so and
nobody waits any more.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

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
