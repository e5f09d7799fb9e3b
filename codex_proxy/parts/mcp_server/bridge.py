"""Serves an ASGI application, the transport of the `mcp` package, as the answer to one request of aiohttp."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias

from aiohttp import web

from codex_proxy.core.interfaces import keep_until_done
from codex_proxy.http.sse import EventStream

Message: TypeAlias = MutableMapping[str, Any]
Application: TypeAlias = Callable[
    [MutableMapping[str, Any], Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]
"""An ASGI application: it gets the scope, `receive` and `send`."""

_OF_THE_CONNECTION = frozenset({"content-length", "transfer-encoding", "connection", "keep-alive"})
"""Headers that this server sets itself."""

OPENING = b": open\n\n"
"""The comment with which a stream begins."""


class Exchange:
    """One request, its whole body, and its answer."""

    def __init__(self, request: web.Request, body: bytes) -> None:
        self._request = request
        self._body: bytes | None = body
        self._status = 500
        self._headers: dict[str, str] = {}
        self._stream: EventStream | None = None
        self.response: web.StreamResponse | None = None
        """The answer, once it is whole."""
        self.left = asyncio.Event()
        """Set when the client has left."""

    async def receive(self) -> Message:
        """Returns the body; then waits until the client has left."""
        if self._body is None:
            await self.left.wait()
            return {"type": "http.disconnect"}
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Message) -> None:
        """Takes the beginning of the answer, and then its pieces. What comes when the client has left is dropped."""
        if self.left.is_set():
            return
        if message["type"] == "http.response.start":
            self._status = message["status"]
            given = ((name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"])
            self._headers = {name: value for name, value in given if name not in _OF_THE_CONNECTION}
            if self._headers.get("content-type", "").startswith("text/event-stream"):
                # It may stay silent for long, and its client waits for the headers.
                self._stream = self._opened()
                await self._stream.write(OPENING)
            return
        body, more = message.get("body", b""), message.get("more_body", False)
        if self._stream is None and not more:
            self.response = web.Response(status=self._status, headers=self._headers, body=body)
            return
        if self._stream is None:
            self._stream = self._opened()
        if more:
            await self._stream.write(body)
        else:
            self.response = await self._stream.close(body)

    def _opened(self) -> EventStream:
        stream = EventStream(self._request, dict)
        stream.response.set_status(self._status)
        stream.response.headers.update(self._headers)
        return stream

    async def end(self) -> web.StreamResponse:
        """Returns the answer when the application has returned: it may have left a stream open."""
        if self.response is None and self._stream is not None and not self.left.is_set():
            self.response = await self._stream.close()
        return self.response or web.Response(status=500)


def scope_of(request: web.Request, **more: Any) -> dict[str, Any]:
    """Returns the scope of a request, with `more`."""
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query_string.encode(),
        "root_path": "",
        # ASGI has the names in lower case.
        "headers": [(name.lower(), value) for name, value in request.raw_headers],
        "client": None,
        "server": None,
        **more,
    }


async def serve(
    application: Application,
    request: web.Request,
    body: bytes,
    tasks: set[asyncio.Task[Any]],
    **more: Any,
) -> web.StreamResponse:
    """Returns the application's answer. `more`: what its scope has besides. Its task stays in `tasks` until it is done:
    also when the client has left, which the application learns as ASGI has it, since a client may leave as soon as it
    has its answer.
    """
    exchange = Exchange(request, body)
    work = asyncio.create_task(_work(application, exchange, scope_of(request, **more)))
    keep_until_done(tasks, work)
    try:
        return await asyncio.shield(work)
    except BaseException:
        exchange.left.set()
        raise


async def _work(application: Application, exchange: Exchange, scope: dict[str, Any]) -> web.StreamResponse:
    try:
        await application(scope, exchange.receive, exchange.send)
    except ConnectionError:
        if not exchange.left.is_set():
            raise
    return await exchange.end()
