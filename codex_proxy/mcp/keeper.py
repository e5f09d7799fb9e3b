"""Keeps one server: starts it when it is first needed, knows its tools, and starts it again when it has failed.

In: a definition and how to reach it. Out: a listing, or the result of a call; a fault is in them, never raised. A
start belongs to nobody who waits for it: it goes on when they leave, for whoever comes next. Starts that fail, and
servers that die soon after, are held back longer each time: none, 1, 2, 4 s, up to the limit.
"""

from __future__ import annotations

import asyncio
import importlib
from typing import TYPE_CHECKING, Any

import msgspec

from codex_proxy.core.ids import Clock
from codex_proxy.mcp.allowed_urls import AllowedUrls
from codex_proxy.mcp.config import Definition, HttpServer, StdioServer, Transport
from codex_proxy.mcp.ports import Report, Spawn
from codex_proxy.mcp.values import McpError, McpFault, McpFaultKind, McpLimits, McpListing, McpResult, failed

if TYPE_CHECKING:
    from codex_proxy.mcp.connection import Connection, Way

FIRST_HELD_BACK = 2
"""The first failure in a row is not held back: most servers die once and are well again."""


class Keeper:
    """One server. `close` it at the end."""

    def __init__(
        self,
        definition: Definition,
        *,
        clock: Clock,
        limits: McpLimits,
        refresh_interval: float,
        spawn: Spawn | None = None,
        places: AllowedUrls | None = None,
    ) -> None:
        """`spawn` starts what is a program. `places`: where it may be reached; None means anywhere."""
        self._definition = definition
        self._label = definition.label
        self._clock = clock
        self._limits = limits
        self._refresh_interval = refresh_interval
        self._spawn = spawn
        self._places = places
        self._connection: Connection | None = None
        self._starting: asyncio.Task[Connection] | None = None
        self._start_began = 0.0
        self._listing: asyncio.Task[None] | None = None
        self._watches: set[asyncio.Task[None]] = set()
        self._known = McpListing(())
        self._listed_at = 0.0
        self._changed = False
        self._failures = 0
        self._not_before = 0.0
        self._last_fault: McpFault | None = None
        self._closed = False

    async def tools(self) -> McpListing:
        """The server's tools, or why there are none. Waits for a start or a list as long as the limit says."""
        for last in (False, True):  # a server that died since, or has forgotten us, is well after a start
            try:
                connection = await self._connected(self._patience())
            except McpError as error:
                return McpListing((), (error.fault,))
            if not self._changed and self._clock.monotonic() - self._listed_at < self._refresh_interval:
                break
            await self._refreshed(connection)
            if connection.alive:
                break
            if last:
                return McpListing((), (connection.fault(),))
        return self._known

    async def call(self, tool: str, arguments: str, within: float) -> McpResult:
        """Runs a tool with arguments as JSON text, within so many seconds, the start of the server included.

        A call is made once, since tools have effects; but for a server that has forgotten its session, which ran
        nothing.
        """
        deadline = self._clock.monotonic() + within
        try:
            decoded = self._decoded(arguments)
            for last in (False, True):
                connection = await self._connected(deadline - self._clock.monotonic())
                try:
                    return await connection.call(tool, decoded, deadline - self._clock.monotonic())
                except McpError:
                    if last or not connection.forgotten:
                        raise
        except McpError as error:
            return failed(error.fault)
        raise AssertionError("a call ends with its last try")

    async def close(self) -> None:
        """Ends the server and waits for its end, within the limits. May be called twice."""
        self._closed = True
        pending = [task for task in (self._starting, self._listing) if task is not None and not task.done()]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=3 * self._limits.close)
        if self._connection is not None:
            await self._connection.close()
        if self._watches:
            await asyncio.wait(self._watches, timeout=self._limits.close)

    # --- connecting -----------------------------------------------------------------------------

    def _patience(self) -> float:
        """How long a request waits for a start. It is waited for once: a server that hangs would else hold up every
        request."""
        if self._last_fault is not None and self._last_fault.kind is McpFaultKind.TIMED_OUT:
            return 0.0
        began = self._clock.monotonic() if self._starting is None else self._start_began
        return began + self._limits.wait - self._clock.monotonic()

    async def _connected(self, wait: float) -> Connection:
        """The connection, made if there is none. Raises `McpError`."""
        if self._closed:
            raise self._error(McpFaultKind.CLOSED, "is not used any more: the proxy is shutting down.")
        if self._connection is not None and self._connection.alive:
            return self._connection
        if self._starting is None:
            self._check_held_back()
            self._start_began = self._clock.monotonic()
            self._starting = asyncio.create_task(self._start(), name=f"mcp start {self._label}")
            self._starting.add_done_callback(self._started)
        starting = self._starting
        if not (await asyncio.wait((starting,), timeout=max(wait, 0.0)))[0]:
            raise self._error(McpFaultKind.STARTING, "is still starting. Try again.")
        if starting.cancelled():
            raise self._error(McpFaultKind.CLOSED, "is not used any more: the proxy is shutting down.")
        return starting.result()

    def _check_held_back(self) -> None:
        left = self._not_before - self._clock.monotonic()
        if left > 0 and self._last_fault is not None:
            message = f"{self._last_fault.message} It is tried again in {left:.0f} s."
            raise McpError(msgspec.structs.replace(self._last_fault, message=message))

    async def _start(self) -> Connection:
        """Connects and asks for the tools. Raises `McpError`."""
        # The package is large: its import must not hold up the streams of others.
        await asyncio.to_thread(importlib.import_module, "codex_proxy.mcp.connection")
        from codex_proxy.mcp.connection import Connection

        connection = Connection(self._definition, await self._ways(), self._limits, self._tools_changed)
        try:
            async with asyncio.timeout(self._limits.start):
                await connection.start()
                await self._list(connection)
        except TimeoutError:
            await connection.close()
            raise self._error(
                McpFaultKind.TIMED_OUT, f"was not ready within {self._limits.start:g} s."
            ) from None
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        watch = asyncio.create_task(self._watch(connection), name=f"mcp watch {self._label}")
        self._watches.add(watch)
        watch.add_done_callback(self._watches.discard)
        return connection

    def _started(self, starting: asyncio.Task[Connection]) -> None:
        self._starting = None
        error = None if starting.cancelled() else starting.exception()
        if isinstance(error, McpError):
            self._hold_back(error.fault)

    async def _watch(self, connection: Connection) -> None:
        """Waits for the end of a connection, and judges it."""
        since = self._clock.monotonic()
        await connection.wait_closed()
        if self._clock.monotonic() - since >= self._limits.steady or connection.forgotten:
            self._failures = 0
        self._hold_back(connection.fault())

    def _hold_back(self, fault: McpFault) -> None:
        self._failures += 1
        self._last_fault = fault
        if self._failures >= FIRST_HELD_BACK:
            longest = self._limits.longest_backoff
            wait = min(longest, 2.0 ** min(self._failures - FIRST_HELD_BACK, 10))
            self._not_before = self._clock.monotonic() + wait

    async def _ways(self) -> list[Way]:
        """How to reach the server, in the order in which to try."""
        definition, limits = self._definition, self._limits
        if isinstance(definition, StdioServer):
            await asyncio.to_thread(importlib.import_module, "codex_proxy.mcp.stdio")
            from codex_proxy.mcp.stdio import stdio_transport

            spawn = self._spawn
            if spawn is None:
                raise self._error(McpFaultKind.UNREACHABLE, "is a program, and none may be started here.")
            return [lambda report: stdio_transport(definition, spawn, limits, report)]
        return await self._web_ways(definition)

    async def _web_ways(self, definition: HttpServer) -> list[Way]:
        await asyncio.to_thread(importlib.import_module, "codex_proxy.mcp.web")
        from codex_proxy.mcp.web import sse_transport, streamable_transport

        def streamable(report: Report) -> Any:
            return streamable_transport(definition, self._places, self._limits, report)

        def sse(report: Report) -> Any:
            return sse_transport(definition, self._places, self._limits, report)

        ways: dict[Transport, list[Way]] = {
            "streamable": [streamable],
            "sse": [sse],
            "either": [streamable, sse],
        }
        return ways[definition.transport]

    # --- its tools ------------------------------------------------------------------------------

    def _tools_changed(self) -> None:
        self._changed = True

    async def _refreshed(self, connection: Connection) -> None:
        """Asks for the tools again. The list that we have does for a server that is busy, or answers wrongly."""
        if self._listing is None:
            self._listing = asyncio.create_task(self._list(connection), name=f"mcp tools {self._label}")
            self._listing.add_done_callback(self._listed)
        await asyncio.wait((self._listing,), timeout=self._limits.refresh)

    def _listed(self, listing: asyncio.Task[None]) -> None:
        self._listing = None
        if not listing.cancelled():
            listing.exception()  # the connection knows whether it lives; the list is asked for again

    async def _list(self, connection: Connection) -> None:
        self._changed = False  # before the question: what changes meanwhile is asked for again
        try:
            async with asyncio.timeout(self._limits.wait):
                self._known = await connection.tools()
        except TimeoutError:
            raise self._error(
                McpFaultKind.TIMED_OUT, f"did not list its tools within {self._limits.wait:g} s."
            ) from None
        self._listed_at = self._clock.monotonic()

    # --- words ----------------------------------------------------------------------------------

    def _decoded(self, arguments: str) -> dict[str, Any]:
        try:
            return msgspec.json.decode(arguments or "{}", type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeEncodeError):
            raise self._error(
                McpFaultKind.BAD_ARGUMENTS, "was not called: the arguments are no JSON object."
            ) from None

    def _error(self, kind: McpFaultKind, what: str) -> McpError:
        message = f"MCP server '{self._label}' {what}"
        return McpError(McpFault(kind=kind, server_label=self._label, message=message))
