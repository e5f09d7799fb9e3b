"""One session with one MCP server, in a task of its own, because the transports of the (large) `mcp` package must be
closed by the task that opened them. Every failure is an `McpError`, or a failed `McpResult`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias, TypeVar

import msgspec
from mcp.client._transport import TransportStreams
from mcp.client.session import ClientSession, IncomingMessage
from mcp.shared.exceptions import MCPError
from mcp_types import (
    CONNECTION_CLOSED,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    Implementation,
    ListToolsResult,
    PaginatedRequestParams,
    Tool,
    ToolListChangedNotification,
)
from pydantic import ValidationError

from codex_proxy.parts.mcp.config import Definition, redact
from codex_proxy.parts.mcp.values import (
    McpError,
    McpFault,
    McpFaultKind,
    McpLimits,
    McpListing,
    McpResult,
    McpTool,
    fault_of,
    result_of,
)

T = TypeVar("T")


class TransportReport:
    """Notes how a transport failed, which the `mcp` package does not report. `fault`: the last failure; None if the
    server has accepted a message since.
    """

    def __init__(self) -> None:
        self.fault: McpFault | None = None
        self.refused_status: int | None = None
        """The status with which the server refused the last message, if any."""
        self.session_lost = False
        """Whether the server no longer knows the session, and has not processed the last message."""
        self.ended = asyncio.Event()
        """Set when the server will send nothing more."""


OpenTransport: TypeAlias = Callable[[TransportReport], AbstractAsyncContextManager[TransportStreams]]
"""Opens a transport, which reports its failures."""

CLIENT: Final = Implementation(name="codex-proxy", version="1")
MAX_ERROR_CHARS: Final = 4000
"""Maximum characters of a server's error that are passed on: enough to correct a call."""
NO_SUCH_TRANSPORT: Final = frozenset({400, 404, 405, 406, 415})
"""Statuses with which an SSE server refuses Streamable HTTP."""

