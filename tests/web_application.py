"""Serves an aiohttp application on a free port."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web


@asynccontextmanager
async def serve_application(application: web.Application) -> AsyncIterator[int]:
    """Serves the application on loopback, and yields the port. A handler is cancelled when its client leaves, also
    while it sends nothing.
    """
    runner = web.AppRunner(application, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()
