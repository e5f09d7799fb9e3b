"""The MCP server at which agents call the client's tools: streamable HTTP on loopback, with an endpoint and a token for
each session. A call's answer is an event stream, which progress notifications keep open until the output comes: agents
time out after 60 s.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import structlog
from aiohttp import web

from codex_proxy import __version__
from codex_proxy.core.damaged_json import beginning_of, value_of
from codex_proxy.core.items import Tool
from codex_proxy.core.json_values import object_at, objects_in, text_at, value_at
from codex_proxy.parts.acp.messages import (
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    Input,
    ToolCalled,
    ToolDropped,
    ToolsListed,
    ToolsSettled,
)
from codex_proxy.parts.acp.reported_calls import SERVER, tool_entry

log = structlog.get_logger(__name__)

HOST: Final = "127.0.0.1"
PATH: Final = "/mcp"
MAX_BODY: Final = 32 << 20
MAX_HEAD: Final = 128
"""Bytes of a message that costs too much in which its id is looked for."""
PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
PROGRESS_SECONDS: Final = 10.0
SETTLE_SECONDS: Final = 0.2
"""Seconds to wait for another call of the same step."""
UNREPORTED_SECONDS: Final = 5.0
"""Seconds to wait if a reported call has not arrived, or a call that has arrived was not reported."""
LIST_SECONDS: Final = 45.0
"""Maximum seconds until a tested program requests the tools; 1 is usual, more on a busy machine."""
UNTESTED_LIST_SECONDS: Final = 10.0
"""Maximum seconds until any other program requests the tools; then it gets its prompt anyway."""
MAX_CALLS: Final = 128
VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
EMPTY_LISTS: Final = {
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
FORWARDER: Final = str(Path(__file__).with_name("forwarder.py"))
TOKEN_VARIABLE: Final = "TOOL_SERVER_TOKEN"


class ToolEndpoint:
    """The part of the server for one session. Sends its events to `sink`, on the event loop."""

    def __init__(self, server: ToolServer, tools: Sequence[Tool]) -> None:
        self.token = secrets.token_urlsafe(32)
        self.listed: list[dict[str, Any]] = [tool_entry(tool, for_claude=server.for_claude) for tool in tools]
        self.sink: Callable[[Input], None] | None = None
        self.was_listed = False
        self._server = server
        self._calls: dict[str, asyncio.Future[Any]] = {}
        self._count = 0
        self._timers: list[asyncio.TimerHandle] = []
        self._list_timer: asyncio.TimerHandle | None = None

    def server_entry(self, *, http: bool) -> dict[str, Any]:
        if http:
            headers = [{"name": "Authorization", "value": f"Bearer {self.token}"}]
            return {"type": "http", "name": SERVER, "url": self._server.url, "headers": headers}
        env = [{"name": TOKEN_VARIABLE, "value": self.token}]
        args = ["-I", "-S", FORWARDER, self._server.url]
        return {"name": SERVER, "command": sys.executable, "args": args, "env": env}

    def start_list_timer(self, *, tested: bool) -> None:
        """Sends `ToolsListed(in_time=False)` to `sink` if the agent does not request the tools in time."""
        loop = asyncio.get_running_loop()
        seconds = LIST_SECONDS if tested else UNTESTED_LIST_SECONDS
        self._list_timer = loop.call_later(seconds, self._notify, ToolsListed(in_time=False))

    def list_sent(self) -> None:
        if not self.was_listed:
            self.was_listed = True
            self._notify(ToolsListed())

    def add_call(self, params: dict[str, Any]) -> tuple[str, asyncio.Future[Any]] | None:
        """Returns the call's key, and the future that `set_result` completes; None if `MAX_CALLS` wait already."""
        if len(self._calls) >= MAX_CALLS:
            return None
        self._count += 1
        key = f"call-{self._count}"
        loop = asyncio.get_running_loop()
        future = self._calls[key] = loop.create_future()
        arguments = params.get("arguments")
        text = msgspec.json.encode(arguments if arguments is not None else {}).decode()
        meta = params.get("_meta")  # where Claude Code and Codex have the model's id
        call_id = text_at(meta, "claudecode/toolUseId") or text_at(meta, "callId")
        self._notify(ToolCalled(key, call_id, params["name"], text))
        for timer in self._timers:
            timer.cancel()
        self._timers = [
            loop.call_later(SETTLE_SECONDS, self._notify, ToolsSettled()),
            loop.call_later(UNREPORTED_SECONDS, self._notify, ToolsSettled(last=True)),
        ]
        return key, future

    def set_result(self, key: str, result: Any) -> None:
        future = self._calls.pop(key, None)
        if future is not None and not future.done():
            future.set_result(result)

    def drop(self, key: str) -> None:
        if self._calls.pop(key, None) is not None:
            self._notify(ToolDropped(key))

    def close(self) -> None:
        """Makes the token invalid, and ends the responses of waiting calls without a result."""
        self.sink = None
        for timer in self._timers:
            timer.cancel()
        if self._list_timer is not None:
            self._list_timer.cancel()
        self._server.forget(self)
        for future in self._calls.values():
            future.cancel()
        self._calls.clear()

    def _notify(self, message: Input) -> None:
        if self.sink is not None:
            self.sink(message)


