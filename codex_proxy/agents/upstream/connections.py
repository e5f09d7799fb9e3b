"""The pool of connections to one upstream. A connection is used again only if nothing has come on it since the last
answer: such bytes would be read as the answer to the next request.
"""

from __future__ import annotations

import asyncio
import functools
import select
from typing import Any

import aiohttp
from aiohttp.client_proto import ResponseHandler


class UpstreamConnection(ResponseHandler):
    """One connection. While it is idle, the first byte closes it."""

    is_idle = False

    def data_received(self, data: bytes) -> None:
        if self.is_idle and data:  # without data aiohttp only continues to parse what has come before
            self.close()
        else:
            super().data_received(data)

    @property
    def has_unread(self) -> bool:
        """Whether the upstream has sent bytes, or the end of the connection, that the event loop has not read yet."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        poll = select.poll()
        poll.register(transport.get_extra_info("socket"), select.POLLIN)
        return bool(poll.poll(0))


class UpstreamConnections(aiohttp.TCPConnector):
    """A connector whose idle connections stay without a byte, or are closed. It overrides how aiohttp takes a
    connection from the pool and puts it back.
    """

    def __init__(self, **settings: Any) -> None:
        """`settings` are those of `aiohttp.TCPConnector`."""
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
        if connection is not None:
            assert isinstance(connection.protocol, UpstreamConnection)
            connection.protocol.is_idle = False
        return connection

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        assert isinstance(protocol, UpstreamConnection)
        protocol.is_idle = True
        super()._release(key, protocol, should_close=should_close)
