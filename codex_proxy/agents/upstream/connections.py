"""The pool of connections to one upstream. One is used again only if nothing has come on it since the last answer: that
would be read as the next answer.
"""

from __future__ import annotations

import asyncio
import functools
import select
from contextvars import ContextVar
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler


class UpstreamConnection(ResponseHandler):
    """While it is idle, until the next request is written, the first byte closes it."""

    is_idle = False

    def data_received(self, data: bytes) -> None:
        if self.is_idle and data:  # without data aiohttp only continues to parse what has come before
            self.close()
        else:
            super().data_received(data)

    @property
    def has_unread(self) -> bool:
        """Whether bytes, or the connection's end, have come that the event loop has not read."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        poll = select.poll()
        poll.register(transport.get_extra_info("socket"), select.POLLIN)
        return bool(poll.poll(0))

    def use_again(self) -> None:
        """Ends its idle time, or closes it if something has come: then writing raises `OSError`."""
        if self.has_unread:
            self.close()
        else:
            self.is_idle = False


_TAKEN: ContextVar[UpstreamConnection | None] = ContextVar("taken", default=None)
"""The idle connection that this task has taken."""


async def before_headers(
    _: aiohttp.ClientSession, __: object, sent: aiohttp.TraceRequestHeadersSentParams
) -> None:
    """Is called by aiohttp before a request's headers are written; with a body they are written together."""
    if sent.headers.get("Content-Length", "0") == "0" and "Transfer-Encoding" not in sent.headers:
        _end_idle_time()


async def before_body(*_: object) -> None:
    """Is called by aiohttp before a part of a body is written."""
    _end_idle_time()


def _end_idle_time() -> None:
    connection = _TAKEN.get()
    if connection is not None and connection.is_idle:
        connection.use_again()


class UpstreamConnections(aiohttp.TCPConnector):
    """A connector whose idle connections stay without a byte, or are closed."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        loop = asyncio.get_running_loop()
        self._factory: functools.partial[Any] = functools.partial(UpstreamConnection, loop=loop)

    async def _get(self, key: Any, traces: list[Any]) -> Any:
        for protocol, _ in self._conns.get(key, ()):
            assert isinstance(protocol, UpstreamConnection)
            if not protocol.has_unread:
                break
            protocol.close()  # a closed one is not used
        connection = await super()._get(key, traces)
        _TAKEN.set(None)
        if connection is not None:
            assert isinstance(connection.protocol, UpstreamConnection)
            # aiohttp writes the request in another step of the event loop, before which bytes can still come.
            _TAKEN.set(connection.protocol)
        return connection

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        assert isinstance(protocol, UpstreamConnection)
        protocol.is_idle = True
        super()._release(key, protocol, should_close=should_close)
