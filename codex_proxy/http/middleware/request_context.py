"""Gives each request an id (the client's, if it is safe) and a log line, and turns exceptions into error answers."""

from __future__ import annotations

import asyncio
import re

import structlog
from aiohttp import web

from codex_proxy.admission.clients import Client
from codex_proxy.core.faults import STOPPING, Failure, Fault, FaultKind
from codex_proxy.core.keys import NO_KEY_OWNER
from codex_proxy.core.shown_text import excerpt
from codex_proxy.http.app_keys import CLOCK, IDS, RUNS
from codex_proxy.http.endpoint import (
    ENDPOINT,
    ERROR_API,
    REQUEST_ID,
    Handler,
    endpoint_of,
    error_api_at,
    error_api_of,
    fault_response,
    is_ollama_path,
    log_unforeseen,
    methods_of,
    of_absent_part,
    served_endpoints,
)
from codex_proxy.runs.observers import TURN_ORIGIN, TurnOrigin
from codex_proxy.surfaces.ollama.answer import NO_OLLAMA

log = structlog.get_logger("codex_proxy.http")

NOTES = web.RequestKey("notes", dict[str, object])
"""The fields that handlers add to the log line."""
REPLY_HEADERS = web.RequestKey("reply_headers", dict[str, str])
"""Headers for every kind of answer."""
OWNER = web.RequestKey("owner", str)
"""The name of the request's key; `local` if none is required."""

CLIENT = web.RequestKey("client", Client)
"""The key's client; not set for paths that need no key."""

_BEGAN = web.RequestKey("began", float)
"""When the request came, by the monotonic clock."""
PREPARED = web.RequestKey("prepared", bool)
"""Whether headers were sent, so that no other answer is possible."""

_CLEAN_ID = re.compile(r"[\x21-\x7e]{1,128}")
"""Ids that are safe in a header and in the log."""

ON_EVERY_REPLY = {
    # For browsers that do not say whose page is asking: nothing here is a script or a picture for another page.
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
    # aiohttp would name itself, Python, and their versions.
    "Server": "codex-proxy",
}

MAX_NOTE = 100
"""Maximum characters of what clients choose, in the log."""

CLIENT_LEFT = 499
"""Logged if the client left before the answer, as in nginx; never sent."""


