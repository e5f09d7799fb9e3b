"""Waits that are broken off after some silence, many of them one after the other, with one timer for all.

A timer per wait would cost a stream of short waits more than all else that a wait does. It knows no stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable


class Silence:
    """Of the task that makes it: only that one may wait with it. `seconds`: 0 for never. `stop` in the end."""

    def __init__(self, seconds: float) -> None:
        task = asyncio.current_task()
        assert task is not None, "made outside of a task"
        self._task = task
        self._seconds = seconds
        self._loop = asyncio.get_running_loop()
        self._since: float | None = None
        """When the wait that is under way began."""
        self._broken_off = False
        self._timer = self._loop.call_later(seconds, self._check) if seconds else None

    async def broken_by(self, news: Awaitable[None]) -> bool:
        """Whether the news came; False where it was silent for too long."""
        self._since = self._loop.time()
        cancelling = self._task.cancelling()
        try:
            await news
        except asyncio.CancelledError:
            if not self._broken_off or self._task.uncancel() > cancelling:
                raise  # by somebody else
            return False
        finally:
            self._since, self._broken_off = None, False
        return True

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        now = self._loop.time()
        since = now if self._since is None else self._since
        if now - since >= self._seconds and not self._broken_off:
            self._broken_off = True
            self._task.cancel()
            since = now
        self._timer = self._loop.call_at(since + self._seconds, self._check)
