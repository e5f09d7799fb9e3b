"""The responses that run in the background of this process, by owner and id."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Protocol

from codex_proxy.core.fair_queue import share_of
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.responses.frame_buffer import FrameBuffer
from codex_proxy.responses.server_tasks import ServerTasks
from codex_proxy.workers.slots import Slots

MAX_LIVE = 1000
"""Running and waiting: each keeps its request in RAM."""


class Live(Protocol):
    """A response that has not ended."""

    id: str
    owner: str
    ended: bool
    streams: bool
    buffer: FrameBuffer

    def start_in(self, tasks: ServerTasks) -> asyncio.Task[None]:
        """Starts its task."""
        ...

    async def end(self) -> None:
        """Stops it. Returns when it has ended."""
        ...


class BackgroundResponses:
    """Finds them, and says whether there is room for another. `limit`: how many run at once; `owners` gives how many
    owners there may be."""

    def __init__(self, limit: int, owners: Callable[[], int] = lambda: 1) -> None:
        self.slots = Slots(limit, owners)
        self.tasks = ServerTasks()
        """The tasks of all responses, also of those in the foreground."""
        self._owners = owners
        self._live: dict[tuple[str, str], Live] = {}
        self._coming: Counter[str] = Counter()
        """By owner, those whose requests are being read and stored."""

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

    def begin(self, response: Live, ended: Callable[[], None] = lambda: None) -> None:
        """Starts a response, which is found until its end; then calls `ended`."""
        key = (response.owner, response.id)
        self._live[key] = response

        def over(_: asyncio.Task[None]) -> None:
            self._live.pop(key, None)
            ended()

        response.start_in(self.tasks).add_done_callback(over)

    def find(self, owner: str, id: str) -> Live | None:
        return self._live.get((owner, id))

    async def close(self) -> None:
        """Waits until the responses are saved; the runs are over. What is not saved is taken up at the next start."""
        await self.tasks.close()


def _too_many(message: str) -> Fault:
    failure = Failure(
        kind=FaultKind.CONCURRENCY_EXCEEDED, message=f"{message} Try again later.", retry_after=10
    )
    return Fault(failure)