class ToolServer:
    """The HTTP server of all sessions. Listens from the first endpoint on."""

    def __init__(self, *, for_claude: bool = False) -> None:
        """`for_claude`: see `AcpPreset`."""
        self.for_claude = for_claude
        self._endpoints: dict[bytes, ToolEndpoint] = {}
        """Endpoints by the digest of their tokens, so that a comparison takes equally long for every token."""
        self._runner: web.AppRunner | None = None
        self._starting = asyncio.Lock()
        self.url = ""

    async def open(self, tools: Sequence[Tool]) -> ToolEndpoint:
        """Opens an endpoint for a session's tools. Raises `OSError` if no port is available."""
        async with self._starting:
            if self._runner is None:
                await self._listen()
        endpoint = ToolEndpoint(self, tools)
        self._endpoints[_digest(endpoint.token)] = endpoint
        return endpoint

    def forget(self, endpoint: ToolEndpoint) -> None:
        self._endpoints.pop(_digest(endpoint.token), None)

    async def close(self) -> None:
        for endpoint in list(self._endpoints.values()):
            endpoint.close()
        runner, self._runner = self._runner, None
        if runner is not None:
            await runner.cleanup()

    async def _listen(self) -> None:
        app = web.Application(client_max_size=MAX_BODY)
        app.router.add_route("*", PATH, self._handle)
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0, handler_cancellation=True)
        await runner.setup()
        try:
            await web.TCPSite(runner, HOST, 0).start()
        except OSError:
            await runner.cleanup()
            raise
        self._runner = runner
        self.url = f"http://{HOST}:{runner.addresses[0][1]}{PATH}"

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        endpoint = self._endpoint_of(request)
        if endpoint is None:
            return web.Response(status=401, headers={"WWW-Authenticate": "Bearer"})
        if request.method != "POST":
            # No stream of the server's own is offered, and no session of MCP is kept.
            return web.Response(status=405, headers={"Allow": "POST"})
        message = _message_of(await request.read())
        if isinstance(message, web.Response):
            return message
        id, method = message.get("id"), message.get("method")
        if id is None or "result" in message or "error" in message:
            return web.Response(status=202)
        if not isinstance(method, str):
            return _error(id, INVALID_REQUEST, "The request has no method")
        params = object_at(message, "params")
        if method == "tools/call":
            if not isinstance(params.get("name"), str):
                return _error(id, INVALID_PARAMS, "The call has no name")
            return await self._call(request, endpoint, id, params)
        result = _result_of(method, params, endpoint)
        if result is None:
            return _error(id, METHOD_NOT_FOUND, "Method not found")
        response = _json(id, result)
        if method == "tools/list":
            await response.prepare(request)
            await response.write_eof()
            endpoint.list_sent()  # the prompt is sent now: an agent that read it first would not know the tools
        return response

    def _endpoint_of(self, request: web.Request) -> ToolEndpoint | None:
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        return self._endpoints.get(_digest(token)) if scheme.lower() == "bearer" else None

    async def _call(
        self, request: web.Request, endpoint: ToolEndpoint, id: Any, params: dict[str, Any]
    ) -> web.StreamResponse:
        waiting = endpoint.add_call(params)
        if waiting is None:
            return _error(id, -32000, "Too many calls are waiting")
        key, future = waiting
        response = web.StreamResponse(
            headers={"Content-Type": "text/event-stream", "Cache-Control": "no-store"}
        )
        try:
            await response.prepare(request)
            await _keep_alive(response, future, value_at(params, "_meta", "progressToken"))
            with contextlib.suppress(asyncio.CancelledError):
                if not future.cancelled():
                    await response.write(_event({"jsonrpc": "2.0", "id": id, "result": future.result()}))
            await response.write_eof()
        except (ConnectionError, asyncio.CancelledError):
            endpoint.drop(key)  # the agent has hung up
            raise
        return response


