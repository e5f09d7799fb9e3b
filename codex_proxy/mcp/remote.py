"""MCP servers that a request names: only where the operator allows it, and one session per owner for a short time.

In: what the request says of a server, and whose request it is. Out: a listing, or the result of a call. Raises `Fault`
INVALID_REQUEST for a server that may not be used or is written wrongly, before anything is connected to; whatever
the server then does wrong is a value. What a request brings (headers, authorization) is in no message.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from typing import Final

import msgspec

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.ids import Clock
from codex_proxy.mcp.allowed_urls import SETTING, AllowedUrls, Resolve, allowed_url_of
from codex_proxy.mcp.config import HttpServer, Transport
from codex_proxy.mcp.keeper import Keeper
from codex_proxy.mcp.servers import REFRESH_INTERVAL
from codex_proxy.mcp.values import McpFault, McpFaultKind, McpLimits, McpListing, McpResult, failed

IDLE_SECONDS: Final = 60.0
"""How long a session is kept after its last use: a client's next step comes within seconds."""
MAX_SESSIONS: Final = 64
"""Of all owners together: each is a connection with a stream that stays open."""

_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}")
_HEADER_VALUE: Final = re.compile(r"[\x20-\x7e\t]{0,16384}")
_OURS: Final = frozenset(
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
"""Headers that lead a request elsewhere (`Host`), or that belong to the connection or to the protocol."""


class NamedServer(msgspec.Struct, frozen=True, kw_only=True):
    """A server as a request names it."""

    server_label: str
    server_url: str
    headers: dict[str, str] = {}
    authorization: str | None = None
    """An access token: sent as `Authorization: Bearer ...`, instead of a header of that name."""
    allowed_tools: tuple[str, ...] | None = None
    """The tools that there are for this request; None: all that the server has."""

    def allows(self, tool: str) -> bool:
        return self.allowed_tools is None or tool in self.allowed_tools


class _Session:
    """A server of one owner, and who uses it."""

    def __init__(self, keeper: Keeper) -> None:
        self.keeper = keeper
        self.users = 0
        self.expiry: asyncio.TimerHandle | None = None


class RemoteServers:
    """Sessions with the servers of requests. `close` it at the end."""

    def __init__(
        self,
        allowed: tuple[str, ...],
        *,
        clock: Clock,
        limits: McpLimits | None = None,
        refresh_interval: float = REFRESH_INTERVAL,
        idle: float = IDLE_SECONDS,
        most: int = MAX_SESSIONS,
        resolve: Resolve | None = None,
    ) -> None:
        """`allowed`: URLs; each permits itself and what is below it (`places`). Raises `ValueError` for any other
        entry. `resolve` finds the addresses of names, the system does if there is none."""
        self._places = AllowedUrls(allowed, resolve)
        self._clock = clock
        self._limits = limits or McpLimits()
        self._refresh_interval = refresh_interval
        self._idle = idle
        self._most = most
        self._sessions: dict[tuple[str, str, bytes], _Session] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._closed = False

    def check(self, server: NamedServer, param: str = "tools") -> None:
        """Whether the server may be used: else raises `Fault` INVALID_REQUEST on `param`, naming the setting."""
        try:
            allowed_url_of(server.server_url)
        except ValueError as error:
            raise self._wrong(server, f"has no valid `server_url`: {error}.", param) from None
        if not self._places.permits(server.server_url):
            message = (
                f"may not be connected to: have the operator allow its `server_url` in {SETTING}, "
                "or give the server to the operator's own."
            )
            raise self._wrong(server, message, param)
        for name, value in server.headers.items():
            if not _HEADER_NAME.fullmatch(name) or not _HEADER_VALUE.fullmatch(value):
                raise self._wrong(server, "has a header that is no valid one.", param)
            if name.lower() in _OURS:
                raise self._wrong(server, f"must not set the header '{name}'.", param)
        if server.authorization is not None and not _HEADER_VALUE.fullmatch(server.authorization):
            raise self._wrong(server, "has an `authorization` that is no valid token.", param)

    async def tools(self, server: NamedServer, owner: str) -> McpListing:
        """The tools of the server that the request allows. Raises as `check` does."""
        self.check(server)
        session = self._enter(server, owner)
        if isinstance(session, McpFault):
            return McpListing((), (session,))
        try:
            listing = await session.keeper.tools()
        finally:
            self._leave(session)
        return McpListing(tuple(tool for tool in listing.tools if server.allows(tool.name)), listing.faults)

    async def call(
        self, server: NamedServer, owner: str, tool: str, arguments: str, within: float
    ) -> McpResult:
        """Runs a tool with arguments as JSON text, within so many seconds. Cancel it to have the server told.
        Raises as `check` does."""
        self.check(server)
        if not server.allows(tool):
            what = f"may not run '{tool}' here: it is not among the allowed tools."
            return failed(self._fault(McpFaultKind.NOT_ALLOWED, server, what))
        session = self._enter(server, owner)
        if isinstance(session, McpFault):
            return failed(session)
        try:
            return await session.keeper.call(tool, arguments, within)
        finally:
            self._leave(session)

    @property
    def open_sessions(self) -> int:
        """How many sessions are kept now."""
        return len(self._sessions)

    async def close(self) -> None:
        """Ends all sessions, and waits for them within the limits. May be called twice."""
        self._closed = True
        for key in list(self._sessions):
            self._drop(key)
        if self._closing:
            await asyncio.wait(self._closing)

    # --- sessions -------------------------------------------------------------------------------

    def _enter(self, server: NamedServer, owner: str) -> _Session | McpFault:
        if self._closed:
            return self._fault(
                McpFaultKind.CLOSED, server, "is not used any more: the proxy is shutting down."
            )
        headers = _headers(server)
        key = (owner, server.server_url, _digest(server.server_label, headers))
        session = self._sessions.pop(key, None)
        if session is None:
            if not self._make_room():
                what = "cannot be connected to now: too many servers are in use. Try again."
                return self._fault(McpFaultKind.UNREACHABLE, server, what)
            session = _Session(self._keeper(server, headers))
        self._sessions[key] = session  # the last one used is the last in the order
        session.users += 1
        if session.expiry is not None:
            session.expiry.cancel()
        loop = asyncio.get_running_loop()
        session.expiry = loop.call_later(self._idle, self._expire, key)
        return session

    def _leave(self, session: _Session) -> None:
        session.users -= 1

    def _expire(self, key: tuple[str, str, bytes]) -> None:
        session = self._sessions[key]
        if session.users:
            loop = asyncio.get_running_loop()
            session.expiry = loop.call_later(self._idle, self._expire, key)
        else:
            self._drop(key)

    def _make_room(self) -> bool:
        """Whether there is room for one more; the session that was not used for the longest time may go for it."""
        if len(self._sessions) < self._most:
            return True
        unused = next((key for key, session in self._sessions.items() if not session.users), None)
        if unused is None:
            return False
        self._drop(unused)
        return True

    def _drop(self, key: tuple[str, str, bytes]) -> None:
        session = self._sessions.pop(key)
        if session.expiry is not None:
            session.expiry.cancel()
        closing = asyncio.create_task(session.keeper.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)

    def _keeper(self, server: NamedServer, headers: dict[str, str]) -> Keeper:
        path = allowed_url_of(server.server_url).path.rstrip("/")
        transport: Transport = "sse" if path.endswith("/sse") else "either"
        definition = HttpServer(
            label=server.server_label, url=server.server_url, headers=headers, transport=transport
        )
        return Keeper(
            definition,
            clock=self._clock,
            limits=self._limits,
            refresh_interval=self._refresh_interval,
            places=self._places,
        )

    # --- words ----------------------------------------------------------------------------------

    def _wrong(self, server: NamedServer, what: str, param: str) -> Fault:
        return bad_request(f"MCP server '{server.server_label}' {what}", param, "invalid_mcp_server")

    def _fault(self, kind: McpFaultKind, server: NamedServer, what: str) -> McpFault:
        message = f"MCP server '{server.server_label}' {what}"
        return McpFault(kind=kind, server_label=server.server_label, message=message)


def _headers(server: NamedServer) -> dict[str, str]:
    if server.authorization is None:
        return server.headers
    others = {name: value for name, value in server.headers.items() if name.lower() != "authorization"}
    return {**others, "Authorization": f"Bearer {server.authorization}"}


def _digest(label: str, headers: dict[str, str]) -> bytes:
    """Sessions with other credentials are other sessions; the key of a dictionary need not hold them."""
    return hashlib.sha256(msgspec.json.encode((label, sorted(headers.items())))).digest()
