"""What tasks of one process wait for: a change of a stored object, and other turns of a conversation."""

from __future__ import annotations

import asyncio
import contextlib

from codex_proxy.store.leases import POLL_SECONDS, Key


class ReportedChanges:
    """Implements `store.leases.Watch`: whoever learns of a change calls `report`."""

    def __init__(self) -> None:
        self._changed = asyncio.Event()

    def report(self) -> None:
        self._changed.set()

    async def wait(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_SECONDS):
                await self._changed.wait()
        self._changed.clear()


class ConversationLocks:
    """The locks of one process on conversations, each held by one turn at a time, in the order of asking."""

    def __init__(self) -> None:
        self._locks: dict[Key, asyncio.Lock] = {}
        self._wanted: dict[Key, int] = {}

    async def acquire(self, key: Key) -> None:
        lock = self._locks.setdefault(key, asyncio.Lock())
        self._wanted[key] = self._wanted.get(key, 0) + 1
        try:
            await lock.acquire()
        except BaseException:
            self._forget(key)
            raise

    def release(self, key: Key) -> None:
        self._locks[key].release()
        self._forget(key)

    def _forget(self, key: Key) -> None:
        self._wanted[key] -= 1
        if not self._wanted[key]:
            del self._wanted[key], self._locks[key]