@web.middleware
async def provide_context(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Sets the request's id, `NOTES` and `REPLY_HEADERS`, answers exceptions, and logs the request at its end."""
    app = request.app
    clock = app[CLOCK]
    given = request.headers.get("x-request-id", "")
    request_id = given if _CLEAN_ID.fullmatch(given) else app[IDS].new("req_")
    request[REQUEST_ID] = request_id
    request[NOTES] = {}
    request[REPLY_HEADERS] = {}
    request[OWNER] = NO_KEY_OWNER
    request[PREPARED] = False
    structlog.contextvars.bind_contextvars(req_id=request_id)  # each request has a task, and so a context
    began = request[_BEGAN] = clock.monotonic()
    status = CLIENT_LEFT
    try:
        response = await _answer(request, handler)
        status = response.status
        return response
    finally:
        elapsed = round((clock.monotonic() - began) * 1000, 1)
        log.info(
            "request",
            method=request.method,
            path=request.path[:MAX_NOTE],
            status=status,
            ms=elapsed,
            **_short(request[NOTES]),
        )


def _short(notes: dict[str, object]) -> dict[str, object]:
    return {name: value[:MAX_NOTE] if isinstance(value, str) else value for name, value in notes.items()}


def _find_endpoint(request: web.Request) -> None:
    """Sets what the request asks for, and the API of its errors."""
    endpoint = endpoint_of(request)
    if endpoint is not None:
        request[ENDPOINT] = endpoint
    request[ERROR_API] = error_api_at(request, endpoint)
    TURN_ORIGIN.set(TurnOrigin(request[REQUEST_ID], "" if endpoint is None else endpoint.chapter))


async def _answer(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        _find_endpoint(request)
        return await handler(request)
    except Fault as fault:
        request[NOTES]["error"] = fault.failure.kind.value
        if request[PREPARED]:
            raise _cut_off(request) from None
        return fault_response(fault.failure, request)
    except asyncio.CancelledError:
        if not _uncancel_if_stopping(request):
            raise
        request[NOTES]["error"] = STOPPING.kind.value
        return fault_response(STOPPING, request)
    except web.HTTPException as error:
        error.__traceback__ = None  # the request holds the error, and this would hold the request
        return _http_error(request, error)
    except ConnectionError:
        raise asyncio.CancelledError from None  # the client left while it was written to
    except Exception as error:  # noqa: BLE001 - whatever it is, the client gets an answer
        failure = log_unforeseen(error)
        request[NOTES]["error"] = failure.kind.value
        if request[PREPARED]:
            raise _cut_off(request) from None
        return fault_response(failure, request)


def _cut_off(request: web.Request) -> asyncio.CancelledError:
    """Closes the connection in the middle of an answer, which is seen for what it is. A second answer would be read as
    a part of the first.
    """
    if request.transport is not None:
        request.transport.abort()
    return asyncio.CancelledError()


def _uncancel_if_stopping(request: web.Request) -> bool:
    """Revokes the cancellation of this task if the stopping server can still answer; returns whether."""
    here = request.transport is not None and not request.transport.is_closing()
    if not here or request[PREPARED] or not request.app[RUNS].draining:
        return False
    task = asyncio.current_task()
    assert task is not None
    task.uncancel()
    return True


def _http_error(request: web.Request, error: web.HTTPException) -> web.Response:
    methods = (
        methods_of(request, error.allowed_methods) if isinstance(error, web.HTTPMethodNotAllowed) else []
    )
    if methods and request.method not in methods:  # else the path with this method is the other vendor's
        allowed = ", ".join(methods)
        message = (
            f"{excerpt(request.path)} does not support {excerpt(request.method)}. Supported methods "
            f"are: {allowed}."
        )
        return fault_response(Failure(FaultKind.METHOD_NOT_ALLOWED, message), request, allow=allowed)
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        limit = request.client_max_size
        message = f"The request body is larger than this server's limit of {limit} bytes (PROXY_BODY_LIMIT)."
        return fault_response(Failure(FaultKind.REQUEST_TOO_LARGE, message), request)
    if error.status == 404 or isinstance(error, web.HTTPMethodNotAllowed):
        if (path := _without_slash(request)) is not None:
            # As Ollama does: the second status keeps method and body.
            status = 301 if request.method in ("GET", "HEAD") else 307
            return web.Response(status=status, headers={"Location": path})
        if message := of_absent_part(request.path.removeprefix("/v1")):
            return fault_response(Failure(FaultKind.NOT_FOUND, message), request)
        message = f"Invalid URL ({excerpt(request.method)} {excerpt(request.path)})."
        advice = NO_OLLAMA if is_ollama_path(request.path) else "GET /v1 lists the endpoints."
        return fault_response(Failure(FaultKind.NOT_FOUND, f"{message} {advice}"), request)
    return fault_response(Failure(FaultKind.INVALID_REQUEST, error.text or error.reason), request)


def _without_slash(request: web.Request) -> str | None:
    """Returns the path and query without the slash at the path's end, if that is a path of Ollama's; else None."""
    path = request.path.removesuffix("/")
    served = (each.path for each in served_endpoints(request.app) if is_ollama_path(each.path))
    if path == request.path or path not in served:
        return None
    return f"{path}?{request.query_string}" if request.query_string else path


async def add_headers(request: web.Request, response: web.StreamResponse) -> None:
    """Adds the reply headers, before an answer's headers are sent."""
    app = request.app
    if app[RUNS].draining:
        response.headers["Connection"] = "close"
    response.headers.update(ON_EVERY_REPLY)
    if REQUEST_ID in request:
        request[PREPARED] = True
        response.headers["x-request-id"] = request[REQUEST_ID]
        if error_api_of(request) == "messages":
            response.headers["request-id"] = request[REQUEST_ID]
        elapsed = app[CLOCK].monotonic() - request[_BEGAN]
        response.headers["openai-processing-ms"] = str(round(elapsed * 1000))
        response.headers.update(request[REPLY_HEADERS])