# These libraries log URLs, session ids and whole messages, which may be secret. What matters is in the faults.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class McpConnection:
    """A connection to one MCP server: `start` it, `close` it."""

    def __init__(
        self,
        definition: Definition,
        transports: Sequence[OpenTransport],
        limits: McpLimits,
        on_change: Callable[[], None],
    ) -> None:
        """`transports` are tried in order, the next one if the server lacks the one before. `on_change`: the server
        says that its tools have changed.
        """
        self._definition = definition
        self._label = definition.label
        self._transports = transports
        self._limits = limits
        self._on_change = on_change
        self._report = TransportReport()
        self._session: ClientSession | None = None
        self._ready = asyncio.get_running_loop().create_future()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether calls can be made."""
        return self._session is not None and not self._report.ended.is_set()

    @property
    def session_lost(self) -> bool:
        """Whether the server no longer knew the session, and so has not run the last call."""
        return self._report.session_lost

    async def start(self) -> None:
        """Connects, without a time limit. If that fails, closes the connection and raises `McpError`."""
        self._task = asyncio.create_task(self._run(), name=f"mcp {self._label}")
        self._task.add_done_callback(_retrieve_exception)
        await asyncio.wait((self._task, self._ready), return_when=asyncio.FIRST_COMPLETED)
        if not self.alive:
            await self.close()
            raise McpError(self.fault())

    async def close(self) -> None:
        """Ends the session within twice `limits.close_seconds`. May be called again."""
        task = self._task
        if task is None:
            return
        self._stop.set()
        if not self._ready.done():
            task.cancel()
        if not (await asyncio.wait((task,), timeout=self._limits.close_seconds))[0]:
            task.cancel()
            await asyncio.wait((task,), timeout=self._limits.close_seconds)

    async def wait_closed(self) -> None:
        """Returns at the session's end."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def fault(self) -> McpFault:
        """Returns why the session ended or could not be opened. Only when it is not `alive`."""
        if self._report.fault is not None:
            return self._report.fault
        task = self._task
        ended = task.exception() if task is not None and task.done() and not task.cancelled() else None
        cause = _first_cause(ended)
        if isinstance(cause, McpError):
            return cause.fault
        if isinstance(cause, MCPError) and cause.code != CONNECTION_CLOSED:
            return self._fault(McpFaultKind.PROTOCOL, f"refused to start: {self._error_text(cause)}")
        if isinstance(cause, RuntimeError | ValidationError):
            return self._fault(McpFaultKind.PROTOCOL, "supports no version of MCP that this server supports.")
        return self._fault(McpFaultKind.DIED, "closed its connection.")

    # --- tools ----------------------------------------------------------------------------------

    async def tools(self) -> McpListing:
        """Fetches all tools; beyond the limits they are left out, with a fault. Raises `McpError`."""
        found: dict[str, McpTool] = {}
        cursor: str | None = None
        size = 0
        for _ in range(self._limits.max_pages):
            page = await self._page(PaginatedRequestParams(cursor=cursor) if cursor else None)
            for tool in page.tools:
                mine = self._tool(tool)
                size += len(mine.name) + len(mine.description) + len(mine.input_schema)
                if len(found) >= self._limits.max_tools or size > self._limits.schema_bytes:
                    return self._truncated_listing(found)
                found[mine.name] = mine
            following = page.next_cursor
            if not following or following == cursor:
                return McpListing(tuple(found.values()))
            cursor = following
        return self._truncated_listing(found)

    async def call(self, tool: str, arguments: dict[str, Any], timeout_seconds: float) -> McpResult:
        """Runs a tool; one that fails has a result too (`is_error`). Raises `McpError` for a protocol error, no answer
        within `timeout_seconds`, or an ended session. After the time, or when cancelled, the server is asked to stop.
        """
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        try:
            async with asyncio.timeout(timeout_seconds):
                answer = await self._request(
                    lambda session: session.send_request(request, CallToolResult),
                    f"answered the call of '{tool}' with an invalid result.",
                )
        except TimeoutError:
            what = f"did not answer the call of '{tool}' within {timeout_seconds:.3g} s. It was told to stop."
            raise McpError(self._fault(McpFaultKind.TIMED_OUT, what)) from None
        return result_of(answer, self._limits)

    async def _page(self, params: PaginatedRequestParams | None) -> ListToolsResult:
        return await self._request(
            lambda session: session.list_tools(params=params), "sent an invalid list of tools."
        )

    async def _request(self, send: Callable[[ClientSession], Awaitable[T]], invalid: str) -> T:
        if self._session is None:
            raise McpError(self.fault())
        try:
            return await send(self._session)
        except MCPError as error:
            raise McpError(await self._fault_of(error)) from None
        except ValidationError:
            raise McpError(self._fault(McpFaultKind.PROTOCOL, invalid)) from None

    async def _fault_of(self, error: MCPError) -> McpFault:
        if error.code == CONNECTION_CLOSED or self._report.ended.is_set():
            self._report.ended.set()
            if self._task is not None:  # at its end it is known why
                await asyncio.wait((self._task,), timeout=self._limits.close_seconds)
            return self.fault()
        if self._report.fault is not None and self._report.refused_status is not None:
            return self._report.fault
        return self._fault(McpFaultKind.TOOL_ERROR, f"answered with an error: {self._error_text(error)}")

    # --- the session's task ---------------------------------------------------------------------

    async def _run(self) -> None:
        *others, last = self._transports
        for open_transport in others:
            try:
                await self._run_session(open_transport)
            except (MCPError, ExceptionGroup):
                if self._ready.done() or self._report.refused_status not in NO_SUCH_TRANSPORT:
                    raise
                self._report = TransportReport()
            else:
                return
        await self._run_session(last)

    async def _run_session(self, open_transport: OpenTransport) -> None:
        """Runs the session until `close` or its end. Raises `McpError` if the transport ends first; errors of the
        handshake unchanged.
        """
        try:
            async with (
                open_transport(self._report) as (read, write),
                ClientSession(read, write, message_handler=self._on_message, client_info=CLIENT) as session,
            ):
                await self._await_while_open(session.initialize())
                self._session = session
                self._ready.set_result(None)
                await self._await_while_open(self._stop.wait())
        finally:
            self._session = None

    async def _await_while_open(self, awaited: Coroutine[Any, Any, object]) -> None:
        done = asyncio.create_task(awaited)
        ended = asyncio.create_task(self._report.ended.wait())
        try:
            await asyncio.wait((done, ended), return_when=asyncio.FIRST_COMPLETED)
            if not done.done():
                raise McpError(self.fault())
            done.result()
        finally:
            done.cancel()
            ended.cancel()

    async def _on_message(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_change()

    # --- values and messages --------------------------------------------------------------------

    def _tool(self, tool: Tool) -> McpTool:
        hints = tool.annotations
        return McpTool(
            server_label=self._label,
            name=tool.name,
            description=tool.description or "",
            input_schema=msgspec.json.encode(tool.input_schema),
            annotations=hints.model_dump_json(by_alias=True, exclude_none=True).encode() if hints else None,
        )

    def _truncated_listing(self, found: dict[str, McpTool]) -> McpListing:
        what = f"has too many tools: all but the first {len(found)} are left out."
        return McpListing(tuple(found.values()), (self._fault(McpFaultKind.PROTOCOL, what),))

    def _error_text(self, error: MCPError) -> str:
        return redact(error.message, self._definition.secrets)[:MAX_ERROR_CHARS]

    def _fault(self, kind: McpFaultKind, what: str) -> McpFault:
        return fault_of(self._label, kind, what)


def _retrieve_exception(task: asyncio.Task[None]) -> None:
    # Otherwise asyncio logs it; `fault` reads it later.
    if not task.cancelled():
        task.exception()


def _first_cause(error: BaseException | None) -> BaseException | None:
    """Returns the first error in nested groups: the task that fails first cancels the others."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
