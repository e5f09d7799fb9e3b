"""MCP servers that requests name by URL. The operator's list must permit the URL. Each owner (API key) has a
session of its own with each server.

Raises `Fault` INVALID_REQUEST, before connecting, for a server that is not permitted or not valid. Later failures
are not raised: they are returned as `McpFault`s in the `McpListing` or `McpResult`. No message contains a header or
an authorization of a request.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Final

import msgspec

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.interfaces import Clock
from codex_proxy.mcp.allowed_urls import SETTING, AllowedUrls, Resolve, normalized_url
from codex_proxy.mcp.config import HttpServer, Transport
from codex_proxy.mcp.servers import REFRESH_INTERVAL, McpServer
from codex_proxy.mcp.values import McpFault, McpFaultKind, McpLimits, McpListing, McpResult, failed

IDLE_SECONDS: Final = 60.0
"""Seconds for which a session is kept after its last use. A client's next request usually comes within seconds."""
MAX_SESSIONS: Final = 64
"""The most sessions of all owners together. Each needs an open connection."""

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\t]{0,16384}")
_FORBIDDEN_HEADERS: Final = frozenset(
    {
        *(
            "host",
            "connection",
            "content-length",
            "content-type",
            "transfer-encoding",
            "te",
            "trailer",
            "upgrade",
        ),
        *("accept", "accept-encoding", "expect", "mcp-session-id", "mcp-protocol-version", "last-event-id"),
        *("proxy-authorization", "proxy-connection"),
    }
)
"""Headers that a request may not set: they would redirect the message (`Host`), or belong to the connection or the
protocol."""


class NamedServer(msgspec.Struct, frozen=True, kw_only=True):
    """An MCP server that a request names by its URL, as an item of the request's `tools` describes it."""

    server_label: str
    server_url: str
    headers: dict[str, str] = {}
    authorization: str | None = None
    """An access token, sent as `Authorization: Bearer ...` in place of a header of that name. None: no token is
    sent."""
    allowed_tools: tuple[str, ...] | None = None
    """The names of the tools that this request may use; None permits all."""

    def allows(self, tool: str) -> bool:
        """Whether this request may use the tool named `tool`."""
        return self.allowed_tools is None or tool in self.allowed_tools


class _Session:
    """An owner's session with a server, kept under `key`. `users` is the number of requests that use it now;
    `expiry` is the timer that closes it after `idle_seconds` without use, None while it is used.
    """

    def __init__(self, key: tuple[str, str, bytes], mcp_server: McpServer) -> None:
        self.key = key
        self.mcp_server = mcp_server
        self.users = 0
        self.expiry: asyncio.TimerHandle | None = None


