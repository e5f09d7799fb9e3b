"""Where an exchange reads its events: the log of one run, or those of several that are choices of one answer.

A source is closed when its client has left, which ends the turns that are not over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from codex_proxy.core.events import Event
from codex_proxy.core.turn import Turn
from codex_proxy.runs.event_log import Cursor
from codex_proxy.runs.run import Run
from codex_proxy.runs.scheduler import RunScheduler
from codex_proxy.runs.server_calls import ToolRunner
from codex_proxy.surfaces.samples import Samples


class Source(Protocol):
    """Events of one answer, read once."""

    @property
    def finished(self) -> bool:
        """Whether everything was taken and nothing will follow."""
        ...

    def wait(self) -> Awaitable[None]:
        """Returns when there is something to take, or nothing will follow. May be cancelled and called again."""
        ...

    def take(self) -> list[Event]:
        """Returns the new events, without waiting."""
        ...

    def close(self) -> None:
        """Ends the reading, and the turns that are not over."""
        ...


class OneRun:
    """The events of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._cursor = run.log.cursor()

    @property
    def finished(self) -> bool:
        return self._cursor.finished

    def wait(self) -> Awaitable[None]:
        return self._cursor.wait()

    def take(self) -> list[Event]:
        return self._cursor.take()

    def close(self) -> None:
        self._cursor.detach()
        self._run.interrupt()


class SampledRuns:
    """The logs of several runs, as one answer with a choice for each. One that fails ends its siblings."""

    def __init__(self, runs: list[Run]) -> None:
        self._runs = runs
        self._samples = Samples(len(runs))
        self._cursors: list[Cursor] = [run.log.cursor() for run in runs]
        self._waiting: dict[int, asyncio.Task[None]] = {}

    @property
    def finished(self) -> bool:
        return self._samples.ended

    async def wait(self) -> None:
        for index, cursor in enumerate(self._cursors):
            if not cursor.finished and index not in self._waiting:
                self._waiting[index] = asyncio.ensure_future(cursor.wait())
        if self._waiting:
            await asyncio.wait(self._waiting.values(), return_when=asyncio.FIRST_COMPLETED)

    def take(self) -> list[Event]:
        for index in [index for index, task in self._waiting.items() if task.done()]:
            del self._waiting[index]
        events: list[Event] = []
        for index, cursor in enumerate(self._cursors):
            events += self._samples.feed(index, cursor.take())
        return events

    def close(self) -> None:
        for task in self._waiting.values():
            task.cancel()
        for cursor, run in zip(self._cursors, self._runs, strict=True):
            cursor.detach()
            run.interrupt()


async def start(manager: RunScheduler, turn: Turn, owner: str, *, runner: ToolRunner | None = None) -> OneRun:
    """One turn of this owner's under way; `runner` runs the tools of the server. Raises the `Fault` of a turn that
    cannot begin."""
    return OneRun(await manager.start(turn, owner, runner=runner))


async def start_samples(
    manager: RunScheduler, turn: Turn, count: int, owner: str, *, runner: ToolRunner | None = None
) -> SampledRuns:
    """Starts the same turn `count` times. Where one cannot start, all are ended and its `Fault` is raised."""
    starting = [asyncio.ensure_future(manager.start(turn, owner, runner=runner)) for _ in range(count)]
    try:
        return SampledRuns(await asyncio.gather(*starting))
    except BaseException:
        for task in starting:
            task.cancel()
        for started in await asyncio.gather(*starting, return_exceptions=True):
            if isinstance(started, Run):
                started.interrupt()
        raise
