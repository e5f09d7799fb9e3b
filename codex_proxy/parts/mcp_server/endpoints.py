"""The endpoint `/mcp`, and what the part adds to a server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final, Literal, NotRequired, TypedDict

from aiohttp import web
from pydantic import BaseModel

from codex_proxy.app.server_parts import ServerPart
from codex_proxy.core.faults import STOPPING, Fault, FaultKind
from codex_proxy.http.app_keys import RUNS
from codex_proxy.http.body import read_body
from codex_proxy.http.endpoint import Endpoint
from codex_proxy.http.endpoints import SANDBOX
from codex_proxy.http.middleware.rate_limit import REQUEST_LIMITS
from codex_proxy.http.middleware.request_context import CLIENT
from codex_proxy.parts.mcp_server.depth import BY_AGENT_HEADER
from codex_proxy.parts.mcp_server.work import Caller
from codex_proxy.parts.sessions.creation_handlers import sandbox_in
from codex_proxy.parts.sessions.service import SESSIONS
from codex_proxy.settings.fields import Settings
from codex_proxy.surfaces.errors import Error

if TYPE_CHECKING:
    from codex_proxy.parts.mcp_server.clients import McpClients

NOT_INSTALLED: Final = (
    "The MCP server needs the extra `mcp`: the operator can install it with "
    "`pip install 'codex-openai-proxy[mcp]'`."
)


class JsonRpcMessage(BaseModel, defer_build=True):
    """A message of MCP: a request, a notification or an answer."""

    jsonrpc: Literal["2.0"]
    id: int | str | None = None
    method: str | None = None
    params: dict[str, Any] | None = None


class RpcErrorObject(TypedDict):
    code: int
    message: str
    data: NotRequired[Any]


class RpcFailure(TypedDict):
    """An error of the protocol."""

    jsonrpc: str
    id: NotRequired[int | str | None]
    error: RpcErrorObject


class McpService:
    """The MCP server of one server, which is made when the first client comes."""

    def __init__(self) -> None:
        self._clients: McpClients | None = None
        self._making = asyncio.Lock()
        self._ended = False

    async def clients(self, *, stateless: bool) -> McpClients:
        """Returns the clients. Raises `Fault`: NOT_FOUND without the package, STOPPING when the server ends."""
        if self._ended:
            raise Fault(STOPPING)
        if find_spec("mcp") is None:
            raise Fault.of(FaultKind.NOT_FOUND, NOT_INSTALLED)
        async with self._making:
            if self._clients is None:
                made = await asyncio.to_thread(_clients_type)  # its import takes a second
                self._clients = made(stateless=stateless)
            return self._clients

    async def end(self) -> None:
        """Ends all sessions, and takes no further request."""
        self._ended = True
        async with self._making:
            if self._clients is not None:
                await self._clients.close()


def _clients_type() -> type[McpClients]:
    from codex_proxy.parts.mcp_server.clients import McpClients

    return McpClients


SERVICE: Final = web.AppKey("mcp_service", McpService)


async def post_to_mcp(request: web.Request) -> web.StreamResponse:
    """Takes a message of an MCP client (Streamable HTTP), and answers it."""
    return await _serve(request, await read_body(request))


async def stream_of_mcp(request: web.Request) -> web.StreamResponse:
    """Returns what the server tells an MCP session on its own, as server-sent events."""
    return await _serve(request, b"")


async def end_of_mcp(request: web.Request) -> web.StreamResponse:
    """Ends an MCP session. The sessions of agents that were started in it go on."""
    return await _serve(request, b"")


async def _serve(request: web.Request, body: bytes) -> web.StreamResponse:
    sessions = request.app[SESSIONS]
    clients = await request.app[SERVICE].clients(stateless=sessions.is_shared)
    by_agent = bool(request.headers.get(BY_AGENT_HEADER, "").strip())
    caller = Caller(sessions, request[CLIENT], request.app[REQUEST_LIMITS], by_agent, sandbox_in(request))
    return await clients.serve(request, body, caller)


_REFUSALS: Final = dict.fromkeys(("400", "404", "406", "409", "415"), (Error, RpcFailure))
"""The errors that are this server's own, or the protocol's."""


def _endpoint(route: str, handler: Any, more_answers: Mapping[str, Any] = _REFUSALS, **more: Any) -> Endpoint:
    return Endpoint(
        route,
        handler,
        more_answers=dict(more_answers),
        chapter="The server itself",
        kind="stored",
        versioned=False,
        head=False,
        counted=False,
        description="Details: docs/mcp.md#an-agent-as-a-tool.",
        **more,
    )


ENDPOINTS: Final = (
    _endpoint(
        "POST /mcp",
        post_to_mcp,
        answer=dict[str, Any],
        body=JsonRpcMessage,
        parameters=(SANDBOX,),
        more_answers={"202": "", **_REFUSALS},
        streams=dict[str, Any],
    ),
    _endpoint("GET /mcp", stream_of_mcp, answer="text/event-stream"),
    _endpoint("DELETE /mcp", end_of_mcp, answer=""),
)


class McpServerPart(ServerPart):
    def add_to(self, app: web.Application) -> None:
        app[SERVICE] = McpService()
        app.cleanup_ctx.append(_run)


async def _run(app: web.Application) -> AsyncIterator[None]:
    """Ends the MCP sessions when the server begins to stop."""

    async def end() -> None:
        await app[RUNS].until_draining()
        await app[SERVICE].end()

    ending = asyncio.create_task(end())
    yield
    ending.cancel()
    await asyncio.wait({ending})
    await app[SERVICE].end()


def server_part(_settings: Settings, _environ: Mapping[str, str]) -> ServerPart:
    """Returns what makes a server serve MCP clients."""
    return McpServerPart()
