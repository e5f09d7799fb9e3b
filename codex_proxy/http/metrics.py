"""GET /metrics, and the middleware that counts every request. Used only if metrics are switched on.

This module makes a `RequestRecord` for each request. `codex_proxy.metrics` turns these records into metrics.
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
"""The kind of error, for metrics, of requests that were answered before a handler was called, by their status."""


class RequestRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about a finished request from which metrics are computed. `seconds` is its whole duration, and
    `deltas` the number of pieces of text that the agent sent.
    """

    route: str
    """The template of the request's path (`/v1/models/{id}`), or `unknown`."""
    method: str
    status: int
    error: str
    """The kind of the fault; empty if there was none."""
    seconds: float
    first_seconds: float | None
    """Seconds until the first event that the client can see; None if there was none."""
    model: str | None
    """The model's name in the request; None if it has none."""
    deltas: int
    choices: int | None
    """The number of choices that a chat request asked for; None for other endpoints."""
    finish_reasons: tuple[str, ...]
    """The finish reasons of a chat answer's choices; the status of a response. Empty if the answer has not ended."""
    agent: str
    """The name of the agent that served the request, if the server has several; else empty."""
    tokens: dict[str, int]
    """The tokens by kind; empty if none were counted."""


class Meter(Protocol):
    """The interface of the counters: `count` adds one finished request to them."""

    def count(self, record: RequestRecord) -> None: ...

    def exposition(self) -> tuple[bytes, str]:
        """Returns all metrics in the text format of Prometheus, and the media type of that text."""
        ...


METER = web.AppKey("meter", Meter)
METRICS_KEY = web.AppKey("metrics_key", str)


def add_metrics(app: web.Application, meter: Meter, key: str | None) -> None:
    """Switches metrics on; `meter` counts them. Call it before endpoints are added. `key` is the key that GET
    /metrics requires; if it is None, only clients on this machine may read the metrics.
    """
    app[METER] = meter
    app[METRICS_KEY] = key or ""
    app.middlewares.insert(0, count_requests)


async def metrics(request: web.Request) -> web.Response:
    """GET /metrics: returns the metrics as text. Raises `Fault` INVALID_API_KEY without the key of the metrics, and
    NOT_ALLOWED for a client on another machine if there is no such key.
    """
    await _check(request, request.app[METRICS_KEY])
    body, kind = request.app[METER].exposition()
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
    """Counts each finished request, also those that other middlewares answer: `add_metrics` puts this middleware
    before them.
    """
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
    error = str(notes.get("error", "")) or (REFUSED.get(status, "refused") if status >= 400 else "")
    return RequestRecord(
        route="unknown" if resource is None else resource.canonical,
        method=request.method if request.method in METHODS else "other",
        status=status,
        error=error,
        seconds=seconds,
        first_seconds=first / 1000 if isinstance(first, int | float) else None,
        model=model if isinstance(model, str) else None,
        deltas=counts.deltas,
        choices=choices if isinstance(choices, int) else None,
        finish_reasons=_finish_reasons(notes),
        agent=str(notes.get("agent", "")),
        tokens=_tokens(notes, counts),
    )


def _finish_reasons(notes: dict[str, object]) -> tuple[str, ...]:
    told = notes.get("finish_reason", ())
    return tuple(map(str, told)) if isinstance(told, tuple) else (str(told),)


def _tokens(notes: dict[str, object], counts: EventCounts) -> dict[str, int]:
    """Returns the tokens of a request by kind (`input`, `output`, ...), as the agent reported them. If it reported
    none, returns the numbers in `notes`, the fields of the request's log line; empty if there are none either.
    """
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
