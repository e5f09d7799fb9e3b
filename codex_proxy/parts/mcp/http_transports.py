"""The HTTP transports of MCP (Streamable HTTP and SSE), with the large `mcp` package. Every request, also a redirect,
goes through `_GuardedTransport`, which connects to exactly the address that it has checked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import httpx2
import msgspec
from mcp.client._transport import TransportStreams
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from codex_proxy.core.json_values import is_too_costly
from codex_proxy.parts.mcp.config import SETTING, AllowedUrls, ForbiddenAddressError, HttpServer
from codex_proxy.parts.mcp.connection import TransportReport
from codex_proxy.parts.mcp.messages import Waiting
from codex_proxy.parts.mcp.values import McpFaultKind, McpLimits, fault_of

CONNECT_SECONDS: Final = 4.0
"""Seconds for connecting: a network that loses packets needs three."""
SEND_SECONDS: Final = 10.0
"""Seconds for sending one message."""
IDLE_SECONDS: Final = 300.0
"""Seconds of silence in a stream; calls have their own deadline."""
NOTIFICATION_SECONDS: Final = 5.0
"""Seconds for the answer to a notification, for which calls wait."""
MAX_ADDRESSES: Final = 4
"""Maximum addresses of a host that are tried: two IPv4, two IPv6."""
BLANK_LINES: Final = (b"\n\n", b"\r\n\r\n", b"\r\r")
"""What ends an event of a stream."""
_NOTIFICATION: Final = b'"method":"notifications/'


@asynccontextmanager
async def streamable_transport(
    server: HttpServer, allowed_urls: AllowedUrls | None, limits: McpLimits, report: TransportReport
) -> AsyncGenerator[TransportStreams, None]:
    """Opens Streamable HTTP. `allowed_urls`: None permits any, for the operator's servers. `report` gets failures."""
    guard = _GuardedTransport(server, allowed_urls, limits, report)
    most = limits.message_bytes
    async with (
        _client(server, guard) as client,
        streamable_http_client(server.url, http_client=client, max_sse_event_size=most) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse_transport(
    server: HttpServer, allowed_urls: AllowedUrls | None, limits: McpLimits, report: TransportReport
) -> AsyncGenerator[TransportStreams, None]:
    """Opens SSE; the `mcp` package ends it at an event above 1 MiB. See `streamable_transport`."""
    guard = _GuardedTransport(server, allowed_urls, limits, report, is_sse=True)

    def client(*_: object, **__: object) -> httpx2.AsyncClient:
        return _client(server, guard)

    async with sse_client(server.url, httpx_client_factory=client) as streams:
        yield streams


def _client(server: HttpServer, guard: _GuardedTransport) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        headers={"User-Agent": "codex-proxy", **server.headers, "Accept-Encoding": "identity"},
        transport=guard,
        timeout=httpx2.Timeout(SEND_SECONDS, connect=CONNECT_SECONDS, read=IDLE_SECONDS),
        trust_env=False,  # a proxy would connect to unchecked addresses, and .netrc holds credentials
    )


