"""Tasks that belong to the server, not to the request that starts them: a client that leaves does not end them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")

CLOSE_SECONDS = 5.0
"""How long tasks may take to end when the server stops: turns are over then, their ends are being saved."""


class ServerTasks:
    """Keeps tasks until they end, or the server does."""

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
