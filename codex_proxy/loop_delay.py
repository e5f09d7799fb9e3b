"""How late the event loop is: everybody who is served waits as long, whoever made it late."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Final

from aiohttp import web
from prometheus_client import CollectorRegistry, Gauge, Histogram

INTERVAL_SECONDS: Final = 0.05
"""Between two looks."""
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class LoopDelay:
    """Counts by how much a timer of the loop comes too late."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._delays = Histogram(
            "codex_proxy_event_loop_delay_seconds",
            "By how much the event loop was late, looked at 20 times a second.",
            buckets=BUCKETS,
            registry=registry,
        )
        self._longest = Gauge(
            "codex_proxy_event_loop_delay_max_seconds",
            "The most that the event loop has been late since the start.",
            registry=registry,
        )
        self._max = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def watched(self, _: web.Application) -> AsyncIterator[None]:
        """Looks for as long as the application runs: for its `cleanup_ctx`."""
        loop = asyncio.get_running_loop()
        self._arm(loop)
        yield
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + INTERVAL_SECONDS
        self._timer = loop.call_at(due, self._look, loop, due)

    def _look(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        delay = max(loop.time() - due, 0.0)
        self._delays.observe(delay)
        if delay > self._max:
            self._max = delay
            self._longest.set(delay)
        self._arm(loop)
