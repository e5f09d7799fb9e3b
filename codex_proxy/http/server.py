"""The aiohttp application, and the runner that serves it. What aiohttp refuses before any middleware gets the API's
errors.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any

import structlog
from aiohttp import HttpVersion11, web
from aiohttp.http_exceptions import BadHttpMethod, BadStatusLine, InvalidHeader, LineTooLong
from aiohttp.http_parser import RawRequestMessage
from aiohttp.web_request import BaseRequest
from aiohttp.web_runner import BaseSite
from multidict import CIMultiDict, CIMultiDictProxy

from codex_proxy.core.faults import UNFORESEEN, Failure, Fault, FaultKind
from codex_proxy.http.app_keys import IDS, RUNS
from codex_proxy.http.body import WAITS_TO_SEND, check_choices, hold_body_bytes
from codex_proxy.http.endpoint import REQUEST_ID, Handler, fault_response, log_unforeseen
from codex_proxy.http.middleware.access import check_access, hold_right
from codex_proxy.http.middleware.rate_limit import count_if_turn, hold_connection
from codex_proxy.http.middleware.request_context import ON_EVERY_REPLY, PREPARED, add_headers, provide_context
from codex_proxy.http.routing import next_target
from codex_proxy.http.sse import limit_stall
from codex_proxy.surfaces.errors import error_body, retry_after, status_of
from codex_proxy.surfaces.ollama.answer import OLLAMA_PORT

log = structlog.get_logger("codex_proxy.http")

POLL_SECONDS = 0.01
"""Seconds between two looks for idle connections when the server stops."""
IDLE_SECONDS = 2.0
"""Seconds without a request after which a server that stops closes a connection: sooner, the next request is often
on its way. One that comes in time gets an answer.
"""
CLOSE_IDLE_SECONDS = 0.2
"""Seconds between two looks for these connections."""
CANCEL_SECONDS = 1.0
"""Seconds for answers to cancelled requests when the server stops."""

_BROKEN = (
    (LineTooLong, FaultKind.HEADERS_TOO_LARGE, "The request line or a header line is too long."),
    (
        BadHttpMethod,
        FaultKind.INVALID_REQUEST,
        "The request is not HTTP: its first line does not start with a method.",
    ),
    (BadStatusLine, FaultKind.INVALID_REQUEST, "The request line is not one of HTTP/1.1."),
    (InvalidHeader, FaultKind.INVALID_REQUEST, "A header of the request is not one of HTTP/1.1."),
)
_OTHERWISE = "The request is not HTTP/1.1: its head or its chunks cannot be read."


TOO_MANY = Failure(
    kind=FaultKind.UNAVAILABLE,
    message="The server has as many connections as its limit of open files allows. Close some, or try again later; the "
    "operator can raise the limit (`ulimit -n`).",
    retry_after=5,
)
OWN_FILES = 64
"""Open files of a server that does nothing: libraries, the store, pipes, listening sockets."""
SENT_AT_ONCE = 64 << 10
"""Bytes that the buffers of a connection take, whether its client reads or not."""
REFUSAL_LOG_SECONDS = 60.0
"""Seconds between two log lines about refused connections."""


def connections_for(open_files: int) -> int:
    """Returns how many connections a process takes that may open so many files: agents and the store need the rest.
    Without a file left, asyncio cannot accept, and logs hundreds of errors each second.
    """
    return max(8, (open_files - OWN_FILES) * 3 // 4)


def max_connections() -> int:
    """Returns how many connections this process takes."""
    return connections_for(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


class Runner(web.AppRunner):
    """An `AppRunner` that stops without interrupting requests."""

    ollama = ""
    """What the banner says about Ollama's port, if it is wanted."""

    async def _make_server(self) -> web.Server:
        await super()._make_server()  # starts the application; its server is not the one that listens
        app = self.app
        return _Server(app, app._handle, request_factory=partial(_make_request, app), **self._kwargs)

    async def listen_as_ollama(self, *, wanted: bool, reuse_port: bool = False) -> None:
        """Also listens on Ollama's port, if `wanted` and free. `reuse_port`: whether other workers share the port."""
        host, port = self.addresses[0][:2]
        if not wanted or port == OLLAMA_PORT:
            return
        self.ollama = f"also on port {OLLAMA_PORT}"
        try:
            await web.TCPSite(self, host, OLLAMA_PORT, reuse_port=reuse_port).start()
        except OSError as error:
            log.warning("port_in_use", port=OLLAMA_PORT, reason=error.strerror)
            self.ollama = f"not on port {OLLAMA_PORT}: {error.strerror}"

    async def stop_listening(self) -> None:
        """Closes the listening sockets, and from now on connections that are idle for `IDLE_SECONDS`, so that a client
        goes to another server before it is refused. Other connections, also queued ones, are served.
        """
        loop = asyncio.get_running_loop()
        listening = [sock for site in self.sites for sock in _sockets_of(site)]
        for sock in listening:
            loop.remove_reader(sock.fileno())
        for _ in range(2):  # what asyncio has accepted already gets its transport in its next step
            await asyncio.sleep(0)
        queued = [connection for sock in listening for connection in _accept_queued(sock)]
        for site in self.sites:
            await site.stop()
        for connection in queued:
            await loop.connect_accepted_socket(self._connection, connection)
        if isinstance(self._server, _Server):
            self._server.keep_closing_idle(IDLE_SECONDS)

    async def close_connections(self, within: float) -> None:
        """Closes idle connections. After `within` seconds the others are cancelled, with an error if no answer has
        begun.
        """
        if isinstance(self._server, _Server) and not await self._server.close_when_idle(within):
            self._server.cancel_requests()
            await self._server.close_when_idle(CANCEL_SECONDS)

    @property
    def has_connections(self) -> bool:
        return self._server is not None and bool(self._server.connections)

    def _connection(self) -> asyncio.Protocol:
        assert self._server is not None, "there is a listener"
        return self._server()


