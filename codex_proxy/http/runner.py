"""Runs the application on a socket, and answers in our shape what never becomes a request of it.

Broken request lines, headers and chunks, and what aiohttp refuses before any middleware sees it (an `Expect` that
nobody knows): each is the error envelope and a closed connection. What was sent is neither logged nor repeated, since
it may be anything, a key or the bytes of another protocol.
"""

from __future__ import annotations

from typing import Any

import structlog
from aiohttp import web
from aiohttp.http_exceptions import BadHttpMethod, BadStatusLine, InvalidHeader, LineTooLong
from aiohttp.web_request import BaseRequest

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.http.faults import UNFORESEEN, fault_response, log_unforeseen
from codex_proxy.http.middleware.frame import NOT_FOR_PAGES, REQUEST_ID
from codex_proxy.http.service import SERVICE

log = structlog.get_logger("codex_proxy.http")

_BROKEN = (
    (LineTooLong, FaultKind.HEADERS_TOO_LARGE, "A line of the request's head is too long."),
    (BadHttpMethod, FaultKind.INVALID_REQUEST, "This is not HTTP: its first line begins with no method."),
    (BadStatusLine, FaultKind.INVALID_REQUEST, "The request line is not one of HTTP/1.1."),
    (InvalidHeader, FaultKind.INVALID_REQUEST, "A header of the request is not one of HTTP/1.1."),
)
_OTHERWISE = "The request is not HTTP/1.1: its head or its chunks cannot be read."


class Runner(web.AppRunner):
    """An `AppRunner` whose connections answer as this server does."""

    async def _make_server(self) -> web.Server:
        await super()._make_server()  # starts the application; its server is not the one that listens
        app = self.app
        return _Server(app, app._handle, request_factory=app._make_request, **self._kwargs)


class _Server(web.Server):
    def __init__(self, app: web.Application, handler: Any, **options: Any) -> None:
        super().__init__(handler, **options)
        self._app = app

    def __call__(self) -> web.RequestHandler:
        return _Connection(self._app, self, loop=self._loop, **self._kwargs)


class _Connection(web.RequestHandler):
    """One connection of a client's."""

    __slots__ = ("_app",)

    def __init__(self, app: web.Application, manager: web.Server, **options: Any) -> None:
        super().__init__(manager, **options)
        self._app = app

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """What cannot be read, and what went wrong outside of the middlewares. The connection is closed."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun: there can be no other")
        if status >= 500:
            if exc is not None:
                log_unforeseen(exc)
            return self._answer(request, UNFORESEEN)
        log.info("broken_http", problem=type(exc).__name__)
        return self._answer(request, _failure_of(exc))

    async def finish_response(
        self, request: BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if isinstance(resp, web.HTTPException):
            log.info("refused_http", status=resp.status)
            words = f"The request was refused before it was read: {resp.reason}."
            resp = self._answer(request, Failure(kind=FaultKind.INVALID_REQUEST, message=words))
        return await super().finish_response(request, resp, start_time)

    def _answer(self, request: BaseRequest, failure: Failure) -> web.Response:
        response = fault_response(failure, request.path)
        known = request.get(REQUEST_ID)
        response.headers["x-request-id"] = known or self._app[SERVICE].ids.new("req_")
        response.headers.update(NOT_FOR_PAGES)
        response.force_close()
        return response


def _failure_of(error: BaseException | None) -> Failure:
    for kind, fault, words in _BROKEN:
        if isinstance(error, kind):
            return Failure(kind=fault, message=words)
    return Failure(kind=FaultKind.INVALID_REQUEST, message=_OTHERWISE)
