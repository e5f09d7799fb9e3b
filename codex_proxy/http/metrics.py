"""GET /metrics. `app.metrics` counts the requests."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from typing import Final

from aiohttp import web

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.keys import digest_of
from codex_proxy.http.middleware.access import delay_guesses, is_local, key_in
from codex_proxy.http.middleware.request_context import CLIENT_LEFT, NOTES

REFUSED_KINDS = {
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    CLIENT_LEFT: "client_left",
}
"""Kinds of errors of requests that reached no handler."""


METER: Final[web.AppKey[Callable[[], Awaitable[bytes]]]] = web.AppKey("meter")
"""Returns the metrics in Prometheus's text format. Set only if metrics are on."""
METRICS_KEY: Final = web.AppKey("metrics_key", str)
"""The key for the metrics; if empty, only clients on this machine may read them."""


async def metrics(request: web.Request) -> web.Response:
    """Returns metrics for Prometheus, if PROXY_METRICS is on.

    Raises `Fault` INVALID_API_KEY, or NOT_ALLOWED for another machine without `METRICS_KEY`.
    """
    await _check(request, request.app[METRICS_KEY])
    from prometheus_client.exposition import CONTENT_TYPE_LATEST  # most servers have no metrics

    body = await request.app[METER]()
    return web.Response(body=body, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _check(request: web.Request, key: str) -> None:
    if key:
        given = key_in(request)
        if not given:
            raise _wrong_key()
        digest = digest_of(given)
        async with delay_guesses(request, digest):
            if not hmac.compare_digest(digest, digest_of(key)):
                raise _wrong_key()
    elif not is_local(request):
        message = "Metrics can be read only from this machine, unless the operator sets PROXY_METRICS_KEY."
        raise Fault.of(FaultKind.NOT_ALLOWED, message)


def _wrong_key() -> Fault:
    message = "Metrics require their own key (PROXY_METRICS_KEY). Send it as `Authorization: Bearer KEY`."
    return Fault.of(FaultKind.INVALID_API_KEY, message)


def error_of(request: web.Request, status: int) -> str:
    """Returns the kind of a request's error; empty if it has succeeded."""
    noted = str(request.get(NOTES, {}).get("error", ""))
    return noted or (REFUSED_KINDS.get(status, "refused") if status >= 400 else "")
