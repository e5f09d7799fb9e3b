"""The transports over HTTP, through a guard that keeps to the list of places, to sizes, and to time.

Imports the `mcp` package: load it where a server is used only. Every request passes `_Guard`, redirects and the
address that an SSE server names for messages too: it is checked where it goes, and connected to what was checked.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Final

import httpx2
from mcp.client._transport import TransportStreams
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client

from codex_proxy.mcp.allowed_urls import SETTING, AllowedUrls, ForbiddenAddressError
from codex_proxy.mcp.config import HttpServer
from codex_proxy.mcp.ports import Report
from codex_proxy.mcp.values import McpFault, McpFaultKind, McpLimits

CONNECT_SECONDS: Final = 10.0
"""For a connection, and for sending a message: longer is a network that drops what we send."""
IDLE_SECONDS: Final = 300.0
"""Between two events of a stream. The call itself has its own deadline, of whoever calls."""
NOTICE_SECONDS: Final = 5.0
"""For the answer to a notification, which is empty. One waits at a time: a server that hangs here holds up calls."""
ADDRESSES: Final = 4
"""How many addresses of a name are tried, as both families of a host with two of each."""
_NOTICE: Final = b'"method":"notifications/'


@asynccontextmanager
async def streamable_transport(
    server: HttpServer, places: AllowedUrls | None, limits: McpLimits, report: Report
) -> AsyncGenerator[TransportStreams, None]:
    """Streamable HTTP. `places` None: an operator's server, which may be anywhere."""
    guard = _Guard(server, places, limits, report)
    async with (
        _client(server, guard) as client,
        streamable_http_client(
            server.url, http_client=client, max_sse_event_size=limits.message_bytes
        ) as streams,
    ):
        yield streams


@asynccontextmanager
async def sse_transport(
    server: HttpServer, places: AllowedUrls | None, limits: McpLimits, report: Report
) -> AsyncGenerator[TransportStreams, None]:
    """The older transport. The `mcp` package takes no events above 1 MiB here: a larger one ends the connection."""
    guard = _Guard(server, places, limits, report, events_are_the_connection=True)

    def client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,
        auth: httpx2.Auth | None = None,
    ) -> httpx2.AsyncClient:
        return _client(server, guard)

    async with sse_client(server.url, httpx_client_factory=client) as streams:
        yield streams


def _client(server: HttpServer, guard: _Guard) -> httpx2.AsyncClient:
    return httpx2.AsyncClient(
        headers={"User-Agent": "codex-proxy", **server.headers, "Accept-Encoding": "identity"},
        transport=guard,
        timeout=httpx2.Timeout(CONNECT_SECONDS, read=IDLE_SECONDS),
        trust_env=False,  # a proxy would connect where we must not, and .netrc holds credentials
    )


