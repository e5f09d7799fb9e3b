"""Slots, and queues for them: owners (API keys) take turns, and each gets at most a share."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

from codex_proxy.core.caches import subtract
from codex_proxy.core.faults import Fault

T = TypeVar("T")


def share_of(slots: int, owners: int) -> int:
    """Returns how many slots one owner may have: all without others, else three quarters, leaving at least one."""
    if owners < 2:
        return slots
    return max(1, slots - max(1, slots // 4))


class FairQueue(Generic[T]):
    """Decides, without waiting, which waiter (any object) gets one of `slots`, the owners in turn. `owners()`: how many
    there may be now.
    """

    def __init__(self, slots: int, owners: Callable[[], int]) -> None:
        self._limit = slots
        self._owners = owners
        self.running = 0
        """The number of slots that are taken."""
        self._running: Counter[str] = Counter()
        """The number of slots that each owner has taken."""
        self._waiting: dict[str, deque[T]] = {}
        """The waiters of each owner, in order; no queue is empty."""

    @property
    def waiting(self) -> int:
        return sum(map(len, self._waiting.values()))

    def running_of(self, owner: str) -> int:
        return self._running[owner]

    def waiting_of(self, owner: str) -> int:
        return len(self._waiting.get(owner, ()))

    def enter(self, owner: str) -> bool:
        """Takes a slot until `leave`; False if none is free, or the owner has its share or is waiting."""
        if owner in self._waiting or not self._has_room(owner):
            return False
        self._running[owner] += 1
        self.running += 1
        return True

    def wait(self, owner: str, waiter: T) -> None:
        """Queues a waiter, until `leave` returns it or `withdraw` removes it."""
        self._waiting.setdefault(owner, deque()).append(waiter)

    def withdraw(self, owner: str, waiter: T) -> None:
        """Removes a waiter, if it is still there."""
        queue = self._waiting.get(owner)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._waiting[owner]

    def leave(self, owner: str) -> list[tuple[str, T]]:
        """Frees a slot; returns the waiters that now get one."""
        subtract(self._running, owner)
        self.running -= 1
        let_in: list[tuple[str, T]] = []
        while self._waiting and (next_owner := self._next()) is not None:
            queue = self._waiting.pop(next_owner)
            let_in.append((next_owner, queue.popleft()))
            self._running[next_owner] += 1
            self.running += 1
            if queue:
                self._waiting[next_owner] = queue  # behind the other owners
        return let_in

    def clear(self) -> list[T]:
        waiters = [waiter for queue in self._waiting.values() for waiter in queue]
        self._waiting.clear()
        return waiters

    def _next(self) -> str | None:
        return next((owner for owner in self._waiting if self._has_room(owner)), None)

    def _has_room(self, owner: str) -> bool:
        if self.running >= self._limit:
            return False
        theirs = self._running[owner]  # a share is at least one slot
        return not theirs or theirs < share_of(self._limit, self._owners())


class Slot:
    """A slot that was taken. `give_back` frees it once. One that is lent is free until `take_again`."""

    __slots__ = ("_lent", "_owner", "_slots", "_taking")

    def __init__(self, slots: Slots, owner: str) -> None:
        self._slots: Slots | None = slots
        self._owner = owner
        self._lent = False
        self._taking: asyncio.Lock | None = None
        """Held while it is taken again, which two may want at once."""

    def give_back(self) -> None:
        slots, self._slots = self._slots, None
        if slots is not None and not self._lent:
            slots.free_slot(self._owner)

    def lend(self) -> None:
        if self._slots is not None and not self._lent:
            self._lent = True
            self._taking = self._taking or asyncio.Lock()
            self._slots.free_slot(self._owner)

    async def take_again(self) -> None:
        """Waits for a slot in place of the one that was lent, if it was. Raises the fault of `Slots.stop`."""
        if self._taking is None:
            return
        async with self._taking:
            if self._slots is None or not self._lent:
                return
            taken = await self._slots.take(self._owner)
            self._lent = False
            if self._slots is None:  # given back meanwhile
                taken.give_back()


class Slots(FairQueue[asyncio.Future[None]]):
    """Gives `limit` slots to owners in turn."""

    def __init__(self, limit: int, owners: Callable[[], int]) -> None:
        super().__init__(limit, owners)
        self._idle = asyncio.Event()
        self._idle.set()

    def take_now(self, owner: str) -> Slot | None:
        slot = Slot(self, owner)
        if not self.enter(owner):
            return None
        self._idle.clear()
        return slot

    async def take(self, owner: str, within: float | None = None) -> Slot:
        """Waits for a slot. Raises `TimeoutError` after `within` seconds (None: no limit), or the fault of `stop`."""
        slot = self.take_now(owner)
        if slot is not None:
            return slot
        comes: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.wait(owner, comes)
        try:
            async with asyncio.timeout(within):
                await comes
        except TimeoutError:
            if not _was_given(comes):  # else in the very moment in which the time was up
                raise
        except asyncio.CancelledError:
            if _was_given(comes):
                self.free_slot(owner)
            raise
        finally:
            self.withdraw(owner, comes)
            del comes  # its exception holds this frame: no cycle stays behind
        return Slot(self, owner)

    def free_slot(self, owner: str) -> None:
        """Frees a slot. Called by `Slot.give_back`."""
        free = [owner]
        while free:
            for next_owner, comes in self.leave(free.pop()):
                if comes.done():  # it was cancelled a moment ago, and has not withdrawn yet
                    free.append(next_owner)
                else:
                    comes.set_result(None)
        if not self.running:
            self._idle.set()

    def stop(self, fault: Fault) -> None:
        """Ends all present waits with `fault`."""
        for comes in self.clear():
            if not comes.done():
                comes.set_exception(fault)

    async def wait_until_idle(self) -> None:
        await self._idle.wait()


def _was_given(slot: asyncio.Future[None]) -> bool:
    return slot.done() and not slot.cancelled() and slot.exception() is None
