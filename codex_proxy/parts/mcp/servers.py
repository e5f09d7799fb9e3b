"""Clients of MCP servers, which connect at `start` or when needed, cache the tools, and reconnect: at once after the
first failure, then after 1, 2, 4 ... seconds, up to `limits.max_backoff_seconds`. `tools` and `call` do not raise: a
failure is in the listing or result. A start continues when its request has ended.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from codex_proxy.core.interfaces import Clock, keep_until_done
from codex_proxy.core.json_values import UNREADABLE, is_too_costly
from codex_proxy.core.tool_names import ToolServerState
from codex_proxy.parts.mcp.config import AllowedUrls, Definition, StdioServer
from codex_proxy.parts.mcp.values import (
    McpError,
    McpFault,
    McpFaultKind,
    McpLimits,
    McpListing,
    McpResult,
    failed_result,
    fault_of,
)
from codex_proxy.process.launch import Command

if TYPE_CHECKING:
    from codex_proxy.parts.mcp.connection import McpConnection, OpenTransport

REFRESH_INTERVAL: Final = 10.0
"""Seconds after which tools are listed again (docs/contract.md#mcp-calls)."""
FIRST_DELAYED_FAILURE: Final = 2
"""Failures in a row from which the next start is delayed; most servers fail only once."""


class McpServer:
    """A client of one MCP server. `close` it."""

    def __init__(
        self,
        definition: Definition,
        *,
        clock: Clock,
        limits: McpLimits,
        refresh_interval: float,
        command: Command | None = None,
        allowed_urls: AllowedUrls | None = None,
    ) -> None:
        """`command` starts a program. `allowed_urls`: None permits any."""
        self._definition = definition
        self._label = definition.label
        self._clock = clock
        self._limits = limits
        self._refresh_interval = refresh_interval
        self._command = command
        self._allowed_urls = allowed_urls
        self._connection: McpConnection | None = None
        self._starting: asyncio.Task[McpConnection] | None = None
        self._start_began = 0.0
        self._listing: asyncio.Task[None] | None = None
        self._watches: set[asyncio.Task[None]] = set()
        self._last_listing = McpListing(())
        self._listed_at = 0.0
        self._changed = False
        self._failures = 0
        self._retry_at = 0.0
        self._last_fault: McpFault | None = None
        self._closed = False

    def start(self) -> None:
        """Begins to connect, so that no request waits for it."""
        if self._starting is None and self._connection is None:
            self._begin_start()

    @property
    def state(self) -> ToolServerState:
        if self._connection is not None and self._connection.alive:
            return ToolServerState(self._label, "ready", len(self._last_listing.tools))
        if self._last_fault is not None:
            return ToolServerState(self._label, "failed", trouble=self._last_fault.message)
        return ToolServerState(self._label, "starting")

    async def wait_started(self) -> None:
        """Returns when no start is going on."""
        while self._starting is not None:
            await asyncio.wait((self._starting,))

    async def tools(self) -> McpListing:
        """Returns the tools, and a fault if some are missing; connects first. Takes at most `limits.list_seconds` +
        `limits.refresh_seconds`.
        """
        # The second try is for a server that has died, or has lost the session, since.
        for last in (False, True):
            try:
                connection = await self._connect(self._wait_seconds())
            except McpError as error:
                return McpListing((), (error.fault,))
            if not self._changed and self._clock.monotonic() - self._listed_at < self._refresh_interval:
                break
            await self._refresh(connection)
            if connection.alive:
                break
            if last:
                return McpListing((), (connection.fault(),))
        return self._last_listing

    async def call(self, tool: str, arguments: str, timeout_seconds: float) -> McpResult:
        """Runs a tool with JSON `arguments`, connecting within `timeout_seconds` too."""
        deadline = self._clock.monotonic() + timeout_seconds
        try:
            decoded = self._decode_arguments(arguments)
            for last in (False, True):
                connection = await self._connect(deadline - self._clock.monotonic())
                try:
                    return await connection.call(tool, decoded, deadline - self._clock.monotonic())
                except McpError:
                    # Tools have side effects, so a call is sent again only if the server has not run it.
                    if last or not connection.session_lost:
                        raise
        except McpError as error:
            return failed_result(error.fault)
        raise AssertionError("the last try returns or raises")

    async def close(self) -> None:
        """Ends the connection, at the latest after 6 times `limits.close_seconds`. Later calls of `tools` and `call`
        return a fault.
        """
        self._closed = True
        pending = [task for task in (self._starting, self._listing) if task is not None and not task.done()]
        for task in pending:
            task.cancel()
        if pending:
            await asyncio.wait(pending, timeout=3 * self._limits.close_seconds)
        if self._connection is not None:
            await self._connection.close()
        if self._watches:
            await asyncio.wait(self._watches, timeout=self._limits.close_seconds)

    # --- connecting -----------------------------------------------------------------------------

    def _wait_seconds(self) -> float:
        """Returns how long a request waits for the start: `limits.list_seconds` since it began; 0 if the last start
        took too long.
        """
        if self._last_fault is not None and self._last_fault.kind is McpFaultKind.TIMED_OUT:
            return 0.0
        # A server that hangs must not delay each request.
        began = self._clock.monotonic() if self._starting is None else self._start_began
        return began + self._limits.list_seconds - self._clock.monotonic()

    async def _connect(self, wait: float) -> McpConnection:
        """Returns the connection. Raises `McpError` if the start fails, is not allowed yet, or takes more than `wait`
        seconds; a late start continues.
        """
        if self._closed:
            raise self._error(McpFaultKind.CLOSED, "is no longer available: this server is shutting down.")
        if self._connection is not None and self._connection.alive:
            return self._connection
        if self._starting is None:
            self._raise_in_backoff()
        starting = self._starting or self._begin_start()
        if not (await asyncio.wait((starting,), timeout=max(wait, 0.0)))[0]:
            raise self._error(McpFaultKind.STARTING, "is still starting. Try again.")
        if starting.cancelled():
            raise self._error(McpFaultKind.CLOSED, "is no longer available: this server is shutting down.")
        return starting.result()

    def _begin_start(self) -> asyncio.Task[McpConnection]:
        self._start_began = self._clock.monotonic()
        self._starting = asyncio.create_task(self._start(), name=f"mcp start {self._label}")
        self._starting.add_done_callback(self._on_start_ended)
        return self._starting

    def _raise_in_backoff(self) -> None:
        left = self._retry_at - self._clock.monotonic()
        if left > 0 and self._last_fault is not None:
            message = f"{self._last_fault.message} It is tried again in {left:.0f} s."
            raise McpError(msgspec.structs.replace(self._last_fault, message=message))

    async def _start(self) -> McpConnection:
        # The package is large: imported on the event loop it would hold up all other streams.
        await asyncio.to_thread(importlib.import_module, "codex_proxy.parts.mcp.connection")
        from codex_proxy.parts.mcp.connection import McpConnection

        connection = McpConnection(
            self._definition, await self._transports(), self._limits, self._on_tools_changed
        )
        try:
            async with asyncio.timeout(self._limits.start_seconds):
                await connection.start()
                await self._fetch_listing(connection)
        except TimeoutError:
            await connection.close()
            what = f"was not ready within {self._limits.start_seconds:g} s."
            raise self._error(McpFaultKind.TIMED_OUT, what) from None
        except BaseException:
            await connection.close()
            raise
        self._connection = connection
        watch = asyncio.create_task(self._watch(connection), name=f"mcp watch {self._label}")
        keep_until_done(self._watches, watch)
        return connection

    def _on_start_ended(self, starting: asyncio.Task[McpConnection]) -> None:
        self._starting = None
        error = None if starting.cancelled() else starting.exception()
        if isinstance(error, McpError):
            self._back_off(error.fault)

    async def _watch(self, connection: McpConnection) -> None:
        """Records the connection's end as a failure. After `limits.stable_seconds`, or if only the session was lost,
        earlier failures no longer count.
        """
        since = self._clock.monotonic()
        await connection.wait_closed()
        if self._clock.monotonic() - since >= self._limits.stable_seconds or connection.session_lost:
            self._failures = 0
        self._back_off(connection.fault())

    def _back_off(self, fault: McpFault) -> None:
        """Counts a failure in a row; from `FIRST_DELAYED_FAILURE` on, delays the next start, longer each time."""
        self._failures += 1
        self._last_fault = fault
        if self._failures >= FIRST_DELAYED_FAILURE:
            longest = self._limits.max_backoff_seconds
            wait = min(longest, 2.0 ** min(self._failures - FIRST_DELAYED_FAILURE, 10))
            self._retry_at = self._clock.monotonic() + wait

    async def _transports(self) -> Sequence[OpenTransport]:
        definition, limits = self._definition, self._limits
        if isinstance(definition, StdioServer):
            await asyncio.to_thread(importlib.import_module, "codex_proxy.parts.mcp.stdio_transport")
            from codex_proxy.parts.mcp.stdio_transport import stdio_transport

            assert self._command is not None  # requests name no programs
            return [partial(stdio_transport, definition, self._command, limits)]
        await asyncio.to_thread(importlib.import_module, "codex_proxy.parts.mcp.http_transports")
        from codex_proxy.parts.mcp.http_transports import sse_transport, streamable_transport

        streamable = partial(streamable_transport, definition, self._allowed_urls, limits)
        sse = partial(sse_transport, definition, self._allowed_urls, limits)
        return {"streamable": [streamable], "sse": [sse], "either": [streamable, sse]}[definition.transport]

    # --- tools ----------------------------------------------------------------------------------

    def _on_tools_changed(self) -> None:
        self._changed = True

    async def _refresh(self, connection: McpConnection) -> None:
        """Lists the tools again within `limits.refresh_seconds`; otherwise the cached list stays."""
        if self._listing is None:
            self._listing = asyncio.create_task(
                self._fetch_listing(connection), name=f"mcp tools {self._label}"
            )
            self._listing.add_done_callback(self._on_listed)
        await asyncio.wait((self._listing,), timeout=self._limits.refresh_seconds)

    def _on_listed(self, listing: asyncio.Task[None]) -> None:
        """Handles the end of a listing. Ignores a failure: the cached list stays, and `McpConnection.fault` has a
        connection's end.
        """
        self._listing = None
        if not listing.cancelled():
            listing.exception()  # retrieved, so that asyncio does not log it

    async def _fetch_listing(self, connection: McpConnection) -> None:
        self._changed = False  # before the request: a change that comes meanwhile is fetched again
        try:
            async with asyncio.timeout(self._limits.list_seconds):
                self._last_listing = await connection.tools()
        except TimeoutError:
            what = f"did not list its tools within {self._limits.list_seconds:g} s."
            raise self._error(McpFaultKind.TIMED_OUT, what) from None
        self._listed_at = self._clock.monotonic()

    # --- values and messages --------------------------------------------------------------------

    def _decode_arguments(self, arguments: str) -> dict[str, Any]:
        with suppress(*UNREADABLE):
            json = arguments.encode() or b"{}"
            if not is_too_costly(json):
                return msgspec.json.decode(json, type=dict[str, Any])
        what = "was not called: the arguments are no JSON object, or are nested too deep."
        raise self._error(McpFaultKind.BAD_ARGUMENTS, what)

    def _error(self, kind: McpFaultKind, what: str) -> McpError:
        """Returns an error. `what`: see `fault_of`."""
        return McpError(fault_of(self._label, kind, what))


class OperatorServers:
    """The servers of the operator's file. `close` them."""

    def __init__(
        self,
        definitions: Mapping[str, Definition],
        command_of: Callable[[StdioServer], Command],
        *,
        clock: Clock,
        limits: McpLimits | None = None,
        refresh_interval: float = REFRESH_INTERVAL,
    ) -> None:
        self._servers = {
            label: McpServer(
                definition,
                clock=clock,
                limits=limits or McpLimits(),
                refresh_interval=refresh_interval,
                command=command_of(definition) if isinstance(definition, StdioServer) else None,
            )
            for label, definition in definitions.items()
        }

    @property
    def labels(self) -> tuple[str, ...]:
        """The servers' names in the file's order."""
        return tuple(self._servers)

    def start(self) -> None:
        """Begins to connect to all."""
        for server in self._servers.values():
            server.start()

    @property
    def states(self) -> tuple[ToolServerState, ...]:
        return tuple(server.state for server in self._servers.values())

    async def state_after_start(self, label: str) -> ToolServerState:
        """Returns a server's state when it has started or failed."""
        await self._servers[label].wait_started()
        return self._servers[label].state

    async def tools(self) -> McpListing:
        """Asks all servers at once. Returns their tools, and a fault for each that lacks some."""
        listings = await asyncio.gather(*(server.tools() for server in self._servers.values()))
        return McpListing(
            tuple(tool for listing in listings for tool in listing.tools),
            tuple(fault for listing in listings for fault in listing.faults),
        )

    async def call(self, server_label: str, tool: str, arguments: str, timeout_seconds: float) -> McpResult:
        """Runs a tool with JSON `arguments`; a failed result if that fails or there is no such server. Cancelling stops
        it.
        """
        server = self._servers.get(server_label)
        if server is None:
            message = f"There is no MCP server '{server_label}'."
            kind = McpFaultKind.UNKNOWN_SERVER
            return failed_result(McpFault(kind=kind, server_label=server_label, message=message))
        return await server.call(tool, arguments, timeout_seconds)

    async def close(self) -> None:
        await asyncio.gather(*(server.close() for server in self._servers.values()))
