"""The pool of connections to one upstream. A connection is used again only if nothing has come on it since the last
answer: such bytes would be read as the next answer.
"""

from __future__ import annotations

import asyncio
import functools
import select
import time
from typing import Any, Final, Protocol

import aiohttp
from aiohttp import StreamReader
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection
from aiohttp.http_parser import RawResponseMessage
from yarl import URL

MAX_HEADER_BYTES: Final = 16_384


class AnswerListener(Protocol):
    """Takes what comes on a connection, within the call that has read it."""

    def on_head(self, message: RawResponseMessage, body: StreamReader) -> None:
        """Handles a head, also of an interim answer. `body` gets what follows."""

    def on_data(self) -> None:
        """Called when bytes were read, or the connection has ended."""


class UpstreamConnection(ResponseHandler):
    """A connection to an upstream. From an answer's end until the next request is written, the first byte closes it."""

    is_idle = False
    was_used = False
    listener: AnswerListener | None = None
    """What gets the answer; without one, aiohttp's own requests read it."""

    def begin(self, listener: AnswerListener) -> None:
        """Prepares for the answer to a request that is written next."""
        self.listener = listener
        self.set_response_params(
            read_until_eof=True,
            auto_decompress=False,
            max_line_size=MAX_HEADER_BYTES,
            max_field_size=MAX_HEADER_BYTES,
        )

    def data_received(self, data: bytes) -> None:
        if self.is_idle and data:  # without data aiohttp only continues to parse what has come before
            self.close()
            return
        super().data_received(data)
        if data and self.listener is not None:
            self.listener.on_data()

    def resume_reading(self, resume_parser: bool = True) -> None:
        # aiohttp calls this for each piece that is taken, and parses nothing once more.
        if self._reading_paused or self._buffer_paused:
            super().resume_reading(resume_parser)
            # What was held back is in the answer's body now, behind what its reader is taking: nothing else may come.
            self._loop.call_soon(self._tell_listener)

    def _tell_listener(self) -> None:
        if self.listener is not None:
            self.listener.on_data()

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        if self.listener is None:
            super().feed_data(data, size)
        else:
            self.listener.on_head(*data)

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self.listener is not None:
            self.listener.on_data()

    @property
    def has_unread(self) -> bool:
        """Whether bytes, or the connection's end, have come that the event loop has not read yet."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        poll = select.poll()
        poll.register(transport.get_extra_info("socket"), select.POLLIN)
        return bool(poll.poll(0))


class UpstreamConnections(aiohttp.TCPConnector):
    """A connector that closes an idle connection on which a byte comes. A taken one must be written to before the event
    loop reads again.
    """

    def __init__(
        self, url: str, *, proxy: str | None, connect_timeout: float, keepalive: float, **settings: Any
    ) -> None:
        """`url`: the base address; `proxy`: that of an HTTP proxy; `keepalive`: the seconds that an idle connection is
        kept. `settings` are aiohttp's.
        """
        super().__init__(keepalive_timeout=keepalive, **settings)
        self._keepalive = keepalive
        loop = asyncio.get_running_loop()
        self._factory: functools.partial[Any] = functools.partial(UpstreamConnection, loop=loop)
        self._request = aiohttp.ClientRequest(
            "POST", URL(url), loop=loop, proxy=URL(proxy) if proxy else None
        )
        self._key = self._request.connection_key
        self._timeout = aiohttp.ClientTimeout(total=None, connect=connect_timeout)
        self.headers = {"Host": self._request.headers["Host"]}
        """The headers that every request has because of the address."""
        self.target = self._request.url.raw_path.rstrip("/")
        """The base of the path in a request's first line."""
        if proxy and not self._request.is_ssl():  # the proxy is not asked for a tunnel
            self.target = str(self._request.url).rstrip("/")
            asked = aiohttp.ClientRequest("GET", URL(proxy), loop=loop)
            if "Authorization" in asked.headers:
                self.headers["Proxy-Authorization"] = asked.headers["Authorization"]

    async def open(self) -> Connection:
        """Returns a connection, idle or new. Raises `aiohttp.ClientError`, `OSError` or `ValueError`."""
        return await self.connect(self._request, [], self._timeout)

    def take_idle(self) -> Connection | None:
        idle = self._conns.get(self._key)
        oldest = time.monotonic() - self._keepalive
        while idle:
            protocol, since = idle.popleft()
            assert isinstance(protocol, UpstreamConnection)
            if since < oldest or protocol.has_unread:
                protocol.close()
                continue
            self._acquired.add(protocol)
            protocol.is_idle = False
            return Connection(self, self._key, protocol, self._loop)
        return None

    async def _get(self, key: Any, traces: list[Any]) -> Any:
        return self.take_idle()

    def _release(self, key: Any, protocol: ResponseHandler, *, should_close: bool = False) -> None:
        assert isinstance(protocol, UpstreamConnection)
        protocol.listener = None
        protocol.is_idle = protocol.was_used = True
        super()._release(key, protocol, should_close=should_close)
