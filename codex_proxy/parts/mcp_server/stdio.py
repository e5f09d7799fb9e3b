"""`codex-proxy mcp`: an MCP server on stdin and stdout with the tools of the running server, to which it passes every
call on over HTTP. It lists the tools also while no server runs; a call then says what to do.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, Final, cast

import anyio
import httpx2
import structlog
from mcp.client import Client
from mcp.client.context import ClientRequestContext
from mcp.client.session import ElicitationFnT
from mcp.client.streamable_http import streamable_http_client
from mcp.server.context import ServerRequestContext
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    INVALID_REQUEST,
    CallToolRequestParams,
    CallToolResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ErrorData,
    InputRequiredResult,
    JSONRPCError,
)
from mcp_types.version import LATEST_MODERN_VERSION, MODERN_PROTOCOL_VERSIONS

from codex_proxy.parts.mcp_server.arguments import STARTING
from codex_proxy.parts.mcp_server.depth import BY_AGENT_HEADER, has_agent_above
from codex_proxy.parts.mcp_server.messages import MAX_BODY, MessageError, checked
from codex_proxy.parts.mcp_server.server import failed, make_server

log = structlog.get_logger(__name__)

READ_SECONDS: Final = 120.0
"""Seconds for which an answer may say nothing: more than a call lasts."""
ENDED: Final = frozenset({CONNECTION_CLOSED, INVALID_REQUEST})
"""The errors of calls whose connection, or MCP session, is no more."""
TRY_AGAIN: Final = "Try again."
MAY_HAVE_BEGUN: Final = "It may have begun: look with list_sessions before you try again."
WRONG_SETTINGS: Final = (
    "`codex-proxy mcp` cannot use the address of the server or the API key that it was given. The user can correct "
    "its option --base-url, or the key in the variable CODEX_PROXY_KEY."
)

MAX_ARGUMENTS: Final = MAX_BODY - (64 << 10)
"""Maximum bytes of a call's arguments: the server's limit for a message, which has more fields."""


def run(url: str, key: str | None, *, by_agent: bool) -> None:
    """Serves stdin and stdout until stdin ends. `url`: the address of the server's `/mcp`; `by_agent`: whether the
    client is known to be an agent of such a server.
    """
    asyncio.run(_run(Forwarder(url, key, by_agent=by_agent or has_agent_above(os.getppid()))))


async def _run(forwarder: Forwarder) -> None:
    server = make_server(forwarder.call)
    lines = CheckedLines()
    try:
        async with stdio_server(stdin=cast(Any, lines)) as (reader, writer):
            lines.writer.set_result(writer)
            await server.run(reader, writer, server.create_initialization_options())
    finally:
        await forwarder.close()


class CheckedLines:
    """The messages on stdin. It answers those that the SDK would not."""

    def __init__(self) -> None:
        self.writer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        """What writes messages to stdout."""

    async def __aiter__(self) -> AsyncIterator[str]:
        async for line in anyio.wrap_file(sys.stdin.buffer):
            try:
                if line.strip():
                    yield checked(line).decode()
            except MessageError as error:
                answer = JSONRPCError.model_validate(error.answer())
                await (await self.writer).send(SessionMessage(answer))


class Forwarder:
    """Passes calls on to the running server. `close` it."""

    def __init__(self, url: str, key: str | None, *, by_agent: bool) -> None:
        """`by_agent`: whether the client is an agent of such a server."""
        self._url = url
        self._headers = {BY_AGENT_HEADER: "1"} if by_agent else {}
        key = key.strip() if key else None  # a file's last line has an end
        self._can_send = key is None or (key.isascii() and key.isprintable())
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._connecting = asyncio.Lock()
        self.client: Client | None = None
        """The connection that calls use; None if there is none."""
        self._task: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()

    async def call(
        self, context: ServerRequestContext[Any, Any], params: CallToolRequestParams
    ) -> CallToolResult | InputRequiredResult:
        """Returns the running server's answer to a call, or a failed result that says why there is none."""

        async def tell(progress: float, total: float | None, message: str | None) -> None:
            await context.session.report_progress(progress, total, message)

        if not self._can_send:  # the error of the one who tries quotes the key
            return failed(WRONG_SETTINGS)
        if len(json.dumps(params.arguments, ensure_ascii=False).encode()) > MAX_ARGUMENTS:
            return failed(f"The arguments of this call have more than {MAX_ARGUMENTS >> 10} KiB: send less.")
        try:
            client = await self._connected(context.session)
        except (MCPError, httpx2.HTTPError) as error:
            return failed(await self._what_to_do(error, TRY_AGAIN))
        except (ValueError, httpx2.InvalidURL) as error:
            return failed(f"{WRONG_SETTINGS} ({type(error).__name__})")
        try:
            return await client.session.call_tool(
                params.name,
                params.arguments,
                progress_callback=tell,
                input_responses=params.input_responses,
                request_state=params.request_state,
                allow_input_required=True,
            )
        except (MCPError, httpx2.HTTPError) as error:
            code = error.code if isinstance(error, MCPError) else CONNECTION_CLOSED
            if code == INVALID_PARAMS:
                raise  # the server's own answer
            # A server that was started again knows nothing of this connection. Other calls may go on in a newer one.
            if code in ENDED and self.client is client:
                await self.close()
            began = params.name in STARTING and code != INVALID_REQUEST
            return failed(await self._what_to_do(error, MAY_HAVE_BEGUN if began else TRY_AGAIN))

    async def close(self) -> None:
        """Ends the connection; the next call makes another one."""
        task, stop = self._task, self._stop
        self.client, self._task, self._stop = None, None, asyncio.Event()
        stop.set()
        if task is not None:
            await asyncio.wait({task})

    async def _connected(self, session: ServerSession) -> Client:
        async with self._connecting:
            if self.client is None:
                made: asyncio.Future[Client] = asyncio.get_running_loop().create_future()
                self._task = asyncio.create_task(self._keep(session, made, self._stop))
                self.client = await made
            return self.client

    async def _keep(self, session: ServerSession, made: asyncio.Future[Client], stop: asyncio.Event) -> None:
        """Connects as the client of `session` would, and keeps the connection until `stop`."""
        declared = session.client_capabilities
        asks = declared is not None and declared.elicitation is not None
        modern = session.protocol_version in MODERN_PROTOCOL_VERSIONS
        try:
            httpx2.URL(self._url)  # one that cannot be used would end the first call, and say nothing
            async with (
                self._http() as http,
                Client(
                    streamable_http_client(self._url, http_client=http),
                    # Only with the handshake of 2025 can the server ask a client that has it, too.
                    mode="legacy" if asks and not modern else LATEST_MODERN_VERSION,
                    elicitation_callback=_asking(session) if asks else None,
                    cache=None,
                ) as client,
            ):
                if not made.cancelled():  # the call that has asked for it was not
                    made.set_result(client)
                    await stop.wait()
        except BaseExceptionGroup as errors:
            self._end(made, _first_of(errors) or errors)
        except Exception as error:  # noqa: BLE001 - whatever it is, the call waits for it
            self._end(made, error)

    @staticmethod
    def _end(made: asyncio.Future[Client], error: BaseException) -> None:
        if not made.done():
            made.set_exception(error)
        else:  # its calls have failed by themselves; the error's text may have the key
            log.warning("mcp_connection_ended", error=type(error).__name__)

    def _http(self) -> httpx2.AsyncClient:
        timeout = httpx2.Timeout(10.0, read=READ_SECONDS)
        # Without the proxy of the environment: this is a server of the user's own.
        return httpx2.AsyncClient(headers=self._headers, timeout=timeout, trust_env=False)

    async def _what_to_do(self, error: Exception, otherwise: str) -> str:
        """Returns what a model is told of a call that has failed. `otherwise`: what it can do if the server
        is there.
        """
        root = self._url.removesuffix("/mcp")
        try:
            async with self._http() as http:
                reply = await http.get(f"{root}/v1/models")
        except httpx2.HTTPError:
            return (
                f"No codex-proxy server answers at {root}. The user can start one with `codex-proxy serve`."
            )
        if reply.status_code == 401:
            return (
                f"The server at {root} requires an API key. The user can give it to `codex-proxy mcp` in the variable "
                "CODEX_PROXY_KEY."
            )
        return f"The server at {root} did not answer this call ({error}). {otherwise}"


def _first_of(errors: BaseExceptionGroup[BaseException]) -> Exception | None:
    """Returns the first error in a group that tells why no connection could be made, if there is one."""
    for error in errors.exceptions:
        if isinstance(error, MCPError | httpx2.HTTPError | httpx2.InvalidURL | ValueError):
            return error
        if isinstance(error, BaseExceptionGroup) and (found := _first_of(error)) is not None:
            return found
    return None


def _asking(session: ServerSession) -> ElicitationFnT:
    """Returns what passes the server's question on to the person at this client."""

    async def ask(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult | ErrorData:
        assert isinstance(params, ElicitRequestFormParams), "the server asks by forms only"
        return await session.elicit_form(params.message, params.requested_schema)

    return ask
