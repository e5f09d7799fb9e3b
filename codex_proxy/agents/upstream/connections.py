"""The connections to one upstream. One is used again only if nothing has come on it since the last answer: that would
be read as the next answer.
"""

from __future__ import annotations

import asyncio
import functools
import select
from collections.abc import Callable
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.payload import AsyncIterablePayload, BytesPayload, Payload


class UpstreamConnection(ResponseHandler):
    """While idle, until the next request is written, the first byte closes it."""

    is_idle = False

    def data_received(self, data: bytes) -> None:
        if self.is_idle and data:  # without data aiohttp only continues to parse what has come before
            self.close()
        else:
            super().data_received(data)

    @property
    def has_unread(self) -> bool:
        """Whether bytes, or the end, have come that the event loop has not read."""
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


class _RequestBody(Payload):
    """Ends its connection's idle time right before it is written: bytes can still come after aiohttp has taken the
    connection from the pool. A base class beside one of aiohttp's payloads.
    """

    def __init__(self, value: Any, on_write: Callable[[bool], None]) -> None:
        """`on_write` is called then, with whether the connection was used before."""
        super().__init__(value)
        self._on_write = on_write

    async def write_with_length(self, writer: Any, content_length: int | None) -> None:
        connection = writer.protocol
        assert isinstance(connection, UpstreamConnection)
        reused = connection.is_idle
        if reused:
            connection.use_again()
        self._on_write(reused)
        await super().write_with_length(writer, content_length)


class WholeBody(_RequestBody, BytesPayload):
    """A body in memory."""


class StreamedBody(_RequestBody, AsyncIterablePayload):
    """A body that an asynchronous iterator returns in parts."""


class UpstreamConnections(aiohttp.TCPConnector):
    """Idle connections stay without a byte, or are closed."""

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
        return await super()._get(key, traces)

    async def connect(self, req: aiohttp.ClientRequest, traces: list[Any], timeout: Any) -> Connection:  # noqa: ASYNC109 - aiohttp's name
        connection = await super().connect(req, traces, timeout)
        protocol = connection.protocol
        assert isinstance(protocol, UpstreamConnection)
        if protocol.is_idle and not req.body:  # its head is written without another step of the event loop
            protocol.use_again()
        return connection

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        assert isinstance(protocol, UpstreamConnection)
        protocol.is_idle = True
        super()._release(key, protocol, should_close=should_close)
