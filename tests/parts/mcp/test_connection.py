"""The connection to one MCP server, over a transport of the test."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio
import pytest
from mcp.client._transport import TransportStreams
from mcp.server import Server
from mcp.shared.memory import create_client_server_memory_streams

from codex_proxy.parts.mcp.connection import McpConnection, TransportReport
from codex_proxy.parts.mcp.values import McpLimits
from tests.parts.mcp.definitions import stdio
from tests.waiting import PATIENCE


class Transport:
    """A transport to a server in memory, which fails when `failing` is set, and reports nothing of it."""

    def __init__(self) -> None:
        self.failing = asyncio.Event()

    @asynccontextmanager
    async def open(self, report: TransportReport) -> AsyncIterator[TransportStreams]:
        server = Server("in-memory")
        async with (
            create_client_server_memory_streams() as (client, (read, write)),
            anyio.create_task_group() as tasks,
        ):
            tasks.start_soon(server.run, read, write, server.create_initialization_options())
            tasks.start_soon(self._fail)
            yield client
            tasks.cancel_scope.cancel()

    async def _fail(self) -> None:
        await self.failing.wait()
        raise OSError("the transport is broken")


@pytest.mark.parametrize("end", ["closed", "failed"])
async def test_after_its_end_no_call_can_be_made(end: str) -> None:
    transport = Transport()
    connection = McpConnection(stdio("s"), [transport.open], McpLimits(), lambda: None)
    async with asyncio.timeout(PATIENCE):
        await connection.start()
        assert connection.alive
        if end == "failed":
            transport.failing.set()
            await connection.wait_closed()
        else:
            await connection.close()
    assert not connection.alive
