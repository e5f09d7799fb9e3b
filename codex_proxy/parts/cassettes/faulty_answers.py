"""Answers with the faults that a test asks for (`X-Codex-Fault`), on servers whose agent is the fake one or replays."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any, Final

from aiohttp import web
from aiohttp.http import StreamWriter

from codex_proxy.app.server_parts import ServerPart, ServerParts
from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.http.body import read_body
from codex_proxy.http.endpoint import Handler, endpoint_of
from codex_proxy.http.middleware.request_context import OWNER
from codex_proxy.parts.cassettes.stream_faults import Act, FaultyBody, Pause, StreamFault, fault_of

HEADER: Final = "X-Codex-Fault"
"""The request header that names the fault."""
MAX_COUNTED: Final = 1000
"""Maximum headers of which it is known how often they have been refused."""
MAX_WAITING: Final = 100_000
"""Maximum writes that wait behind a pause; more of them end the answer."""
LOOK_SECONDS: Final = 0.1
"""Seconds between two looks whether the client of a stalled answer has left."""
NO_LINGER: Final = struct.pack("ii", 1, 0)

FAULT: Final = web.RequestKey("stream_fault", StreamFault)


class FaultyAnswers(ServerPart):
    """Lets requests ask a server with the fake agent for broken answers."""

    def __init__(self) -> None:
        self._has_fake = False

    async def start(self, server: ServerParts) -> None:
        self._has_fake = any(each.spec.is_fake for each in server.configured.values())

    def add_to(self, app: web.Application) -> None:
        if self._has_fake:
            add_faults(app)


def add_faults(app: web.Application) -> None:
    """Makes the application give its answers the faults that requests ask for."""
    app.middlewares.append(fault_middleware())
    spoil_answers(app)


def spoil_answers(app: web.Application) -> None:
    """Makes the application give an answer the fault `FAULT` of its request."""
    if _spoil not in app.on_response_prepare:
        app.on_response_prepare.append(_spoil)


def fault_middleware() -> Any:
    """Returns the middleware that reads the header, and refuses the requests that are to be refused."""
    refused: OrderedDict[tuple[str, str], int] = OrderedDict()

    @web.middleware
    async def read_fault(request: web.Request, handler: Handler) -> web.StreamResponse:
        text = request.headers.get(HEADER)
        if text is None or endpoint_of(request) is None:
            return await handler(request)
        try:
            fault = fault_of(text)
        except ValueError as error:
            raise bad_request(f"{HEADER}: {error}.", HEADER) from None
        if fault.kind != "refuse":
            if request.headers.get("Upgrade", "").lower() == "websocket":
                raise bad_request(f"{HEADER}: a WebSocket connection has only the fault 'refuse'.", HEADER)
            request[FAULT] = fault
            return await handler(request)
        counted = request[OWNER], text
        times = refused.pop(counted, 0)
        if times < fault.times:
            refused[counted] = times + 1
            if len(refused) > MAX_COUNTED:
                refused.popitem(last=False)
            await read_body(request)
            raise Fault(fault.failure)
        return await handler(request)

    return read_fault


async def _spoil(request: web.Request, response: web.StreamResponse) -> None:
    """Called before the headers of an answer are sent."""
    fault = request.get(FAULT)
    if fault is None or response.status >= 400:
        return
    assert isinstance(request.writer, StreamWriter), "not that of a server"
    _SpoiledWriter(request, request.writer, FaultyBody(fault, response.content_type))


class _SpoiledWriter:
    """Writes the body of one answer with its fault. It waits beside whoever writes, who may not be able to wait."""

    def __init__(self, request: web.Request, writer: StreamWriter, body: FaultyBody) -> None:
        self._request = request
        self._body = body
        self._has_length = writer.length is not None
        self._write: Callable[[bytes], Awaitable[None]] = writer.write
        self._write_eof: Callable[[], Awaitable[None]] = writer.write_eof
        self._acts: asyncio.Queue[Act | None] = asyncio.Queue()
        self._is_over = self._is_cut = False
        writer.write = self.write  # type: ignore[method-assign]
        writer.write_eof = self.write_eof  # type: ignore[method-assign]
        self._sending = asyncio.ensure_future(self._send())

    async def write(self, chunk: Any, **_: Any) -> None:
        if self._is_cut or self._acts.qsize() > MAX_WAITING:
            raise ConnectionResetError("the test has asked to cut or to stall the answer")
        for act in self._body.feed(bytes(chunk)):
            self._acts.put_nowait(act)

    async def write_eof(self, chunk: bytes = b"") -> None:
        await self.write(chunk)
        for act in (*self._body.finish(), None):
            self._acts.put_nowait(act)
        await self._sending

    async def _send(self) -> None:
        while (act := await self._next()) is not None:
            if self._is_over:
                continue
            if isinstance(act, Pause):
                await self._pause(act.seconds)
            elif isinstance(act, bytes):
                await self._write(act)
            else:
                self._is_over = True
                await self._end(act)
        if not self._is_over:
            await self._write_eof()

    async def _next(self) -> Act | None:
        """Returns what is next; None at the end of the answer, or when the client has left before."""
        while not self._client_has_left():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):  # aiohttp calls nobody when a client leaves
                    return await self._acts.get()
        self._is_over = True
        return None

    async def _pause(self, seconds: float) -> None:
        """Returns after so many seconds, or when the client has left."""
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        while not self._client_has_left() and loop.time() < until:  # noqa: ASYNC110
            await asyncio.sleep(min(until - loop.time(), LOOK_SECONDS))

    def _client_has_left(self) -> bool:
        transport = self._request.transport
        return transport is None or transport.is_closing()

    async def _end(self, how: str) -> None:
        transport = self._request.transport
        if transport is None or (how == "end" and not self._has_length):
            await self._write_eof()
            return
        self._is_cut = True
        if how != "reset":  # also the early end of an answer whose length the client knows
            transport.close()
            return
        connection = transport.get_extra_info("socket")
        if connection is not None:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)
        transport.abort()
