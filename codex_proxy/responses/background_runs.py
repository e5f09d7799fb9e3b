"""The responses that run in the background of this process, by owner and id."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from codex_proxy.core.fair_queue import share_of
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.workers.slots import Slots

T = TypeVar("T")

MAX_LIVE = 1000
"""Running and waiting: each keeps its request in RAM."""
LAST_WORDS_SECONDS = 5.0
"""For the ends of runs that the server has stopped to be written down."""


class Live(Protocol):
    """What is asked of a response that runs."""

    ended: bool
    streams: bool
    version: int

    async def more(self, seen: int) -> None: ...

    async def cancel(self) -> None: ...

    def work(self) -> Coroutine[Any, Any, None]: ...


class BackgroundRuns:
    """Keeps them alive, finds them again, and ends with the server. `limit`: how many run at once; `owners` tells how
    many there may be."""

    def __init__(self, limit: int, owners: Callable[[], int] = lambda: 1) -> None:
        self.slots = Slots(limit, owners)
        self._owners = owners
        self._live: dict[tuple[str, str], Live] = {}
        self._coming: Counter[str] = Counter()
        """By owner, those whose requests are being read and stored."""
        self._tasks: set[asyncio.Task[Any]] = set()

    @contextlib.contextmanager
    def room(self, owner: str, limit: int) -> Iterator[None]:
        """Room for one more, which is to `begin` inside: what is done before that counts already. Raises `Fault` where
        there are too many, of all or (beyond `limit`, 0 for none) of this owner's."""
        if len(self._live) + self._coming.total() >= MAX_LIVE:
            raise _too_many(f"{MAX_LIVE} responses run or wait in the background.")
        theirs = self._coming[owner] + sum(name == owner for name, _ in self._live)
        if limit and theirs >= limit:
            raise _too_many(
                f"{limit} responses of this key run or wait in the background, as many as it may have."
            )
        if theirs >= share_of(MAX_LIVE, self._owners()):
            raise _too_many(f"{theirs} responses of this key run or wait in the background.")
        self._coming[owner] += 1
        try:
            yield
        finally:
            self._coming[owner] -= 1
            if not self._coming[owner]:
                del self._coming[owner]

    def begin(self, owner: str, id: str, live: Live, ended: Callable[[], None] = lambda: None) -> None:
        """Takes care of it until its end, and calls `ended` then."""
        self._live[owner, id] = live

        def over(done: asyncio.Task[None]) -> None:
            self._live.pop((owner, id), None)
            ended()

        self.spawn(live.work()).add_done_callback(over)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """A task of the server's, which `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def whole(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`, which goes on to its end when the caller is cancelled; the caller waits for it even then."""
        task = self.spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                await asyncio.wait({task})
            raise

    def find(self, owner: str, id: str) -> Live | None:
        return self._live.get((owner, id))

    async def close(self) -> None:
        """The runs are over; what is not written down yet is taken up at the next start."""
        if not self._tasks:
            return
        await asyncio.wait(self._tasks, timeout=LAST_WORDS_SECONDS)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _too_many(message: str) -> Fault:
    failure = Failure(
        kind=FaultKind.CONCURRENCY_EXCEEDED, message=f"{message} Try again later.", retry_after=10
    )
    return Fault(failure)
