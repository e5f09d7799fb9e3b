"""The MCP sessions of each key, apart from those of all others: the id of another key's session is unknown."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from aiohttp import web
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from codex_proxy.parts.mcp_server.bridge import serve
from codex_proxy.parts.mcp_server.questions import Persons
from codex_proxy.parts.mcp_server.server import CALLER, call_tool, make_server
from codex_proxy.parts.mcp_server.work import Caller

MAX_SESSIONS: Final = 100
"""Maximum MCP sessions of a key: one for each program that is connected now."""
IDLE_SECONDS: Final = 1800.0
"""Seconds without a request or an open stream after which an MCP session is forgotten."""
END_SECONDS: Final = 1.0
"""Seconds for streams and calls to end by themselves when the server stops."""
MAX_BODY: Final = 8 << 20
"""Maximum bytes of a message. A prompt has at most 1,000,000 characters."""


class McpClients:
    """Serves the MCP clients of every key. `close` it."""

    def __init__(self, *, stateless: bool) -> None:
        """`stateless`: whether no session is kept, since the next request may come to another server: then nothing can
        be asked of clients of the protocol of 2025.
        """
        self._persons = Persons()
        self._server = make_server(partial(call_tool, self._persons))
        self._stateless = stateless
        self._managers: dict[str, StreamableHTTPSessionManager] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        """Those that keep the sessions."""
        self._exchanges: set[asyncio.Task[Any]] = set()
        """Those that answer requests."""
        self._stop = asyncio.Event()

    async def serve(self, request: web.Request, body: bytes, caller: Caller) -> web.StreamResponse:
        """Returns the answer to a request."""
        manager = await self._manager(caller.owner)
        return await serve(manager.handle_request, request, body, self._exchanges, **{CALLER: caller})

    async def _manager(self, owner: str) -> StreamableHTTPSessionManager:
        manager = self._managers.get(owner)
        if manager is None:
            manager = self._managers[owner] = StreamableHTTPSessionManager(
                self._server,
                stateless=self._stateless,
                session_idle_timeout=None if self._stateless else IDLE_SECONDS,
                max_request_body_size=MAX_BODY,
                max_sessions=MAX_SESSIONS,
            )
            started = asyncio.get_running_loop().create_future()
            task = asyncio.create_task(self._run(manager, started))
            self._tasks.add(task)
            await started
        return manager

    async def _run(self, manager: StreamableHTTPSessionManager, started: asyncio.Future[None]) -> None:
        async with manager.run():
            started.set_result(None)
            await self._stop.wait()

    async def close(self) -> None:
        """Ends all sessions, streams and calls."""
        self._stop.set()
        await self._persons.close()
        for ended in (self._tasks, self._exchanges):
            if ended:
                await asyncio.wait(ended, timeout=END_SECONDS)
            for task in ended:
                task.cancel()
