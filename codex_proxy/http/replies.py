"""Answers as JSON, and errors in the format of an API."""

from __future__ import annotations

from typing import Final

import structlog
from aiohttp import web

from codex_proxy.core.faults import UNFORESEEN, Failure, FaultKind, lack_of
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.own_errors import trace_of
from codex_proxy.http.endpoint import ENDPOINT, REQUEST_ID
from codex_proxy.surfaces.errors import Surface, error_body, forbids_retry, retry_after, status_of

log = structlog.get_logger("codex_proxy.http")

CHALLENGE: Final = 'Bearer realm="codex-proxy"'
"""The value of `WWW-Authenticate`, for clients that wait for a challenge (RFC 6750)."""


def json_response(value: object, status: int = 200) -> web.Response:
    return web.Response(body=encode_json(value), content_type="application/json", status=status)


def log_unforeseen(error: BaseException) -> Failure:
    """Logs type and place of an error, whose message may quote the request. Returns the request's failure: UNAVAILABLE
    if the machine lacked something, else `UNFORESEEN`.
    """
    lack = lack_of(error)
    log.error("internal_error", **trace_of(error), **({"lack": lack} if lack else {}))
    return Failure(FaultKind.UNAVAILABLE, f"The server cannot do this now: {lack}.") if lack else UNFORESEEN


def error_api_of(request: web.BaseRequest) -> Surface:
    """Returns the API in whose format errors are answered."""
    endpoint = request.get(ENDPOINT)
    if (endpoint is None or endpoint.also_anthropic) and is_anthropic_client(request):
        return "messages"
    unserved: Surface = "ollama" if is_ollama_path(request.path) else "chat"
    return unserved if endpoint is None else endpoint.errors


def is_ollama_path(path: str) -> bool:
    return path.startswith("/api/")


def is_anthropic_client(request: web.BaseRequest) -> bool:
    """Whether the version or key header is of Anthropic's API."""
    headers = request.headers
    return "anthropic-version" in headers or ("x-api-key" in headers and "Authorization" not in headers)


def fault_response(
    failure: Failure, request: web.BaseRequest, *, allow: str | None = None, request_id: str = ""
) -> web.Response:
    """Returns a failure in the API's format. `request_id`: an id for a request that has none yet. `allow`: the
    methods of the path.
    """
    surface = error_api_of(request)
    headers = {}
    seconds = retry_after(failure)
    if seconds is not None:
        headers["Retry-After"] = str(seconds)
    if forbids_retry(failure):
        headers["x-should-retry"] = "false"
    if failure.kind is FaultKind.INVALID_API_KEY:
        headers["WWW-Authenticate"] = CHALLENGE
    if allow is not None:
        headers["Allow"] = allow
    return web.Response(
        status=status_of(failure, surface),
        body=error_body(failure, surface, request.get(REQUEST_ID, request_id)),
        content_type="application/json",
        headers=headers,
    )