async def _keep_alive(response: web.StreamResponse, future: asyncio.Future[Any], token: Any) -> None:
    """Writes a progress notification for `token` (None: an SSE comment) until `future` is done. Raises
    `ConnectionError`.
    """
    count = 0
    while not future.done():
        await asyncio.wait([future], timeout=PROGRESS_SECONDS)
        if future.done():
            return
        count += 1
        if token is None:
            await response.write(b": waiting\n\n")
        else:
            params = {"progressToken": token, "progress": count}
            await response.write(
                _event({"jsonrpc": "2.0", "method": "notifications/progress", "params": params})
            )


def _message_of(body: bytes) -> dict[str, Any] | web.Response:
    """Decodes a message, also a damaged one, or returns an error: with the id if it can be read, for clients wait for
    no other.
    """
    value = value_of(body)
    if isinstance(value, list) and len(value) == 1:
        [value] = value
    if isinstance(value, dict):
        return value
    if value is not None:
        ids = [each["id"] for each in objects_in(value) if each.get("id") is not None]
        errors = [
            _error_object(id, INVALID_REQUEST, "Several messages in one are not supported") for id in ids
        ]
        if errors:
            return web.Response(body=msgspec.json.encode(errors), content_type="application/json")
        return _error(None, INVALID_REQUEST, "Invalid request", status=400)
    id = value_at(beginning_of(body) or beginning_of(body[:MAX_HEAD]), "id")
    return _error(id, PARSE_ERROR, "Parse error", status=400 if id is None else 200)


def _result_of(method: str, params: dict[str, Any], endpoint: ToolEndpoint) -> dict[str, Any] | None:
    """Returns the result of a request other than a call; None if the method is not supported."""
    if method == "initialize":
        asked = params.get("protocolVersion")
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {}},
            "serverInfo": {"name": SERVER, "version": __version__},
        }
    if method == "tools/list":
        return {"tools": endpoint.listed}
    if method in EMPTY_LISTS:
        return {EMPTY_LISTS[method]: []}
    return {} if method == "ping" else None


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


def _event(message: object) -> bytes:
    return b"event: message\ndata: " + msgspec.json.encode(message) + b"\n\n"


def _json(id: Any, result: object) -> web.Response:
    body = msgspec.json.encode({"jsonrpc": "2.0", "id": id, "result": result})
    return web.Response(body=body, content_type="application/json")


def _error(id: Any, code: int, message: str, *, status: int = 200) -> web.Response:
    body = msgspec.json.encode(_error_object(id, code, message))
    return web.Response(body=body, status=status, content_type="application/json")


def _error_object(id: Any, code: int, message: str) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}}
