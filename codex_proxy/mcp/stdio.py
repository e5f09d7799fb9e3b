"""The stdio transport: JSON-RPC in lines, over a process that somebody else starts and ends with certainty.

Imports the `mcp` package: load it where a server is used only. Lines that are no JSON-RPC are passed over, since
programs do print to stdout; a line longer than the limit ends the connection.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager

import anyio
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic import ValidationError

from codex_proxy.mcp.config import StdioServer
from codex_proxy.mcp.ports import Ended, Process, Report, Spawn, StartError
from codex_proxy.mcp.redaction import redacted
from codex_proxy.mcp.values import MIB, McpError, McpFault, McpFaultKind, McpLimits

READ_AHEAD = MIB
"""What is taken from the pipe before anybody reads it: a flood of messages waits in the server, not here."""
MAX_DETAIL_CHARS = 2000
"""The last words of a server: its error message, and the frames of a backtrace that matter."""


@asynccontextmanager
async def stdio_transport(
    server: StdioServer, spawn: Spawn, limits: McpLimits, report: Report
) -> AsyncGenerator[TransportStreams, None]:
    """Starts the server; ends it on the way out. Raises `McpError` where it cannot be started."""
    lines = _Lines(limits.message_bytes)
    try:
        process = await spawn((server.command, *server.args), server.env, server.cwd, lines)
    except StartError as error:
        message = f"MCP server '{server.label}': {error}"
        raise McpError(_fault(McpFaultKind.UNREACHABLE, server, redacted(message, server.secrets))) from None
    lines.process = process
    try:
        heard, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, said = anyio.create_memory_object_stream[SessionMessage](0)
        async with heard, read, write, said, anyio.create_task_group() as group:

            async def listen() -> None:
                async with heard:
                    async for line in lines:
                        if (message := _message(line)) is not None:
                            await heard.send(message)
                    report.fault = _ended(server, lines)  # before those who wait learn of the end
                    report.ended.set()

            async def speak() -> None:
                async for message in said:
                    if process.unsent > limits.unsent_bytes:
                        report.fault = _fault(
                            McpFaultKind.DIED, server, f"MCP server '{server.label}' reads nothing any more."
                        )
                        report.ended.set()
                        return
                    process.write(_line(message))

            group.start_soon(listen)
            group.start_soon(speak)
            yield read, write
            group.cancel_scope.cancel()
    finally:
        await process.end()


class _Lines:
    """The lines of a process's stdout, in bounded memory."""

    def __init__(self, limit: int) -> None:
        self.process: Process | None = None
        self.exit: Ended | None = None
        self.too_long = False
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._waiting = 0
        self._news = asyncio.Event()

    def received(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._waiting += len(chunk)
        if self._waiting > READ_AHEAD and self.process is not None:
            self.process.pause()
        self._news.set()

    def ended(self, exit: Ended) -> None:
        self.exit = exit
        self._news.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts: list[bytes] = []
        length = 0
        while (chunk := await self._next()) is not None:
            head, *whole = chunk.split(b"\n")
            parts.append(head)
            length += len(head)
            for start in whole:
                yield b"".join(parts)
                parts, length = [start], len(start)
            if length > self._limit:
                self.too_long = True
                return

    async def _next(self) -> bytes | None:
        while not self._chunks:
            if self.exit is not None:
                return None
            self._news.clear()
            await self._news.wait()
        chunk = self._chunks.popleft()
        self._waiting -= len(chunk)
        if not self._chunks and self.process is not None:
            self.process.resume()
        return chunk


def _message(line: bytes) -> SessionMessage | None:
    """What the line says, None where it is no JSON-RPC."""
    if not line.lstrip().startswith(b"{"):
        return None
    try:
        return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
    except ValidationError:
        return None


def _line(message: SessionMessage) -> bytes:
    return message.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"


def _ended(server: StdioServer, lines: _Lines) -> McpFault:
    """Why there will be no more lines."""
    if lines.too_long or lines.exit is None:
        return _fault(
            McpFaultKind.PROTOCOL, server, f"MCP server '{server.label}' sent a line that is too long."
        )
    exit = lines.exit
    how = f"with code {exit.code}" if exit.signal is None else f"by signal {exit.signal}"
    return McpFault(
        kind=McpFaultKind.DIED,
        server_label=server.label,
        message=f"MCP server '{server.label}' ended {how}.",
        detail=redacted(exit.stderr_tail[-MAX_DETAIL_CHARS:], server.secrets),
    )


def _fault(kind: McpFaultKind, server: StdioServer, message: str) -> McpFault:
    return McpFault(kind=kind, server_label=server.label, message=message)
