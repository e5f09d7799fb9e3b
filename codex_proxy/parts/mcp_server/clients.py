"""The MCP sessions of each key, apart from those of all others: the id of another key's session is unknown."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from aiohttp import web
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from codex_proxy.core.interfaces import keep_until_done
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
        self._managers: dict[str, asyncio.Future[StreamableHTTPSessionManager]] = {}
        """Those of each key, once they run."""
        self._tasks: set[asyncio.Task[Any]] = set()
        """Those that keep the sessions."""
        self._exchanges: set[asyncio.Task[Any]] = set()
        """Those that answer requests."""
        self._stop = asyncio.Event()

    async def serve(self, request: web.Request, body: bytes, caller: Caller) -> web.StreamResponse:
        """Returns the answer to a request."""
        manager = await self.manager(caller.owner)
        return await serve(manager.handle_request, request, body, self._exchanges, **{CALLER: caller})

    async def manager(self, owner: str) -> StreamableHTTPSessionManager:
        """Returns the running manager of a key's sessions."""
        started = self._managers.get(owner)
        if started is None:
            started = self._managers[owner] = asyncio.get_running_loop().create_future()
            keep_until_done(self._tasks, asyncio.create_task(self._run(owner, started)))
        return await asyncio.shield(started)  # also others wait for it

    async def _run(self, owner: str, started: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        """Keeps the sessions of a key, from when its manager runs until the server stops."""
        manager = StreamableHTTPSessionManager(
            self._server,
            stateless=self._stateless,
            session_idle_timeout=None if self._stateless else IDLE_SECONDS,
            max_request_body_size=MAX_BODY,
            max_sessions=MAX_SESSIONS,
        )
        try:
            async with manager.run():
                started.set_result(manager)
                await self._stop.wait()
        except Exception as error:
            if started.done():
                raise
            started.set_exception(error)
        finally:
            del self._managers[owner]
            started.cancel()  # does nothing to one that is done

    async def close(self) -> None:
        """Ends all sessions, streams and calls."""
        self._stop.set()
        await self._persons.close()
        for ended in (self._tasks, self._exchanges):
            if ended:
                await asyncio.wait(ended, timeout=END_SECONDS)
            for task in tuple(ended):
                task.cancel()
