"""The stdio transport of MCP: JSON-RPC messages, one per line, with the large `mcp` package. Other lines are ignored;
one longer than `McpLimits.message_bytes`, or with too many values, ends the session.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.client._transport import TransportStreams
from mcp.shared.message import SessionMessage
from mcp_types import jsonrpc_message_adapter
from pydantic_core import from_json

from codex_proxy.core.damaged_json import is_torn
from codex_proxy.core.json_values import LONG_JSON, is_too_costly
from codex_proxy.parts.mcp.config import StdioServer, redact
from codex_proxy.parts.mcp.connection import TransportReport
from codex_proxy.parts.mcp.messages import Waiting
from codex_proxy.parts.mcp.values import MIB, McpError, McpFault, McpFaultKind, McpLimits, fault_of
from codex_proxy.process.child import Child, Command, Exit, SpawnError, spawn

TOOLS_CHANGED = "notifications/tools/list_changed"
READ_AHEAD = MIB
"""Maximum bytes of stdout in memory, beyond which the server has to wait."""
_BEFORE_JSON = b"\xef\xbb\xbf \t\r\n"
MAX_DETAIL_CHARS = 2000
"""Maximum characters of stderr in a fault, enough for the message and the last frames of a traceback."""


@asynccontextmanager
async def stdio_transport(
    server: StdioServer, command: Command, limits: McpLimits, report: TransportReport
) -> AsyncGenerator[TransportStreams, None]:
    """Starts the server, and yields its messages and a stream for ours. If it ends meanwhile, sends too long a line, or
    does not read its stdin, `report` has the reason and `ended` is set. Raises `McpError` if it cannot be started.
    """
    lines = _StdoutLines(limits.message_bytes)
    try:
        process = await spawn(command, lines)
    except SpawnError as error:
        what = redact(f"could not start {error.program}: {error.reason}", server.secrets)
        raise McpError(fault_of(server.label, McpFaultKind.UNREACHABLE, what)) from None
    lines.process = process
    waiting = Waiting()
    try:
        read_writer, read = anyio.create_memory_object_stream[SessionMessage | Exception](0)
        write, write_reader = anyio.create_memory_object_stream[SessionMessage](0)
        async with read_writer, read, write, write_reader, anyio.create_task_group() as group:

            async def read_messages() -> None:
                async with read_writer:
                    async for line in lines:
                        for message in _messages(line, waiting):
                            await read_writer.send(message)
                    report.fault = _end_fault(server, lines)  # first: who waits for the end reads the fault
                    report.ended.set()

            async def write_messages() -> None:
                async for message in write_reader:
                    if process.unsent > limits.unsent_bytes:
                        report.fault = fault_of(server.label, McpFaultKind.DIED, "no longer reads its input.")
                        report.ended.set()
                        return
                    sent = message.message
                    method, params = getattr(sent, "method", None), getattr(sent, "params", None)
                    waiting.note_sent({"id": getattr(sent, "id", None), "method": method, "params": params})
                    process.write(_line(message))

            group.start_soon(read_messages)
            group.start_soon(write_messages)
            yield read, write
            group.cancel_scope.cancel()
    finally:
        await process.end()


class _StdoutLines:
    """Yields the lines of stdout, until its end, or a line above `limit` bytes or with too many values."""

    def __init__(self, limit: int) -> None:
        self.process: Child | None = None
        self.exit: Exit | None = None
        self.too_long = False
        self._limit = limit
        self._chunks: deque[bytes] = deque()
        self._buffered_bytes = 0
        self._changed = asyncio.Event()

    def on_output(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        self._buffered_bytes += len(chunk)
        if self._buffered_bytes > READ_AHEAD and self.process is not None:
            self.process.pause()
        self._changed.set()

    def on_end(self, exit: Exit) -> None:
        self.exit = exit
        self._changed.set()

    async def __aiter__(self) -> AsyncIterator[bytes]:
        parts: list[bytes] = []
        length = 0
        while (chunk := await self._next()) is not None:
            line_end, *following = chunk.split(b"\n")
            parts.append(line_end)
            length += len(line_end)
            for start in following:
                line = b"".join(parts)
                if is_too_costly(line):
                    self.too_long = True
                    return
                if len(line) > LONG_JSON:
                    await asyncio.sleep(0)  # to look at it took as long as decoding it will
                for part in line.split(b"\r"):  # progress ends so, and JSON contains none
                    yield part
                parts, length = [start], len(start)
            if length > self._limit:
                self.too_long = True
                return
        rest = b"".join(parts)
        if not is_too_costly(rest) and not is_torn(rest):
            yield rest

    async def _next(self) -> bytes | None:
        while not self._chunks:
            if self.exit is not None:
                return None
            self._changed.clear()
            await self._changed.wait()
        chunk = self._chunks.popleft()
        self._buffered_bytes -= len(chunk)
        if not self._chunks and self.process is not None:
            self.process.resume()
        return chunk


def _messages(line: bytes, waiting: Waiting) -> list[SessionMessage]:
    """Decodes a line; empty if it is no message, or a notification that nobody handles: validated as well, thousands of
    these would take all of this server's time.
    """
    if not line.lstrip(_BEFORE_JSON).startswith((b"{", b"[")):
        return []  # a log, at no cost
    try:
        fields = from_json(line)  # in one go with validation it takes four times as long
    except ValueError:
        fields = None
    messages = [fields] if waiting.is_plain(fields) else waiting.read(line)
    return [
        SessionMessage(jsonrpc_message_adapter.validate_python(each, by_name=False))
        for each in messages
        if not _is_unhandled(each.get("method"))
    ]


def _is_unhandled(method: Any) -> bool:
    return isinstance(method, str) and method.startswith("notifications/") and method != TOOLS_CHANGED


def _line(message: SessionMessage) -> bytes:
    line: str = message.message.model_dump_json(by_alias=True, exclude_unset=True)
    return line.encode() + b"\n"


def _end_fault(server: StdioServer, lines: _StdoutLines) -> McpFault:
    if lines.too_long or lines.exit is None:
        return fault_of(server.label, McpFaultKind.PROTOCOL, "sent a message that is too long.")
    exit = lines.exit
    how = f"with code {exit.code}" if exit.signal is None else f"by signal {exit.signal}"
    detail = redact(exit.stderr_tail[-MAX_DETAIL_CHARS:], server.secrets)
    return fault_of(server.label, McpFaultKind.DIED, f"ended {how}.", detail)
