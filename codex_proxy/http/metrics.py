"""GET /metrics, and the middleware that counts requests, if metrics are on. `app.metrics` makes metrics of each
`RequestRecord`.
"""

from __future__ import annotations

import hmac
from typing import Protocol

import msgspec
from aiohttp import web

from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.keys import digest_of
from codex_proxy.http.app_keys import CLOCK
from codex_proxy.http.endpoint import Handler
from codex_proxy.http.exchange import EVENT_COUNTS, EventCounts
from codex_proxy.http.middleware.access import delaying_guesses, is_local, key_in
from codex_proxy.http.middleware.request_context import CLIENT_LEFT, NOTES

METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
REFUSED = {404: "not_found", 405: "method_not_allowed", 413: "request_too_large", CLIENT_LEFT: "client_left"}
"""Kinds of errors, by status, of requests that reached no handler."""


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A finished request, for metrics. `seconds` is its duration, `deltas` the number of pieces of text."""

    route: str
    """The template of the request's path (`/v1/models/{id}`), or `unknown`."""
    method: str
    status: int
    error: str
    seconds: float
    first_seconds: float | None
    """Seconds until the first event that the client sees, if any."""
    model: str | None
    """The model's name in the request; None if it has none."""
    deltas: int
    choices: int | None
    """The number of choices that a chat request asked for; None for other endpoints."""
    finish_reasons: tuple[str, ...]
    """Finish reasons of a chat's choices, or a response's status; empty without an end."""
    agent: str
    """The agent that served it, if there are several."""
    tokens: dict[str, int]
    """The tokens by kind; empty if none were counted."""


class Meter(Protocol):
    """The interface of the counters: `count` adds one finished request to them."""

    def count(self, record: RequestRecord) -> None: ...

    async def exposition(self) -> tuple[bytes, str]:
        """Returns all metrics as Prometheus's text, and its media type."""
        ...


METER = web.AppKey("meter", Meter)
METRICS_KEY = web.AppKey("metrics_key", str)


def add_metrics(app: web.Application, meter: Meter, key: str | None) -> None:
    """Switches metrics on, before endpoints are added. Without a `key` only clients on this machine may read them."""
    app[METER] = meter
    app[METRICS_KEY] = key or ""
    app.middlewares.insert(0, count_requests)


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics. Raises `Fault`: INVALID_API_KEY, or NOT_ALLOWED for another machine without such a key."""
    await _check(request, request.app[METRICS_KEY])
    body, kind = await request.app[METER].exposition()
    return web.Response(body=body, headers={"Content-Type": kind})


async def _check(request: web.Request, key: str) -> None:
    if key:
        given = key_in(request)
        if not given:
            raise _wrong_key()
        digest = digest_of(given)
        async with delaying_guesses(request, digest):
            if not hmac.compare_digest(digest, digest_of(key)):
                raise _wrong_key()
    elif not is_local(request):
        message = "Metrics can be read only from this machine, unless the operator sets PROXY_METRICS_KEY."
        raise Fault(Failure(kind=FaultKind.NOT_ALLOWED, message=message))


def _wrong_key() -> Fault:
    message = "Metrics require their own key (PROXY_METRICS_KEY). Send it as `Authorization: Bearer KEY`."
    return Fault(Failure(kind=FaultKind.INVALID_API_KEY, message=message))


@web.middleware
async def count_requests(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Counts each finished request, also those that other middlewares answer."""
    clock = request.app[CLOCK]
    counts = EventCounts()
    token = EVENT_COUNTS.set(counts)
    began = clock.monotonic()
    status = CLIENT_LEFT
    try:
        response = await handler(request)
        status = response.status
        return response
    finally:
        EVENT_COUNTS.reset(token)
        request.app[METER].count(_record(request, status, clock.monotonic() - began, counts))


def _record(request: web.Request, status: int, seconds: float, counts: EventCounts) -> RequestRecord:
    notes = request.get(NOTES, {})
    resource = request.match_info.route.resource
    first, model, choices = notes.get("first_ms"), notes.get("model"), notes.get("choice_count")
    return RequestRecord(
        route="unknown" if resource is None else resource.canonical,
        method=request.method if request.method in METHODS else "other",
        status=status,
        error=error_of(request, status),
        seconds=seconds,
        first_seconds=first / 1000 if isinstance(first, int | float) else None,
        model=model if isinstance(model, str) else None,
        deltas=counts.deltas,
        choices=choices if isinstance(choices, int) else None,
        finish_reasons=_finish_reasons(notes),
        agent=str(notes.get("agent", "")),
        tokens=_tokens(notes, counts),
    )


def error_of(request: web.Request, status: int) -> str:
    """Returns the kind of error with which a request has ended; empty if it has succeeded."""
    noted = str(request.get(NOTES, {}).get("error", ""))
    return noted or (REFUSED.get(status, "refused") if status >= 400 else "")


def _finish_reasons(notes: dict[str, object]) -> tuple[str, ...]:
    told = notes.get("finish_reason", ())
    return tuple(map(str, told)) if isinstance(told, tuple) else (str(told),)


def _tokens(notes: dict[str, object], counts: EventCounts) -> dict[str, int]:
    """Returns a request's tokens by kind, as reported, else those in its log line (`notes`)."""
    usage = counts.usage
    if usage is not None:
        return {
            "input": usage.input,
            "cached_input": usage.cached,
            "output": usage.output,
            "reasoning": usage.reasoning,
        }
    told = {"input": notes.get("input_tokens"), "output": notes.get("output_tokens")}
    return {kind: count for kind, count in told.items() if isinstance(count, int)}
