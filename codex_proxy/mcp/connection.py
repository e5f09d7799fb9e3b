"""One connection to one server, from its handshake to its end.

Imports the `mcp` package: load it where a server is used only. The connection lives in a task of its own, since the
package's transports have to be left in the task that entered them; who calls is in another task, and may be
cancelled without harm to it. Whatever goes wrong comes out as an `McpError` or a failed `McpResult`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Final, TypeAlias

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

from codex_proxy.mcp.config import Definition
from codex_proxy.mcp.ports import Report
from codex_proxy.mcp.redaction import redacted
from codex_proxy.mcp.results import result_of
from codex_proxy.mcp.values import McpError, McpFault, McpFaultKind, McpLimits, McpListing, McpResult, McpTool

Way: TypeAlias = Callable[[Report], AbstractAsyncContextManager[TransportStreams]]
"""Opens a transport, which tells the report how it fails."""

CLIENT: Final = Implementation(name="codex-proxy", version="1")
MAX_ERROR_CHARS: Final = 4000
"""Of what a server says about an error: the model has to learn what it did wrong, not to read a log."""
NO_SUCH_TRANSPORT: Final = frozenset({400, 404, 405, 406, 415})
"""With which an SSE server refuses a message of Streamable HTTP; another transport may do."""

# Their loggers tell addresses, session names and whole messages; what matters is in our faults.
for _name in ("mcp", "client", "httpx2", "httpcore2"):
    logging.getLogger(_name).setLevel(logging.CRITICAL + 1)


class Connection:
    """A server that is connected to, or was. Make it, `start` it, and `close` it."""

    def __init__(
        self, definition: Definition, ways: Sequence[Way], limits: McpLimits, on_change: Callable[[], None]
    ) -> None:
        """`ways` are tried in order, as long as the server has no such transport. `on_change` is called when the
        server says that its tools are others now."""
        self._definition = definition
        self._label = definition.label
        self._ways = ways
        self._limits = limits
        self._on_change = on_change
        self._report = Report()
        self._session: ClientSession | None = None
        self._ready = asyncio.Event()
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether calls can be made."""
        return self._session is not None and not self._report.ended.is_set()

    @property
    def forgotten(self) -> bool:
        """Whether it ended because the server has forgotten it: then the last call was not run."""
        return self._report.forgotten

    async def start(self) -> None:
        """Connects. Raises `McpError`, and has then ended."""
        self._task = asyncio.create_task(self._run(), name=f"mcp {self._label}")
        self._task.add_done_callback(_looked_at)
        ready = asyncio.create_task(self._ready.wait())
        try:
            await asyncio.wait((self._task, ready), return_when=asyncio.FIRST_COMPLETED)
        finally:
            ready.cancel()
        if not self.alive:
            await self.close()
            raise McpError(self.fault())

    async def close(self) -> None:
        """Ends it, within the limit. May be called twice, and at once."""
        task = self._task
        if task is None:
            return
        self._stop.set()
        if not self._ready.is_set():
            task.cancel()
        if not (await asyncio.wait((task,), timeout=self._limits.close))[0]:
            task.cancel()
            await asyncio.wait((task,), timeout=self._limits.close)

    async def wait_closed(self) -> None:
        """Returns when the connection has ended, whoever ended it."""
        if self._task is not None:
            await asyncio.wait((self._task,))

    def fault(self) -> McpFault:
        """Why it ended, or why it did not come to be."""
        if self._report.fault is not None:
            return self._report.fault
        task = self._task
        ended = task.exception() if task is not None and task.done() and not task.cancelled() else None
        cause = _leaf(ended)
        if isinstance(cause, McpError):
            return cause.fault
        if isinstance(cause, MCPError) and cause.code != CONNECTION_CLOSED:
            return self._fault(McpFaultKind.PROTOCOL, f"refused to start: {self._said(cause)}")
        if isinstance(cause, RuntimeError | ValidationError):
            return self._fault(McpFaultKind.PROTOCOL, "speaks no version of MCP that is known here.")
        return self._fault(McpFaultKind.DIED, "closed its connection.")

    # --- what it is for -------------------------------------------------------------------------

    async def tools(self) -> McpListing:
        """All tools, page by page; what is above the limits is left out, with a fault. Raises `McpError`."""
        found: dict[str, McpTool] = {}
        cursor: str | None = None
        size = 0
        for _ in range(self._limits.pages):
            page = await self._page(cursor)
            for tool in page.tools:
                mine = self._tool(tool)
                size += len(mine.name) + len(mine.description) + len(mine.input_schema)
                if len(found) >= self._limits.tools or size > self._limits.schema_bytes:
                    return self._cut(found)
                found[mine.name] = mine
            following = page.next_cursor
            if not following or following == cursor:
                return McpListing(tuple(found.values()))
            cursor = following
        return self._cut(found)

    async def call(self, tool: str, arguments: dict[str, Any], within: float) -> McpResult:
        """Runs a tool. On a timeout, and when the caller is cancelled, the server is told to stop.

        Raises `McpError` where the tool gave no answer.
        """
        request = CallToolRequest(params=CallToolRequestParams(name=tool, arguments=arguments))
        try:
            async with asyncio.timeout(within):
                answer = await self._open().send_request(request, CallToolResult)
        except TimeoutError:
            raise McpError(
                self._fault(
                    McpFaultKind.TIMED_OUT,
                    f"did not answer the call of '{tool}' within {within:.3g} s. It was told to stop.",
                )
            ) from None
        except MCPError as error:
            raise McpError(await self._refusal(error)) from None
        except ValidationError:
            raise McpError(
                self._fault(McpFaultKind.PROTOCOL, f"answered '{tool}' with no valid result.")
            ) from None
        return result_of(answer, self._limits)

    async def _page(self, cursor: str | None) -> ListToolsResult:
        params = PaginatedRequestParams(cursor=cursor) if cursor else None
        try:
            return await self._open().list_tools(params=params)
        except MCPError as error:
            raise McpError(await self._refusal(error)) from None
        except ValidationError:
            raise McpError(self._fault(McpFaultKind.PROTOCOL, "sent no valid list of tools.")) from None

    def _open(self) -> ClientSession:
        if self._session is None:
            raise McpError(self.fault())
        return self._session

    async def _refusal(self, error: MCPError) -> McpFault:
        """What an error of the protocol means: the end of the connection, or an answer."""
        if error.code == CONNECTION_CLOSED or self._report.ended.is_set():
            self._report.ended.set()
            if self._task is not None:
                await asyncio.wait((self._task,), timeout=self._limits.close)  # by then it is known why
            return self.fault()
        if self._report.fault is not None and self._report.refused is not None:
            return self._report.fault
        return self._fault(McpFaultKind.TOOL_ERROR, f"answered with an error: {self._said(error)}")

    # --- its life -------------------------------------------------------------------------------

    async def _run(self) -> None:
        *others, last = self._ways
        for way in others:
            try:
                await self._live(way)
            except (MCPError, ExceptionGroup):
                if self._ready.is_set() or self._report.refused not in NO_SUCH_TRANSPORT:
                    raise
                self._report = Report()
            else:
                return
        await self._live(last)

    async def _live(self, way: Way) -> None:
        try:
            async with (
                way(self._report) as (read, write),
                ClientSession(read, write, message_handler=self._heard, client_info=CLIENT) as session,
            ):
                await self._until_over(session.initialize())
                self._session = session
                self._ready.set()
                await self._until_over(self._stop.wait())
        finally:
            self._session = None

    async def _until_over(self, awaited: Coroutine[Any, Any, object]) -> None:
        """Waits for it, or for the end of the transport. Raises what it raises, and `McpError` for the end."""
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

    async def _heard(self, message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_change()

    # --- words ----------------------------------------------------------------------------------

    def _tool(self, tool: Tool) -> McpTool:
        hints = tool.annotations
        return McpTool(
            server_label=self._label,
            name=tool.name,
            description=tool.description or "",
            input_schema=msgspec.json.encode(tool.input_schema),
            annotations=hints.model_dump_json(by_alias=True, exclude_none=True).encode() if hints else None,
        )

    def _cut(self, found: dict[str, McpTool]) -> McpListing:
        what = f"has more tools than can be offered: all but the first {len(found)} are left out."
        return McpListing(tuple(found.values()), (self._fault(McpFaultKind.PROTOCOL, what),))

    def _said(self, error: MCPError) -> str:
        return redacted(error.message, self._definition.secrets)[:MAX_ERROR_CHARS]

    def _fault(self, kind: McpFaultKind, what: str) -> McpFault:
        return McpFault(kind=kind, server_label=self._label, message=f"MCP server '{self._label}' {what}")


def _looked_at(task: asyncio.Task[None]) -> None:
    """The task's fault is asked for by `fault` when somebody wants to know: until then nobody misses it."""
    if not task.cancelled():
        task.exception()


def _leaf(error: BaseException | None) -> BaseException | None:
    """The first fault in a group of groups: transports fail in tasks, and one takes the others along."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
