"""The frame of every request: its id, its log line, and faults as JSON.

A client's `x-request-id` is kept and returned; streams carry it too. The log says method, path, status and
times, never a body or a key; of a fault of ours it says where it happened, not what it says.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable

import structlog
from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.keys import NOBODY
from codex_proxy.http.faults import UNFORESEEN, fault_response, log_unforeseen
from codex_proxy.http.service import SERVICE

log = structlog.get_logger("codex_proxy.http")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

REQUEST_ID = web.RequestKey("request_id", str)
NOTES = web.RequestKey("notes", dict[str, object])
"""What a handler adds to its request's log line."""
REPLY_HEADERS = web.RequestKey("reply_headers", dict[str, str])
"""What goes out with whatever is answered: a stream, a body, or a fault."""
OWNER = web.RequestKey("owner", str)
"""The name of the key that the request came with; `local` where none is wanted."""

_PREPARED = web.RequestKey("prepared", bool)
"""The headers of an answer have gone out: there can be no other."""

_CLEAN_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""What a client may call its request: visible ASCII, so that it can neither break a header nor a log."""

NOT_FOR_PAGES = {"X-Content-Type-Options": "nosniff", "Cross-Origin-Resource-Policy": "same-origin"}
"""For browsers that do not say whose page is asking: nothing here is a script or a picture for another page."""

LONGEST_NOTE = 100
"""Letters of a path or a model's name in the log: they are the client's own words."""

CLIENT_LEFT = 499
"""nginx's status for a client that left before its answer; only ever in the log."""


@web.middleware
async def frame(request: web.Request, handler: Handler) -> web.StreamResponse:
    service = request.app[SERVICE]
    given = request.headers.get("x-request-id", "")
    request_id = given if _CLEAN_ID.fullmatch(given) else service.ids.new("req_")
    request[REQUEST_ID] = request_id
    request[NOTES] = {}
    request[REPLY_HEADERS] = {}
    request[OWNER] = NOBODY
    request[_PREPARED] = False
    structlog.contextvars.clear_contextvars()
    structlog.contextvars.bind_contextvars(req_id=request_id)
    began = service.clock.monotonic()
    status = CLIENT_LEFT
    try:
        response = await _answer(request, handler)
        status = response.status
        return response
    finally:
        elapsed = round((service.clock.monotonic() - began) * 1000, 1)
        log.info(
            "request",
            method=request.method,
            path=_short(request.path),
            status=status,
            ms=elapsed,
            **{name: _short(value) for name, value in request[NOTES].items()},
        )


def _short(value: object) -> object:
    return value[:LONGEST_NOTE] if isinstance(value, str) else value


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Fault as fault:
        request[NOTES]["error"] = fault.failure.kind.value
        return fault_response(fault.failure, request.path)
    except web.HTTPException as error:
        return _http_error(request, error)
    except ConnectionError:
        raise asyncio.CancelledError from None  # the client left while it was written to
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
        log_unforeseen(error)
        request[NOTES]["error"] = FaultKind.INTERNAL.value
        if request[_PREPARED]:
            # A second answer would be read as a part of the first: a cut one is seen for what it is.
            if request.transport is not None:
                request.transport.abort()
            raise asyncio.CancelledError from None
        return fault_response(UNFORESEEN, request.path)


def _http_error(request: web.Request, error: web.HTTPException) -> web.Response:
    """aiohttp's own refusals, in OpenAI's shape."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        message = f"{request.path} does not take {request.method}; it takes {allowed}."
        return fault_response(
            Failure(kind=FaultKind.METHOD_NOT_ALLOWED, message=message), request.path, allow=allowed
        )
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        limit = request.app[SERVICE].body_limit
        message = f"The body is larger than {limit} bytes, the limit of this server (PROXY_BODY_LIMIT)."
        return fault_response(Failure(kind=FaultKind.REQUEST_TOO_LARGE, message=message), request.path)
    if error.status == 404:
        message = f"There is nothing at {request.method} {request.path}."
        return fault_response(Failure(kind=FaultKind.NOT_FOUND, message=message), request.path)
    message = error.text or error.reason
    return fault_response(Failure(kind=FaultKind.INVALID_REQUEST, message=message), request.path)


async def sign(request: web.Request, response: web.StreamResponse) -> None:
    """`x-request-id` and what else goes with every reply, just before its headers go out."""
    response.headers.update(NOT_FOR_PAGES)
    if REQUEST_ID in request:
        request[_PREPARED] = True
        response.headers["x-request-id"] = request[REQUEST_ID]
        response.headers.update(request[REPLY_HEADERS])
