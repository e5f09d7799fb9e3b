"""What tasks of one process wait for: changes of a stored object, and other turns of a conversation."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable

from codex_proxy.store.leases import POLL_SECONDS, Key


class Changes:
    """The changes of one stored object, for any number of watches. Whoever learns of one calls `report`."""

    def __init__(self) -> None:
        self.count = 0
        self.next = asyncio.Event()

    def report(self) -> None:
        self.count += 1
        self.next.set()
        self.next = asyncio.Event()


class ChangeWatch:
    """Implements `store.leases.Watch`."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self._seen = changes.count

    async def wait(self) -> None:
        if self._seen == self._changes.count:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._changes.next.wait()
        self._seen = self._changes.count


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


class HeldConversation:
    """Implements `store.leases.ConversationLease`; `leave` is called once."""

    def __init__(self, leave: Callable[[Key], None], key: Key) -> None:
        self._leave: Callable[[Key], None] | None = leave
        self._key = key

    def release(self) -> None:
        leave, self._leave = self._leave, None
        if leave is not None:
            leave(self._key)
