"""Keeps the tasks of responses, and finds background responses by owner and id."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.responses.frame_buffer import FrameBuffer
from codex_proxy.workers.slots import Slots, share_of

MAX_LIVE = 1000
"""The most background responses that run or wait, each of which keeps its request in RAM."""
CLOSE_SECONDS = 5.0
"""Seconds that tasks may take to end when the server stops. Turns have ended by then; their results are being saved."""

T = TypeVar("T")


class ServerTasks:
    """Tasks that belong to the server, not to the request that starts them: a client that leaves does not end them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def running(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work` in a task, which `close` waits for."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work`, which goes on to its end when the caller is cancelled; the caller waits for it even then."""
        task = self.spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                await asyncio.wait({task})
            raise

    async def close(self) -> None:
        """Waits for the tasks, and cancels those that take too long."""
        if not self._tasks:
            return
        await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class Live(Protocol):
    """A background response that has not ended."""

    id: str
    owner: str
    ended: bool
    streams: bool
    buffer: FrameBuffer

    def start_in(self, tasks: ServerTasks) -> asyncio.Task[None]:
        """Starts its task."""
        ...

    async def cancel_and_wait(self) -> None:
        """Stops its turn. Returns when it has ended."""
        ...


class BackgroundResponses:
    """The background responses that have not ended. `limit`: how many run at once; `owners` gives how many owners there
    may be, each of which gets a share of the room."""

    def __init__(self, limit: int, owners: Callable[[], int] = lambda: 1) -> None:
        self.slots = Slots(limit, owners)
        self.tasks = ServerTasks()
        """The tasks of all responses, also of those in the foreground."""
        self._owners = owners
        self._live: dict[tuple[str, str], Live] = {}
        self._being_created: Counter[str] = Counter()
        """How many of each owner's are being prepared and stored."""

    @contextlib.contextmanager
    def room(self, owner: str, limit: int) -> Iterator[None]:
        """Counts one more background response of this owner, which the body of the `with` gives to `start`. Raises
        `Fault` where there are too many: in all, or of this owner's (`limit`, 0 for any number)."""
        if len(self._live) + self._being_created.total() >= MAX_LIVE:
            raise _too_many(f"{MAX_LIVE} responses run or wait in the background.")
        theirs = self._being_created[owner] + sum(name == owner for name, _ in self._live)
        if limit and theirs >= limit:
            raise _too_many(
                f"{limit} responses of this key run or wait in the background, as many as it may have."
            )
        if theirs >= share_of(MAX_LIVE, self._owners()):
            raise _too_many(f"{theirs} responses of this key run or wait in the background.")
        self._being_created[owner] += 1
        try:
            yield
        finally:
            self._being_created[owner] -= 1
            if not self._being_created[owner]:
                del self._being_created[owner]

    def start(self, response: Live, on_end: Callable[[], None] = lambda: None) -> None:
        """Starts a response, which `find` gives until its end; then calls `on_end`."""
        key = (response.owner, response.id)
        self._live[key] = response

        def over(_: asyncio.Task[None]) -> None:
            self._live.pop(key, None)
            on_end()

        response.start_in(self.tasks).add_done_callback(over)

    def find(self, owner: str, id: str) -> Live | None:
        return self._live.get((owner, id))

    async def close(self) -> None:
        """Waits until the responses are saved, after their runs have ended. What is not saved is recovered at the
        next start."""
        await self.tasks.close()


def _too_many(message: str) -> Fault:
    failure = Failure(
        kind=FaultKind.CONCURRENCY_EXCEEDED, message=f"{message} Try again later.", retry_after=10
    )
    return Fault(failure)
