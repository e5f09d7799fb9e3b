"""MCP servers that requests name by URL. Each owner (API key) has its own session with each. A server that is not
permitted or not valid raises `Fault` INVALID_REQUEST before connecting; later failures are `McpFault`s in the
listing or result. No message contains headers or credentials.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.interfaces import Clock, keep_until_done
from codex_proxy.parts.mcp.config import SETTING, AllowedUrls, HttpServer, Resolve, Transport, normalize_url
from codex_proxy.parts.mcp.servers import REFRESH_INTERVAL, McpServer
from codex_proxy.parts.mcp.values import (
    McpError,
    McpFaultKind,
    McpLimits,
    McpListing,
    McpResult,
    failed_result,
    fault_of,
)

IDLE_SECONDS: Final = 60.0
"""Seconds for which an unused session is kept; the next request usually comes within some."""
MAX_SESSIONS: Final = 64
"""Maximum sessions of all owners together; each needs a connection."""

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\t]{0,16384}")
_FORBIDDEN_HEADERS: Final = frozenset({
    "host", "connection", "content-length", "content-type", "transfer-encoding", "te", "trailer",
    "upgrade", "accept", "accept-encoding", "expect", "proxy-authorization", "proxy-connection",
    "mcp-session-id", "mcp-protocol-version", "last-event-id",
})  # fmt: skip
"""Headers that redirect the message (`Host`), or belong to the connection or the protocol."""


class NamedServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server in the request's `tools`."""

    server_label: str
    server_url: str
    headers: dict[str, str] = {}
    authorization: str | None = None
    """The token for `Authorization: Bearer ...`, in place of that header."""


class _Session:
    """An owner's session, used by `users` requests; `expiry` closes it after `idle_seconds` without any."""

    def __init__(self, mcp_server: McpServer) -> None:
        self.mcp_server = mcp_server
        self.users = 0
        self.expiry: asyncio.TimerHandle | None = None


