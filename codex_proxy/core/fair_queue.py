"""A queue for a limited number of places. Owners are served in turn, each up to a share.

Decides only who gets a place; the caller does the waiting. With a single owner it is a plain queue.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


def share_of(places: int, owners: int) -> int:
    """Returns how many of the places one owner may have: all where there is no other owner, else three quarters at
    most (at least one place stays for the others)."""
    if owners < 2:
        return places
    return max(1, places - max(1, places // 4))


class FairQueue(Generic[T]):
    """Hands out `places` slots to owners in turn. `owners()` returns how many owners there may be; it is called at each
    decision."""

    def __init__(self, places: int, owners: Callable[[], int]) -> None:
        self._places = places
        self._owners = owners
        self._running: Counter[str] = Counter()
        self._waiting: dict[str, deque[T]] = {}
        """The waiters of each owner, in the order in which they are served. None of these queues is empty."""

    @property
    def running(self) -> int:
        """How many slots are taken."""
        return self._running.total()

    @property
    def waiting(self) -> int:
        """How many waiters there are, of all owners."""
        return sum(map(len, self._waiting.values()))

    def waiting_of(self, owner: str) -> int:
        return len(self._waiting.get(owner, ()))

    def enter(self, owner: str) -> bool:
        """Takes a slot for the owner if it may have one now, and returns whether. Each slot taken needs one `leave`."""
        if owner in self._waiting or not self._has_room(owner):
            return False
        self._running[owner] += 1
        return True

    def wait(self, owner: str, waiter: T) -> None:
        """Queues a waiter behind the others of its owner, until `leave` returns it or `withdraw` takes it out."""
        self._waiting.setdefault(owner, deque()).append(waiter)

    def withdraw(self, owner: str, waiter: T) -> None:
        """Takes a waiter out of the queue, if it is still there."""
        queue = self._waiting.get(owner)
        if queue is not None and waiter in queue:
            queue.remove(waiter)
            if not queue:
                del self._waiting[owner]

    def leave(self, owner: str) -> list[tuple[str, T]]:
        """Gives a slot back. Returns the waiters that have a slot from now on, each with its owner."""
        self._running[owner] -= 1
        if not self._running[owner]:
            del self._running[owner]
        let_in: list[tuple[str, T]] = []
        while (next_owner := self._next()) is not None:
            queue = self._waiting.pop(next_owner)
            let_in.append((next_owner, queue.popleft()))
            self._running[next_owner] += 1
            if queue:
                self._waiting[next_owner] = queue  # behind the other owners
        return let_in

    def clear(self) -> list[T]:
        """Empties the queue, and returns its waiters."""
        waiters = [waiter for queue in self._waiting.values() for waiter in queue]
        self._waiting.clear()
        return waiters

    def _next(self) -> str | None:
        """The owner whose first waiter gets the next slot."""
        return next((owner for owner in self._waiting if self._has_room(owner)), None)

    def _has_room(self, owner: str) -> bool:
        return self.running < self._places and self._running[owner] < share_of(self._places, self._owners())
