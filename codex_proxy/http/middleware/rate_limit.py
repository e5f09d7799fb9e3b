"""Limits how many requests one key makes, a minute and at once. Only requests that can start a turn count: POSTs, and
each turn of a WebSocket.

Every counted reply has OpenAI's headers that say what is left.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, MutableMapping
from typing import Final

import msgspec
from aiohttp import web

from codex_proxy.admission.clients import Client
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.quotas import Allowance, RateLimits, RunningRequests
from codex_proxy.http.endpoint import ENDPOINT, Handler
from codex_proxy.http.middleware.request_context import CLIENT, REPLY_HEADERS


class RequestLimits(msgspec.Struct, frozen=True):
    """How many requests each key has made and has under way."""

    rate: RateLimits
    """Requests a minute, by key."""
    running: RunningRequests
    """Requests under way, by key."""


REQUEST_LIMITS: Final = web.AppKey("request_limits", RequestLimits)


@web.middleware
async def limit_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Counts a request that can start a turn against its key's limits. Raises `Fault` for one too many."""
    client, endpoint = request.get(CLIENT), request.get(ENDPOINT)
    is_counted = endpoint is None or endpoint.counted
    if client is None or request.method != "POST" or not is_counted:
        return await handler(request)
    with counted(request.app[REQUEST_LIMITS], client, request[REPLY_HEADERS]):
        return await handler(request)


@contextlib.contextmanager
def counted(
    limits: RequestLimits, client: Client, headers: MutableMapping[str, str] | None = None
) -> Iterator[None]:
    """Counts the body of the `with` as one request of this client. `headers` gets `x-ratelimit-*`. Raises `Fault` for
    one too many."""
    if client.rpm:
        allowance = limits.rate.take(client.name, client.rpm)
        if headers is not None:
            headers.update(headers_of(allowance))
        if not allowance.allowed:
            raise _too_many_a_minute(allowance)
    if not limits.running.enter(client.name, client.concurrency):
        raise _too_many_at_once(client.concurrency)
    try:
        yield
    finally:
        limits.running.leave(client.name)


def _too_many_a_minute(allowance: Allowance) -> Fault:
    message = (
        f"This server takes {allowance.limit} requests a minute from this key (its own limit, or "
        "PROXY_RATE_LIMIT_RPM). Try again later."
    )
    return Fault(Failure(kind=FaultKind.RATE_LIMITED, message=message, retry_after=allowance.wait))


def _too_many_at_once(limit: int) -> Fault:
    message = (
        f"{limit} requests of this key are under way, which is as many as it may have at once (its own limit, or "
        "PROXY_KEY_CONCURRENCY). Try again when one has ended."
    )
    return Fault(Failure(kind=FaultKind.CONCURRENCY_EXCEEDED, message=message))


def headers_of(allowance: Allowance) -> dict[str, str]:
    """Returns the `x-ratelimit-*` headers in OpenAI's form."""
    return {
        "x-ratelimit-limit-requests": str(allowance.limit),
        "x-ratelimit-remaining-requests": str(allowance.remaining),
        "x-ratelimit-reset-requests": span(allowance.full_after),
    }


def span(seconds: float) -> str:
    """Returns a duration as OpenAI's headers write it: `1m30s`, `12.5s`, `340ms`."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    minutes, rest = divmod(round(seconds, 3), 60)
    return f"{minutes:.0f}m{rest:g}s" if minutes else f"{rest:g}s"