class _Request(web.Request):
    """A request that knows its application, which aiohttp looks for anew each time: thirty times in a request.
    Its `get` is that of a dictionary: aiohttp's raises and catches an error for each key that is absent.
    """

    __slots__ = ("app", "get")


def _make_request(app: web.Application, message: RawRequestMessage, *rest: Any) -> web.Request:
    """Makes a request of which aiohttp does not see `Expect: 100-continue`: it would ask for the body before anything
    is checked.
    """
    expected = message.headers.get("Expect", "")
    waits = expected.lower() == "100-continue" and message.version == HttpVersion11
    if waits:
        headers = CIMultiDict(message.headers)
        del headers["Expect"]
        message = message._replace(headers=CIMultiDictProxy(headers))
    request = app._make_request(message, *rest, _cls=_Request)  # type: ignore[misc]  # `rest` is short enough
    request.app = app  # type: ignore[misc]  # a property of aiohttp's, and none here
    request.get = request._state.get  # type: ignore[method-assign]  # in the slot
    if waits:
        request[WAITS_TO_SEND] = True
    return request


def _sockets_of(site: BaseSite) -> Sequence[socket.socket]:
    server = site._server
    return server.sockets if isinstance(server, asyncio.Server) else ()


def _accept_queued(listening: socket.socket) -> list[socket.socket]:
    found = []
    # An error says that there is no further one, or no descriptor for it.
    with socket.socket(fileno=os.dup(listening.fileno())) as own, contextlib.suppress(OSError):
        while True:
            connection, _ = own.accept()
            connection.setblocking(False)
            found.append(connection)
    return found


class _Server(web.Server):
    def __init__(self, app: web.Application, handler: Any, **options: Any) -> None:
        super().__init__(handler, **options)
        self.max_connections = max_connections()
        self._app = app
        self._complained_at = -REFUSAL_LOG_SECONDS

    def keep_closing_idle(self, seconds: float) -> None:
        """Closes connections that have been idle for so long, now and until none is left."""
        for connection in self._client_connections():
            if connection.last_used <= self._loop.time() - seconds:
                connection.close_if_idle()
        if self.connections:
            self._loop.call_later(CLOSE_IDLE_SECONDS, self.keep_closing_idle, seconds)

    async def close_when_idle(self, within: float) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + within
        while any([not connection.close_if_idle() for connection in self._client_connections()]):  # noqa: C419 - each of them
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(POLL_SECONDS)
        return True

    def cancel_requests(self) -> None:
        for connection in self._client_connections():
            connection.cancel_request()

    def _client_connections(self) -> list[_Connection]:
        return [each for each in self.connections if isinstance(each, _Connection)]

    def __call__(self) -> asyncio.Protocol:  # type: ignore[override]
        if len(self.connections) < self.max_connections or self._close_oldest_idle():
            return _Connection(self._app, self, loop=self._loop, **self._kwargs)
        now = self._loop.time()
        if now - self._complained_at >= REFUSAL_LOG_SECONDS:
            self._complained_at = now
            log.warning("connections_refused", limit=self.max_connections)
        return _Refusal()

    def _close_oldest_idle(self) -> bool:
        """Closes the oldest connection that waits for a request, if there is one. HTTP permits that at any time, and
        its client has only to connect again; whose it is need not be known.
        """
        return any(not each.is_closing and each.close_if_idle() for each in self._client_connections())


