"""An exchange reads the events of its turn, renders what is new, and leaves when its client does."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from aiohttp import web

from codex_proxy.core.events import Event, Stop, TurnEnded
from codex_proxy.core.faults import UNFORESEEN, Failure, Fault
from codex_proxy.http.faults import log_unforeseen
from codex_proxy.http.observed import Observed
from codex_proxy.http.silence import Silence
from codex_proxy.http.sources import Source
from codex_proxy.http.sse import EventStream


class Renderer(Protocol):
    """What an exchange needs of a surface's renderer."""

    failure: Failure | None
    visible: bool

    def feed(self, events: list[Event]) -> bytes: ...

    def open(self) -> bytes: ...

    def result(self) -> bytes: ...


async def whole(
    source: Source, renderer: Renderer, observed: Observed, headers: Mapping[str, str]
) -> web.Response:
    """Reads to the end and answers once. Raises the `Fault` of a failed turn."""
    try:
        while not source.finished:
            await source.wait()
            events = source.take()
            observed.see(events)
            renderer.feed(events)
    finally:
        source.close()
    return web.Response(body=renderer.result(), content_type="application/json", headers=headers)


async def streamed(
    source: Source,
    renderer: Renderer,
    observed: Observed,
    stream: EventStream,
    *,
    keepalive: float,
    comment: Callable[[], bytes],
) -> web.StreamResponse:
    """Streams to the client. Raises the `Fault` of a turn that failed before its first byte.

    `keepalive`: seconds of silence until a `comment` is sent; 0 for never.
    """
    silence = Silence(keepalive)
    try:
        while not source.finished:
            if await silence.broken_by(source.wait()):
                events = source.take()
                observed.see(events)
                data = renderer.feed(events)
            else:
                data = renderer.open() + comment()
            if not stream.begun and renderer.failure is not None and not renderer.visible:
                raise Fault(renderer.failure)
            if data:
                await stream.write(data)
        return await stream.close()
    except (Fault, ConnectionError):
        raise
    except Exception as error:
        if not stream.begun:
            raise
        # Its status has gone out: what is left to tell goes the way of a turn's own failure.
        log_unforeseen(error)
        await stream.write(renderer.feed([TurnEnded(Stop.FAILED, "provider", UNFORESEEN)]))
        return await stream.close()
    finally:
        silence.stop()
        stream.stop()
        source.close()