class RequestServers:
    """Sessions with the servers that requests name; unused ones are kept for a while. `close` it."""

    def __init__(
        self,
        allowed: tuple[str, ...],
        *,
        clock: Clock,
        limits: McpLimits | None = None,
        refresh_interval: float = REFRESH_INTERVAL,
        idle_seconds: float = IDLE_SECONDS,
        max_sessions: int = MAX_SESSIONS,
        resolve: Resolve | None = None,
    ) -> None:
        """`allowed` are the permitted URLs, `resolve` looks up names (None: the system). `refresh_interval`: seconds
        after which tools are listed again. Raises `ValueError` for an invalid entry of `allowed`.
        """
        self._allowed_urls = AllowedUrls(allowed, resolve)
        self._clock = clock
        self._limits = limits or McpLimits()
        self._refresh_interval = refresh_interval
        self._idle_seconds = idle_seconds
        self._max_sessions = max_sessions
        self._sessions: dict[tuple[str, str, bytes], _Session] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def check(self, server: NamedServer, param: str = "tools") -> None:
        """Raises `Fault` INVALID_REQUEST for `param` unless URL, headers and authorization are valid and permitted."""
        try:
            normalize_url(server.server_url)
        except ValueError as error:
            raise self._invalid(server, f"has no valid `server_url`: {error}.", param) from None
        if not self._allowed_urls.permits(server.server_url):
            message = (
                f"may not be used. Ask the operator to allow its `server_url` in {SETTING}, or "
                "to add the server to the file of MCP servers."
            )
            raise self._invalid(server, message, param)
        for name, value in server.headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise self._invalid(server, "has an invalid header.", param)
            if name.lower() in _FORBIDDEN_HEADERS:
                raise self._invalid(server, f"must not set the header '{name}'.", param)
        if server.authorization is not None and not _HEADER_VALUE.fullmatch(server.authorization):
            raise self._invalid(server, "has an invalid `authorization`.", param)

    async def tools(self, server: NamedServer, owner: str) -> McpListing:
        """Returns the tools, or none and a fault. Raises `Fault` INVALID_REQUEST if `check` refuses the server."""
        self.check(server)
        try:
            with self._session(server, owner) as mcp_server:
                return await mcp_server.tools()
        except McpError as error:
            return McpListing((), (error.fault,))

    async def call(
        self, server: NamedServer, owner: str, tool: str, arguments: str, timeout_seconds: float
    ) -> McpResult:
        """Runs a tool with JSON `arguments`; a call that fails has a failed result. Cancelling stops it. Raises `Fault`
        INVALID_REQUEST.
        """
        self.check(server)
        try:
            with self._session(server, owner) as mcp_server:
                return await mcp_server.call(tool, arguments, timeout_seconds)
        except McpError as error:
            return failed_result(error.fault)

    async def close(self) -> None:
        """Ends all sessions; later calls of `tools` and `call` return a fault."""
        self._closed = True
        for key in list(self._sessions):
            self._close_session(key)
        if self._closing:
            await asyncio.wait(self._closing)

    # --- sessions -------------------------------------------------------------------------------

    @contextmanager
    def _session(self, server: NamedServer, owner: str) -> Iterator[McpServer]:
        """Yields the owner's session; after its last user the timer that closes it starts. Raises `McpError` if this
        object is closed or all `max_sessions` are in use.
        """
        if self._closed:
            what = "is no longer available: this server is shutting down."
            raise McpError(fault_of(server.server_label, McpFaultKind.CLOSED, what))
        headers = _headers(server)
        key = (owner, server.server_url, _digest(server.server_label, headers))
        session = self._sessions.pop(key, None)
        if session is None:
            if not self._make_room():
                what = "cannot be connected to now: too many MCP servers are in use. Try again later."
                raise McpError(fault_of(server.server_label, McpFaultKind.UNREACHABLE, what))
            session = _Session(self._new_server(server, headers))
        self._sessions[key] = session  # at the end: the dictionary is ordered by last use
        session.users += 1
        if session.expiry is not None:
            session.expiry.cancel()
            session.expiry = None
        try:
            yield session.mcp_server
        finally:
            session.users -= 1
            if not session.users and not self._closed:
                loop = asyncio.get_running_loop()
                session.expiry = loop.call_later(self._idle_seconds, self._close_session, key)

    def _make_room(self) -> bool:
        if len(self._sessions) < self._max_sessions:
            return True
        unused = next((key for key, session in self._sessions.items() if not session.users), None)
        if unused is None:
            return False
        self._close_session(unused)
        return True

    def _close_session(self, key: tuple[str, str, bytes]) -> None:
        session = self._sessions.pop(key)
        if session.expiry is not None:
            session.expiry.cancel()
        keep_until_done(self._closing, asyncio.create_task(session.mcp_server.close()))

    def _new_server(self, server: NamedServer, headers: dict[str, str]) -> McpServer:
        path = normalize_url(server.server_url).path.rstrip("/")
        transport: Transport = "sse" if path.endswith("/sse") else "either"
        definition = HttpServer(
            label=server.server_label, url=server.server_url, headers=headers, transport=transport
        )
        return McpServer(
            definition,
            clock=self._clock,
            limits=self._limits,
            refresh_interval=self._refresh_interval,
            allowed_urls=self._allowed_urls,
        )

    # --- values and messages --------------------------------------------------------------------

    def _invalid(self, server: NamedServer, what: str, param: str) -> Fault:
        """Returns the fault of an invalid request. `what`: see `fault_of`."""
        return bad_request(f"MCP server '{server.server_label}' {what}", param, "invalid_mcp_server")


def _headers(server: NamedServer) -> dict[str, str]:
    if server.authorization is None:
        return server.headers
    others = {name: value for name, value in server.headers.items() if name.lower() != "authorization"}
    return {**others, "Authorization": f"Bearer {server.authorization}"}


def _digest(label: str, headers: dict[str, str]) -> bytes:
    """Returns a session's key: other credentials get another session, and no dictionary contains them."""
    return hashlib.sha256(msgspec.json.encode((label, sorted(headers.items())))).digest()