class _Refusal(asyncio.Protocol):
    """Answers a connection beyond the limit with an error, and closes it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        body = error_body(TOO_MANY, "chat")
        transport.write(
            b"HTTP/1.1 %d Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: %d\r\n"
            b"Connection: close\r\nContent-Length: %d\r\n\r\n%b"
            % (status_of(TOO_MANY, "chat"), retry_after(TOO_MANY) or 0, len(body), body)
        )
        transport.close()


class _Connection(web.RequestHandler):
    """aiohttp's handler, which also disconnects clients that do not read, can be closed when idle, and sends the API's
    errors for requests that reach no middleware.
    """

    __slots__ = ("_app",)

    def __init__(self, app: web.Application, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._app = app

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        limit_stall(transport)

    @property
    def is_closing(self) -> bool:
        return self.transport is None or self.transport.is_closing()

    @property
    def last_used(self) -> float:
        """When the connection was made or its last answer ended, by the loop's clock."""
        return self._next_keepalive_close_time - self._keepalive_timeout

    def close_if_idle(self) -> bool:
        """Returns False if a request is being served or has come."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return True
        if self._waiter is None or self._waiter.done() or self._messages or _has_unread(transport):
            return False
        transport.close()
        return True

    def cancel_request(self) -> None:
        if self._request_in_progress and self._task_handler is not None:
            self._task_handler.cancel()

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Answers an unreadable request (400) or an exception outside of middlewares (500). Raises `ConnectionError` if
        an answer has begun.
        """
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun: there can be no other")
        if status >= 500:
            return self._answer(request, UNFORESEEN if exc is None else log_unforeseen(exc))
        log.info("malformed_request", problem=type(exc).__name__)
        return self._answer(request, _failure_of(exc))

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):
            log.info("request_refused", status=resp.status)
            words = f"The request was refused before it was read: {resp.reason}."
            resp = self._answer(request, Failure(FaultKind.INVALID_REQUEST, words))
        only_end_tells = request.version < HttpVersion11 and resp.content_length is None
        if only_end_tells or self._app[RUNS].draining or request.get(WAITS_TO_SEND):
            resp.force_close()  # of what a client sends that waits no longer, nobody knows whether it is a body
        if (resp.content_length or 0) <= SENT_AT_ONCE or not isinstance(request, web.Request):
            return await super().finish_response(request, resp, start_time)
        try:
            with hold_right(request):  # its client may read as slowly as it likes
                return await super().finish_response(request, resp, start_time)
        except Fault:
            raise ConnectionError from None

    def _answer(self, request: BaseRequest, failure: Failure) -> web.Response:
        request_id = request.get(REQUEST_ID) or self._app[IDS].new("req_")
        response = fault_response(failure, request, request_id=request_id)
        response.headers["x-request-id"] = request_id
        response.headers.update(ON_EVERY_REPLY)
        response.force_close()
        return response


def _has_unread(transport: asyncio.BaseTransport) -> bool:
    with socket.socket(fileno=os.dup(transport.get_extra_info("socket").fileno())) as own:
        try:
            return bool(own.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except OSError:
            return False


def _failure_of(error: BaseException | None) -> Failure:
    found = ((fault, words) for kind, fault, words in _BROKEN if isinstance(error, kind))
    fault, message = next(found, (FaultKind.INVALID_REQUEST, _OTHERWISE))
    return Failure(fault, message)


@web.middleware
async def guard_request(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Checks access and the key's limits, and calls the handler, again with the next target of a route if one fails
    before anything was sent: one middleware, because each costs time for every piece of a stream.
    """
    preflight_reply = await check_access(request)
    if preflight_reply is not None:
        return preflight_reply
    check_choices(request)
    with hold_right(request), hold_connection(request), count_if_turn(request), hold_body_bytes(request):
        while True:
            try:
                return await handler(request)
            except Fault as fault:
                if request[PREPARED] or not next_target(request, fault.failure):
                    raise  # else the next target of its route is asked


def application(*, body_limit: int) -> web.Application:
    """Returns the application without parts and endpoints."""
    app = web.Application(middlewares=[provide_context, guard_request], client_max_size=body_limit)
    app.on_response_prepare.append(add_headers)
    return app