class _GuardedTransport(httpx2.AsyncBaseTransport):
    """Sends requests to permitted addresses only. Raises `httpx2.ConnectError` for others; `report.fault` says why the
    last request failed.
    """

    def __init__(
        self,
        server: HttpServer,
        allowed_urls: AllowedUrls | None,
        limits: McpLimits,
        report: TransportReport,
        *,
        is_sse: bool = False,
    ) -> None:
        self._label = server.label
        self._allowed_urls = allowed_urls
        self._limits = limits
        self._report = report
        self._is_sse = is_sse
        self._inner = httpx2.AsyncHTTPTransport()
        self._waiting = Waiting()
        """The requests of an SSE connection, whose answers come in its one stream."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        waiting = self._waiting if self._is_sse else Waiting()
        if request.method == "POST":
            body = await request.aread()
            waiting.note_sent(msgspec.json.decode(body))
            if _NOTIFICATION in body[:200]:
                request.extensions["timeout"]["read"] = NOTIFICATION_SECONDS
        try:
            response = await self._send(request)
        except httpx2.TransportError as error:
            if self._report.fault is None:
                late = isinstance(error, httpx2.ConnectTimeout)
                what = f"could not be reached{f' within {CONNECT_SECONDS:g} s' if late else ''}"
                kind = McpFaultKind.TIMED_OUT if late else McpFaultKind.UNREACHABLE
                self._note(kind, f"{what}. Check its address, and that it runs.")
            if request.method == "POST":  # the package's sending task stops at an error without reporting it
                self._report.ended.set()
            raise
        self._note_status(request, response)
        return self._limit_body(request, response, waiting)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _send(self, request: httpx2.Request) -> httpx2.Response:
        if self._allowed_urls is None:
            return await self._inner.handle_async_request(request)
        if not self._allowed_urls.permits(str(request.url)):
            what = f"uses an address that is not allowed in {SETTING}. The operator must list "
            what += "every address that it uses."
            raise self._forbidden(what)
        host, port = request.url.host, request.url.port or (443 if request.url.scheme == "https" else 80)
        try:
            addresses = await self._allowed_urls.addresses(host, port)
        except ForbiddenAddressError:
            raise self._forbidden("has an address that is not public.") from None
        except OSError:
            raise httpx2.ConnectError("its host name does not resolve") from None
        fault: httpx2.TransportError = httpx2.ConnectError("its host name does not resolve")
        for address in addresses[:MAX_ADDRESSES]:
            try:
                return await self._inner.handle_async_request(_with_address(address, request))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                fault = error
        raise fault

    def _forbidden(self, what: str) -> httpx2.ConnectError:
        self._note(McpFaultKind.FORBIDDEN, what)
        return httpx2.ConnectError("not allowed")

    def _note_status(self, request: httpx2.Request, response: httpx2.Response) -> None:
        status = response.status_code
        # A Streamable HTTP server may refuse GET: not every server sends messages of its own.
        if request.method != ("GET" if self._is_sse else "POST") and not (self._is_sse and status >= 300):
            return
        self._report.refused_status = status if status >= 300 else None
        if status < 300:
            self._report.fault = None
        elif status in (401, 403):
            what = f"rejected the credentials or requires some (status {status}). Check its headers or authorization."
            self._note(McpFaultKind.UNAUTHORIZED, what)
        elif status < 400:
            self._note(McpFaultKind.FORBIDDEN, "answered with a redirect, which this server does not follow.")
        elif status == 404 and "mcp-session-id" in request.headers:
            self._note(McpFaultKind.DIED, "no longer knows the session.")
            self._report.session_lost = True
            self._report.ended.set()
        else:
            self._note(McpFaultKind.UNREACHABLE, f"answered with status {status}.")

    def _limit_body(
        self, request: httpx2.Request, response: httpx2.Response, waiting: Waiting
    ) -> httpx2.Response:
        """Limits a response's body, and mends its messages; the end of an SSE stream sets `ended`."""
        form = response.headers.get("content-type", "").lower()
        events = form.startswith("text/event-stream")
        mend = waiting.mend_events if events else waiting.mend_body
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        on_end = self._report.ended.set if self._is_sse and request.method == "GET" else None
        headers = response.headers.copy()
        # None was asked for: decompressed content could be a thousand times larger than the limit.
        headers.pop("content-encoding", None)
        return httpx2.Response(
            response.status_code,
            headers=headers,
            stream=_LimitedBody(
                stream,
                self._limits.message_bytes,
                self._on_too_large,
                on_end,
                mend if events or form.startswith("application/json") else None,
                events=events,
            ),
            extensions=response.extensions,
        )

    def _on_too_large(self) -> None:
        self._note(McpFaultKind.PROTOCOL, "sent an answer that is too large.")

    def _note(self, kind: McpFaultKind, what: str) -> None:
        """Reports a fault. `what`: see `fault_of`."""
        self._report.fault = fault_of(self._label, kind, what)


class _LimitedBody(httpx2.AsyncByteStream):
    """A body, as a whole or event by event (`events`). At a message of more than `limit` bytes, or whose values take
    too long to decode, `on_too_large` is called and `httpx2.StreamError` raised. `on_end` is called when it is closed.
    `mend` converts a body, or whole events.
    """

    def __init__(
        self,
        inner: httpx2.AsyncByteStream,
        limit: int,
        on_too_large: Callable[[], None],
        on_end: Callable[[], None] | None,
        mend: Callable[[bytes], bytes] | None,
        *,
        events: bool,
    ) -> None:
        self._inner = inner
        self._mend = mend
        self._limit = limit
        self._on_too_large = on_too_large
        self._on_end = on_end
        self._events = events

    async def __aiter__(self) -> AsyncIterator[bytes]:
        message = bytearray()
        async for chunk in self._inner:
            before = len(message)
            message += chunk
            end = _end_of_events(message, before) if self._events else 0
            if end:
                yield self._checked(bytes(message[:end]))
                del message[:end]
            if len(message) > self._limit:
                raise self._too_large()
        if message and self._events:
            message += b"\n\n"  # the last event may lack its blank line
        yield self._checked(bytes(message))

    def _checked(self, message: bytes) -> bytes:
        if is_too_costly(message):
            raise self._too_large()
        return message if self._mend is None else self._mend(message)

    def _too_large(self) -> httpx2.StreamError:
        self._on_too_large()
        return httpx2.StreamError("too large")

    async def aclose(self) -> None:
        if self._on_end is not None:
            self._on_end()
        await self._inner.aclose()


def _end_of_events(data: bytearray, before: int) -> int:
    """Returns where the last whole event of a stream ends; 0 if none does. The first `before` bytes have none."""
    start = max(0, before - 3)
    ends = (data.rfind(gap, start) + len(gap) for gap in BLANK_LINES if data.find(gap, start) >= 0)
    return max(ends, default=0)


def _with_address(address: str, request: httpx2.Request) -> httpx2.Request:
    """Returns the request for this IP address: `Host` stays, and the certificate is checked for the name."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.host},
    )