class RequestServers:
    """Opens sessions with the MCP servers that requests name, and keeps unused ones for a while. Call `close` when
    the proxy stops.
    """

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
        """`allowed` lists the permitted URLs (see `allowed_urls`); `resolve` looks up host names, None for the
        system's resolver. `limits` are those of each server; None for the defaults of `McpLimits`.

        `idle_seconds` is how long an unused session is kept, `refresh_interval` the age in seconds at which a list
        of tools is fetched again, and `max_sessions` the maximum number of open sessions (see `_make_room`). Raises
        `ValueError` for an invalid entry of `allowed`.
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
        """Checks that a request may use the server.

        Raises `Fault` INVALID_REQUEST for the field `param` if the URL is invalid or not permitted, or a header or
        the authorization is not allowed.
        """
        try:
            normalized_url(server.server_url)
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
        """Returns those tools of the server that the request allows. If the server has failed, there are none, and
        the listing has the fault. `owner` is the name of the request's API key. Raises `Fault` INVALID_REQUEST if
        the request may not use the server.
        """
        self.check(server)
        session = self._acquire(server, owner)
        if isinstance(session, McpFault):
            return McpListing((), (session,))
        try:
            listing = await session.mcp_server.tools()
        finally:
            self._release(session)
        return McpListing(tuple(tool for tool in listing.tools if server.allows(tool.name)), listing.faults)

    async def call(
        self, server: NamedServer, owner: str, tool: str, arguments: str, timeout_seconds: float
    ) -> McpResult:
        """Runs a tool. `owner` is the name of the request's API key, and `arguments` is JSON text. A call that
        fails, or of a tool that the request does not allow, returns a failed result. If the caller is cancelled,
        the server is asked to stop the call. Raises `Fault` INVALID_REQUEST if the request may not use the server.
        """
        self.check(server)
        if not server.allows(tool):
            what = f"may not run '{tool}' here: it is not among the allowed tools."
            return failed(self._fault(McpFaultKind.NOT_ALLOWED, server, what))
        session = self._acquire(server, owner)
        if isinstance(session, McpFault):
            return failed(session)
        try:
            return await session.mcp_server.call(tool, arguments, timeout_seconds)
        finally:
            self._release(session)

    @property
    def open_sessions(self) -> int:
        """The number of sessions that are open now."""
        return len(self._sessions)

    async def close(self) -> None:
        """Ends all sessions and returns when they have ended, or when the time limit of `McpServer.close` is over.
        May be called twice. Later calls of `tools` and `call` return a fault.
        """
        self._closed = True
        for key in list(self._sessions):
            self._close_session(key)
        if self._closing:
            await asyncio.wait(self._closing)

    # --- sessions -------------------------------------------------------------------------------

    def _acquire(self, server: NamedServer, owner: str) -> _Session | McpFault:
        """Returns the owner's session with this server, after creating it if needed, and adds the request to its
        users. Returns a fault if this object is closed, or if all `max_sessions` sessions are in use. Each session
        must be given back with `_release`.
        """
        if self._closed:
            return self._fault(
                McpFaultKind.CLOSED, server, "is no longer available: this server is shutting down."
            )
        headers = _headers(server)
        key = (owner, server.server_url, _digest(server.server_label, headers))
        session = self._sessions.pop(key, None)
        if session is None:
            if not self._make_room():
                what = "cannot be connected to now: too many MCP servers are in use. Try again later."
                return self._fault(McpFaultKind.UNREACHABLE, server, what)
            session = _Session(key, self._new_server(server, headers))
        self._sessions[key] = session  # at the end: the dictionary is ordered by last use
        session.users += 1
        if session.expiry is not None:
            session.expiry.cancel()
            session.expiry = None
        return session

    def _release(self, session: _Session) -> None:
        """Removes one user from the session. After the last one, starts the timer that closes the session."""
        session.users -= 1
        if not session.users and not self._closed:
            loop = asyncio.get_running_loop()
            session.expiry = loop.call_later(self._idle_seconds, self._close_session, session.key)

    def _make_room(self) -> bool:
        """Makes room for one more session: if `max_sessions` are open, closes the least recently used of those
        that no request uses. Returns whether there is room.
        """
        if len(self._sessions) < self._max_sessions:
            return True
        unused = next((key for key, session in self._sessions.items() if not session.users), None)
        if unused is None:
            return False
        self._close_session(unused)
        return True

    def _close_session(self, key: tuple[str, str, bytes]) -> None:
        """Removes the session `key` from the open ones, and starts a task that ends it."""
        session = self._sessions.pop(key)
        if session.expiry is not None:
            session.expiry.cancel()
        closing = asyncio.create_task(session.mcp_server.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _new_server(self, server: NamedServer, headers: dict[str, str]) -> McpServer:
        """Returns a client of the server, not yet connected. A URL whose path ends with `/sse` gets the SSE
        transport.
        """
        path = normalized_url(server.server_url).path.rstrip("/")
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
        """Returns the exception to raise, for the field `param`; `what` continues the sentence `MCP server 'label'
        ...`.
        """
        return bad_request(f"MCP server '{server.server_label}' {what}", param, "invalid_mcp_server")

    def _fault(self, kind: McpFaultKind, server: NamedServer, what: str) -> McpFault:
        """Returns a fault of this server; `what` continues the sentence `MCP server 'label' ...`."""
        message = f"MCP server '{server.server_label}' {what}"
        return McpFault(kind=kind, server_label=server.server_label, message=message)


def _headers(server: NamedServer) -> dict[str, str]:
    """Returns the headers to send to the server: those of the request, with the access token as `Authorization` if
    there is one.
    """
    if server.authorization is None:
        return server.headers
    others = {name: value for name, value in server.headers.items() if name.lower() != "authorization"}
    return {**others, "Authorization": f"Bearer {server.authorization}"}


def _digest(label: str, headers: dict[str, str]) -> bytes:
    """Returns a hash of label and headers, so that a request with other credentials gets another session.

    It is hashed so that the dictionary's keys contain no credentials.
    """
    return hashlib.sha256(msgspec.json.encode((label, sorted(headers.items())))).digest()
