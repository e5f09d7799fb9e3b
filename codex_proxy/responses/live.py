"""Runs the tasks of responses, and finds running background responses by owner and id. An owner is the name of a
client's key.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol, TypeVar

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.tasks import keep_until_done
from codex_proxy.responses.frame_buffer import FrameBuffer
from codex_proxy.workers.slots import Slots, share_of

MAX_LIVE = 1000
"""The most background responses that run or wait to run. Each keeps its request in RAM."""
CLOSE_SECONDS = 5.0
"""Seconds that tasks have to end when the server stops. Their turns are over by then, and they are saving the
results."""

T = TypeVar("T")


class ServerTasks:
    """Tasks that belong to the server and not to the request that started them, so they continue when the client
    leaves.
    """

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def running(self) -> int:
        return len(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Runs `work` in a task, which `close` waits for."""
        return keep_until_done(self._tasks, asyncio.get_running_loop().create_task(work))

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Awaits `work` and returns its result. If the caller is cancelled, `work` still runs to its end; the
        caller's `CancelledError` is raised after that.
        """
        task = self.spawn(work)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if not task.done():
                await asyncio.wait({task})
            raise

    async def close(self) -> None:
        """Waits for all tasks. Cancels those that have not ended after `CLOSE_SECONDS`."""
        if not self._tasks:
            return
        await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class LiveResponse(Protocol):
    """The interface of a background response that has not ended yet. `owner` is the name of the client's key."""

    id: str
    owner: str
    ended: bool
    """Whether nothing more of the response will be saved or sent."""
    streams: bool
    """Whether the request asked for a stream, so that there are frames to read."""
    buffer: FrameBuffer
    """The frames (encoded stream events) for the readers of the stream."""

    def start_in(self, tasks: ServerTasks) -> asyncio.Task[None]:
        """Starts the task that runs the response, as a task of the server (`tasks`), and returns it."""
        ...

    async def cancel_and_wait(self) -> None:
        """Stops the response's turn. Returns when the response has ended."""
        ...


class BackgroundResponses:
    """The background responses that have not ended. `limit` is how many run at once; others wait. `owners` returns
    the number of owners (client keys) there may be; if there are several, one owner gets at most three quarters of
    the limit.
    """

    def __init__(self, limit: int, owners: Callable[[], int] = lambda: 1) -> None:
        self.slots = Slots(limit, owners)
        self.tasks = ServerTasks()
        """The tasks of all responses, foreground responses included."""
        self._owners = owners
        self._live: dict[tuple[str, str], LiveResponse] = {}
        self._being_created: Counter[str] = Counter()
        """The number of responses of each owner that are being prepared and stored."""

    @contextlib.contextmanager
    def room(self, owner: str, limit: int) -> Iterator[None]:
        """A context manager, in whose body one response of `owner` is created and passed to `start`. Meanwhile the
        response counts as running. Raises `Fault` CONCURRENCY_EXCEEDED if `MAX_LIVE` responses run or wait already,
        or `limit` of this owner (0: no limit of its own, but of several owners none may have all of `MAX_LIVE`).
        """
        if len(self._live) + self._being_created.total() >= MAX_LIVE:
            raise _too_many(
                f"{MAX_LIVE} background responses are running or waiting, which is this server's limit."
            )
        theirs = self._being_created[owner] + sum(name == owner for name, _ in self._live)
        if limit and theirs >= limit:
            raise _too_many(
                f"{limit} background responses of this key are running or waiting, which is its limit."
            )
        if theirs >= share_of(MAX_LIVE, self._owners()):
            raise _too_many(f"{theirs} background responses of this key are running or waiting.")
        self._being_created[owner] += 1
        try:
            yield
        finally:
            self._being_created[owner] -= 1
            if not self._being_created[owner]:
                del self._being_created[owner]

    def start(self, response: LiveResponse, on_end: Callable[[], None] = lambda: None) -> None:
        """Starts the task of a response. Until the task ends, `find` returns the response; then `on_end` is called."""
        key = (response.owner, response.id)
        self._live[key] = response

        def over(_: asyncio.Task[None]) -> None:
            self._live.pop(key, None)
            on_end()

        response.start_in(self.tasks).add_done_callback(over)

    def find(self, owner: str, id: str) -> LiveResponse | None:
        return self._live.get((owner, id))

    async def close(self) -> None:
        """Waits until the tasks have saved their responses; after `CLOSE_SECONDS` the others are cancelled. Call it
        when all turns have ended. A response that was not saved is recovered at the next start of the server.
        """
        await self.tasks.close()


def _too_many(message: str) -> Fault:
    failure = Failure(
        kind=FaultKind.CONCURRENCY_EXCEEDED, message=f"{message} Try again later.", retry_after=10
    )
    return Fault(failure)
