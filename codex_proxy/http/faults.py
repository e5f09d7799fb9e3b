"""A fault as an HTTP answer."""

from __future__ import annotations

import structlog
from aiohttp import web

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.shown_text import trace_of
from codex_proxy.http.endpoint import errors_of
from codex_proxy.surfaces.errors import error_body, retry_after, status_of

log = structlog.get_logger("codex_proxy.http")

CHALLENGE = 'Bearer realm="codex-proxy"'
"""How a key is sent, for clients that wait to be asked (RFC 6750)."""


def log_unforeseen(error: BaseException) -> None:
    """Logs where a fault of ours happened. Never what it says: that may hold a piece of the request."""
    log.error("internal_error", **trace_of(error))


def fault_response(failure: Failure, request: web.BaseRequest, *, allow: str | None = None) -> web.Response:
    """The error as JSON in the shape of the request's endpoint, with its status, `Retry-After` and `Allow` where they
    apply."""
    surface = errors_of(request)
    headers = {}
    seconds = retry_after(failure)
    if seconds is not None:
        headers["Retry-After"] = str(seconds)
    if not failure.repeatable:
        headers["x-should-retry"] = (
            "false"  # official SDKs try again by themselves unless they are told not to
        )
    if failure.kind is FaultKind.INVALID_API_KEY:
        headers["WWW-Authenticate"] = CHALLENGE
    if allow is not None:
        headers["Allow"] = allow
    return web.Response(
        status=status_of(failure, surface),
        body=error_body(failure, surface),
        content_type="application/json",
        headers=headers,
    )
