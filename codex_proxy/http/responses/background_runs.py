"""The responses that run in the background of this process, by owner and id."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Coroutine, Iterator
from typing import Any, Protocol

from codex_proxy.core.faults import Failure, Fault, FaultKind

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
    """Keeps them alive, finds them again, and ends with the server. `limit`: how many run at once."""

    def __init__(self, limit: int) -> None:
        self.place = asyncio.Semaphore(limit)
        self._live: dict[tuple[str, str], Live] = {}
        self._coming: Counter[str] = Counter()
        """By owner, those whose requests are being read and stored."""
        self._tasks: set[asyncio.Task[None]] = set()

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
        self._coming[owner] += 1
        try:
            yield
        finally:
            self._coming[owner] -= 1
            if not self._coming[owner]:
                del self._coming[owner]

    def begin(self, owner: str, id: str, live: Live) -> None:
        """Takes care of it until its end."""
        self._live[owner, id] = live
        task = asyncio.get_running_loop().create_task(live.work())
        self._tasks.add(task)

        def over(done: asyncio.Task[None]) -> None:
            self._tasks.discard(done)
            self._live.pop((owner, id), None)

        task.add_done_callback(over)

    def find(self, owner: str, id: str) -> Live | None:
        return self._live.get((owner, id))

    async def close(self) -> None:
        """The runs are over; what is not written down yet is taken up at the next start."""
        if not self._tasks:
            return
        await asyncio.wait(self._tasks, timeout=LAST_WORDS_SECONDS)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


def _too_many(message: str) -> Fault:
    failure = Failure(
        kind=FaultKind.CONCURRENCY_EXCEEDED, message=f"{message} Try again later.", retry_after=10
    )
    return Fault(failure)
