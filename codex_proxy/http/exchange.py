"""An exchange is a cursor on a log: it renders what is new, and leaves when its client does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Protocol

from aiohttp import web

from codex_proxy.core.events import Event
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.http.sse import EventStream
from codex_proxy.runs.event_log import Cursor
from codex_proxy.runs.run import Run


class Renderer(Protocol):
    """What an exchange needs of a surface's renderer."""

    failure: Failure | None
    visible: bool

    def feed(self, events: list[Event]) -> bytes: ...

    def open(self) -> bytes: ...

    def result(self) -> bytes: ...


async def whole(run: Run, renderer: Renderer, headers: Mapping[str, str]) -> web.Response:
    """Reads the log to its end and answers once. Raises the `Fault` of a failed turn."""
    cursor = run.log.cursor()
    try:
        while not cursor.finished:
            await cursor.wait()
            renderer.feed(cursor.take())
    finally:
        cursor.detach()
        run.interrupt()
    return web.Response(body=renderer.result(), content_type="application/json", headers=headers)


async def streamed(
    request: web.Request,
    run: Run,
    renderer: Renderer,
    headers: Mapping[str, str],
    *,
    keepalive: float,
    comment: Callable[[], bytes],
) -> web.StreamResponse:
    """Streams the log to the client. Raises the `Fault` of a turn that failed before its first byte.

    `keepalive`: seconds of silence until a `comment` is sent; 0 for never.
    """
    cursor = run.log.cursor()
    stream = EventStream(request, headers)
    try:
        while not cursor.finished:
            if await _something(cursor, keepalive):
                data = renderer.feed(cursor.take())
            else:
                data = renderer.open() + comment()
            if not stream.begun and renderer.failure is not None and not renderer.visible:
                raise Fault(renderer.failure)
            if data:
                await stream.write(data)
        return await stream.close()
    finally:
        stream.stop()
        cursor.detach()
        run.interrupt()


async def _something(cursor: Cursor, keepalive: float) -> bool:
    """Waits for news; False when `keepalive` seconds passed without."""
    if not keepalive:
        await cursor.wait()
        return True
    try:
        async with asyncio.timeout(keepalive):
            await cursor.wait()
    except TimeoutError:
        return False
    return True