class _Guard(httpx2.AsyncBaseTransport):
    """Lets a request go where it may, and notes in the report what the `mcp` package does not tell."""

    def __init__(
        self,
        server: HttpServer,
        places: AllowedUrls | None,
        limits: McpLimits,
        report: Report,
        *,
        events_are_the_connection: bool = False,
    ) -> None:
        self._label = server.label
        self._places = places
        self._limits = limits
        self._report = report
        self._sse = events_are_the_connection
        self._inner = httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method == "POST" and _NOTICE in (await request.aread())[:200]:
            request.extensions["timeout"]["read"] = NOTICE_SECONDS
        try:
            response = await self._sent(request)
        except httpx2.TransportError:
            if self._report.fault is None:
                self._note(
                    McpFaultKind.UNREACHABLE, "could not be reached. Check its address, and that it runs."
                )
            if request.method == "POST":  # what sends, in the package, stops at a fault and tells nobody
                self._report.ended.set()
            raise
        self._judge(request, response)
        return self._bounded(request, response)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def _sent(self, request: httpx2.Request) -> httpx2.Response:
        if self._places is None:
            return await self._inner.handle_async_request(request)
        if not self._places.permits(str(request.url)):
            raise self._forbidden(
                f"leads to an address that is not on {SETTING}: the operator has to list all that it uses."
            )
        host, port = request.url.host, request.url.port or (443 if request.url.scheme == "https" else 80)
        try:
            addresses = await self._places.addresses(host, port)
        except ForbiddenAddressError:
            raise self._forbidden("leads to an address that is not public.") from None
        except OSError:
            raise httpx2.ConnectError("its name has no address") from None
        fault: httpx2.TransportError = httpx2.ConnectError("its name has no address")
        for address in addresses[:ADDRESSES]:
            try:
                return await self._inner.handle_async_request(_at(address, request))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                fault = error
        raise fault

    def _forbidden(self, what: str) -> httpx2.ConnectError:
        self._note(McpFaultKind.FORBIDDEN, what)
        return httpx2.ConnectError("not allowed")

    def _judge(self, request: httpx2.Request, response: httpx2.Response) -> None:
        """Notes what a status says. A GET of Streamable HTTP may be refused: not every server sends by itself."""
        status = response.status_code
        if request.method != ("GET" if self._sse else "POST") and not (self._sse and status >= 300):
            return
        self._report.refused = status if status >= 300 else None
        if status < 300:
            self._report.fault = None
        elif status in (401, 403):
            self._note(
                McpFaultKind.UNAUTHORIZED,
                f"refused the credentials, or wants some (status {status}). Check its headers or authorization.",
            )
        elif status < 400:
            self._note(McpFaultKind.FORBIDDEN, "redirects to another address, which is not followed.")
        elif status == 404 and "mcp-session-id" in request.headers:
            self._note(McpFaultKind.DIED, "has forgotten the session.")
            self._report.forgotten = True
            self._report.ended.set()
        else:
            self._note(McpFaultKind.UNREACHABLE, f"answered with status {status}.")

    def _bounded(self, request: httpx2.Request, response: httpx2.Response) -> httpx2.Response:
        events = response.headers.get("content-type", "").lower().startswith("text/event-stream")
        stream = response.stream
        assert isinstance(stream, httpx2.AsyncByteStream)
        on_end = self._report.ended.set if self._sse and request.method == "GET" else None
        limit = None if events else self._limits.message_bytes
        headers = response.headers.copy()
        headers.pop(
            "content-encoding", None
        )  # we asked for none: what is unpacked can be a thousand times as large
        return httpx2.Response(
            response.status_code,
            headers=headers,
            stream=_Bounded(stream, limit, self._too_large, on_end),
            extensions=response.extensions,
        )

    def _too_large(self) -> None:
        self._note(McpFaultKind.PROTOCOL, "sent an answer that is too large.")

    def _note(self, kind: McpFaultKind, what: str) -> None:
        message = f"MCP server '{self._label}' {what}"
        self._report.fault = McpFault(kind=kind, server_label=self._label, message=message)


class _Bounded(httpx2.AsyncByteStream):
    """The body of an answer, up to a limit. A stream of events has none: each of them has its own."""

    def __init__(
        self,
        inner: httpx2.AsyncByteStream,
        limit: int | None,
        on_too_large: Callable[[], None],
        on_end: Callable[[], None] | None,
    ) -> None:
        self._inner = inner
        self._limit = limit
        self._on_too_large = on_too_large
        self._on_end = on_end

    async def __aiter__(self) -> AsyncIterator[bytes]:
        seen = 0
        async for chunk in self._inner:
            seen += len(chunk)
            if self._limit is not None and seen > self._limit:
                self._on_too_large()
                raise httpx2.StreamError("too large")
            yield chunk

    async def aclose(self) -> None:
        if self._on_end is not None:
            self._on_end()
        await self._inner.aclose()


def _at(address: str, request: httpx2.Request) -> httpx2.Request:
    """The request to this very address. Its `Host` stays, and its certificate is checked for the name."""
    return httpx2.Request(
        request.method,
        request.url.copy_with(host=address),
        headers=request.headers,
        stream=request.stream,
        extensions={**request.extensions, "sni_hostname": request.url.host},
    )
