"""The MCP sessions of each key, apart from those of all others: the id of another key's session is unknown."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any, Final

from aiohttp import web
from mcp.server.streamable_http import MCP_SESSION_ID_HEADER
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

from codex_proxy.core.interfaces import keep_until_done
from codex_proxy.parts.mcp_server.bridge import Message, serve
from codex_proxy.parts.mcp_server.messages import MAX_BODY, MessageError, checked
from codex_proxy.parts.mcp_server.questions import Persons
from codex_proxy.parts.mcp_server.server import CALLER, call_tool, make_server
from codex_proxy.parts.mcp_server.work import Caller

MAX_SESSIONS: Final = 100
"""Maximum MCP sessions of a key: one for each program that is connected now."""
IDLE_SECONDS: Final = 1800.0
"""Seconds without a request or an open stream after which an MCP session is forgotten."""
END_SECONDS: Final = 1.0
"""Seconds for streams and calls to end by themselves when the server stops."""
RETRY_SECONDS: Final = 30
"""Seconds after which a client that found no room for its session may come again."""


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
        self._used: dict[str, dict[str, int]] = {}
        """By key: how many requests each MCP session has open; the one that was used last is the last."""
        self._tasks: set[asyncio.Task[Any]] = set()
        """Those that keep the sessions."""
        self._exchanges: set[asyncio.Task[Any]] = set()
        """Those that answer requests."""
        self._stop = asyncio.Event()

    async def serve(self, request: web.Request, body: bytes, caller: Caller) -> web.StreamResponse:
        """Returns the answer to a request. A new session takes the place of the one idle longest, if there is no other
        room.
        """
        if request.method == "POST" and len(body) <= MAX_BODY:  # a longer one is refused with 413
            try:
                body = checked(body)
            except MessageError as error:
                return web.json_response(error.answer(), status=400)
        manager = await self.manager(caller.owner)
        used = self._used.setdefault(caller.owner, {})
        id = request.headers.get(MCP_SESSION_ID_HEADER)
        if id in used:
            used[id] += 1
        try:
            response = await serve(manager.handle_request, request, body, self._exchanges, **{CALLER: caller})
            while response.status == 503 and await _end_idle_longest(manager, used):
                response = await serve(
                    manager.handle_request, request, body, self._exchanges, **{CALLER: caller}
                )
        finally:
            if id in used:
                used[id] = used.pop(id) - 1
        if response.status == 503:
            response.headers["Retry-After"] = str(RETRY_SECONDS)
        _note_session(used, request, response)
        return response

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


def _note_session(used: dict[str, int], request: web.Request, response: web.StreamResponse) -> None:
    """Notes a session that has begun with this answer, or ended."""
    id = request.headers.get(MCP_SESSION_ID_HEADER)
    if id is None:
        if response.status < 400 and (new := response.headers.get(MCP_SESSION_ID_HEADER)):
            used[new] = 0
            if len(used) > MAX_SESSIONS and (oldest := _idle_longest(used)):
                del used[oldest]  # it has expired: there are never more
    elif request.method == "DELETE" or response.status == 404:
        used.pop(id, None)


def _idle_longest(used: dict[str, int]) -> str | None:
    return next((id for id, requests in used.items() if not requests), None)


async def _end_idle_longest(manager: StreamableHTTPSessionManager, used: dict[str, int]) -> bool:
    """Ends the session without an open request that was used longest ago. Returns whether there was one."""
    id = _idle_longest(used)
    if id is None:
        return False
    del used[id]
    scope = {
        "type": "http",
        "method": "DELETE",
        "path": "/mcp",
        "query_string": b"",
        "headers": [(MCP_SESSION_ID_HEADER.encode(), id.encode())],
    }
    await manager.handle_request(scope, _nothing, _drop)
    return True


async def _nothing() -> Message:
    return {"type": "http.request", "body": b"", "more_body": False}


async def _drop(_: Message) -> None:
    """Takes an answer that nobody waits for."""
