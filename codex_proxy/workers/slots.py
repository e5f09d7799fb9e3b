"""Slots, of which there is a number, and the wait for one. Who gets the next one is decided in `core.fair_queue`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from codex_proxy.core.fair_queue import FairQueue
from codex_proxy.core.faults import Fault


class Slot:
    """One slot. `give_back` works once; further calls do nothing."""

    __slots__ = ("_owner", "_slots")

    def __init__(self, slots: Slots, owner: str) -> None:
        self._slots: Slots | None = slots
        self._owner = owner

    def give_back(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None:
            slots.left(self._owner)


class Slots:
    """Hands out `limit` slots to owners in turn. `owners()` returns how many owners there are."""

    def __init__(self, limit: int, owners: Callable[[], int]) -> None:
        self._queue: FairQueue[asyncio.Future[None]] = FairQueue(limit, owners)
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def running(self) -> int:
        """Slots that are taken."""
        return self._queue.running

    @property
    def waiting(self) -> int:
        return self._queue.waiting

    def waiting_of(self, owner: str) -> int:
        """Returns how many of this owner's requests wait."""
        return self._queue.waiting_of(owner)

    def take_now(self, owner: str) -> Slot | None:
        """Takes a slot, if one is free for this owner."""
        if not self._queue.enter(owner):
            return None
        self._idle.clear()
        return Slot(self, owner)

    async def take(self, owner: str, within: float | None = None) -> Slot:
        """Waits for a slot, at most so many seconds. Raises `TimeoutError`, and the `Fault` of `stop`."""
        slot = self.take_now(owner)
        if slot is not None:
            return slot
        comes: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.wait(owner, comes)
        try:
            async with asyncio.timeout(within):
                await comes
        except TimeoutError:
            if not _was_given(comes):  # else in the very moment in which the time was up
                raise
        except asyncio.CancelledError:
            if _was_given(comes):
                self.left(owner)
            raise
        finally:
            self._queue.withdraw(owner, comes)
            del comes  # its exception holds this frame: no cycle stays behind
        return Slot(self, owner)

    def left(self, owner: str) -> None:
        """Frees a slot of this owner, and gives it to the next waiter."""
        free = [owner]
        while free:
            for next_owner, comes in self._queue.leave(free.pop()):
                if comes.done():  # it was cancelled a moment ago, and has not withdrawn yet
                    free.append(next_owner)
                else:
                    comes.set_result(None)
        if not self._queue.running:
            self._idle.set()

    def stop(self, fault: Fault) -> None:
        """Fails all waiters with `fault`."""
        for comes in self._queue.clear():
            if not comes.done():
                comes.set_exception(fault)

    async def idle(self) -> None:
        """Returns when no slot is taken."""
        await self._idle.wait()


def _was_given(slot: asyncio.Future[None]) -> bool:
    return slot.done() and not slot.cancelled() and slot.exception() is None
