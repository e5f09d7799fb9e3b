"""Traces requests: a span for each, and below it the spans of its turns. It begins with the first turn, when its parent
is known: the client's `traceparent`, or the tool call of an earlier request whose output this one brings, so that a
tool loop is one trace with any client.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Final

from aiohttp import web
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, SERVICE_VERSION, OTELResourceDetector, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import (
    Link,
    NonRecordingSpan,
    Span,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    get_current_span,
    set_span_in_context,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from codex_proxy import __version__
from codex_proxy.agents.agent import TRACE_HEADERS
from codex_proxy.agents.process_pool.pool import START_WATCHER
from codex_proxy.core.caches import LruCache
from codex_proxy.core.items import HistoryItem, HistoryMessage, HistoryOutput
from codex_proxy.core.turn import Turn
from codex_proxy.http.endpoint import REQUEST_ID, Endpoint, Handler, endpoint_of
from codex_proxy.http.metrics import error_of
from codex_proxy.http.middleware.request_context import CLIENT_LEFT, OWNER
from codex_proxy.parts.traces.turn_spans import TurnSpans

NAME: Final = "codex-proxy"
MAX_CALLS: Final = 1000
"""Maximum calls of clients' tools that are remembered."""
CLOSE_SECONDS: Final = 5.0
"""Seconds that the stopping server waits for the last spans."""
_PROPAGATOR: Final = TraceContextTextMapPropagator()


class RequestTrace:
    def __init__(
        self, start: Callable[..., Span], name: str, attributes: Mapping[str, str], incoming: Context
    ) -> None:
        """`start` starts a span. `incoming`: the context in the client's `traceparent`."""
        self._start = start
        self._name = name
        self._attributes = attributes
        self._incoming = incoming
        self._began = time.time_ns()
        self._span: Span | None = None

    def begin(self, answered: Sequence[SpanContext] = ()) -> Context:
        """Returns the context of the request's span, which the first call makes. `answered`: the tool calls whose
        outputs the request brings.
        """
        if self._span is None:
            parent = self._incoming
            if answered and not get_current_span(parent).get_span_context().is_valid:
                parent = set_span_in_context(NonRecordingSpan(answered[0]))
            self._span = self._start(
                self._name, parent, SpanKind.SERVER, dict(self._attributes), start_time=self._began
            )
        return set_span_in_context(self._span)

    def end(self, attributes: Mapping[str, Any], error: str) -> None:
        """Ends the span. `error`: the kind of the failure, if it failed."""
        self.begin()
        assert self._span is not None
        self._span.set_attributes(attributes)
        if error:
            self._span.set_attribute("error.type", error)
            self._span.set_status(Status(StatusCode.ERROR))
        self._span.end()


REQUEST_TRACE: Final[ContextVar[RequestTrace | None]] = ContextVar("request_trace", default=None)
"""The trace of the request; None for a turn that continues after a restart of the server."""


class Traces:
    """Traces the turns of requests, as a `runs.observers.TurnWatcher`."""

    def __init__(self, provider: TracerProvider, *, content: bool) -> None:
        """`content`: the spans also get what is said."""
        self._provider = provider
        self._start = provider.get_tracer(NAME, __version__).start_span
        self._content = content
        self._calls: LruCache[tuple[str, str], SpanContext] = LruCache(MAX_CALLS)
        """Calls by owner and id."""

    def begin(self, turn: Turn, agent: str) -> TurnSpans:
        called = (self._calls.get((turn.owner, id)) for id in answered_calls(turn.history))
        answered = [each for each in called if each is not None]
        request = REQUEST_TRACE.get()
        if request is None:
            parent = set_span_in_context(NonRecordingSpan(answered[0])) if answered else Context()
        else:
            parent = request.begin(answered)
        links = [Link(each) for each in answered]
        spans = TurnSpans(
            self._start, turn, agent, parent, links, with_content=self._content, on_call=self._remember
        )
        START_WATCHER.set(spans.process_start)
        headers: dict[str, str] = {}
        _PROPAGATOR.inject(headers, spans.context)
        TRACE_HEADERS.set(headers)
        return spans

    def _remember(self, owner: str, call_id: str, span: SpanContext) -> None:
        self._calls.put((owner, call_id), span)

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Traces a request. The outermost middleware, since the others make errors of exceptions."""
        endpoint = endpoint_of(request)
        if endpoint is None or not is_traced(endpoint):
            REQUEST_TRACE.set(None)
            return await handler(request)
        resource = request.match_info.route.resource
        route = request.path if resource is None else resource.canonical
        trace = RequestTrace(
            self._start,
            f"{request.method} {route}",
            {"http.request.method": request.method, "http.route": route},
            _PROPAGATOR.extract(request.headers),
        )
        REQUEST_TRACE.set(trace)
        status = CLIENT_LEFT
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            trace.end(_response_attributes(request, status), error_of(request, status))

    async def close(self) -> None:
        """Sends the last spans, for at most `CLOSE_SECONDS`."""
        loop, sent = asyncio.get_running_loop(), asyncio.Event()

        def shutdown() -> None:
            self._provider.shutdown()
            with contextlib.suppress(RuntimeError):  # nobody waits any more, and the loop is closed
                loop.call_soon_threadsafe(sent.set)

        # A daemon: a collector that does not answer holds up neither the server's end nor that of the interpreter.
        threading.Thread(target=shutdown, daemon=True).start()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                await sent.wait()


def start_traces(*, content: bool) -> Traces:
    """Returns traces that a thread sends to the collector that the environment names."""
    named = OTELResourceDetector().detect()  # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES
    resource = Resource({SERVICE_NAME: NAME, SERVICE_VERSION: __version__}).merge(named)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return Traces(provider, content=content)


def is_traced(endpoint: Endpoint) -> bool:
    return endpoint.kind != "open" and endpoint.chapter != "The page"


def answered_calls(history: Sequence[HistoryItem]) -> list[str]:
    """Returns the ids of the calls whose outputs follow the model's last item."""
    found = []
    for item in reversed(history):
        if isinstance(item, HistoryOutput):
            found.append(item.call_id)
        elif not isinstance(item, HistoryMessage) or item.role == "assistant":
            break
    return found[::-1]


def _response_attributes(request: web.Request, status: int) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "codex_proxy.request_id": request.get(REQUEST_ID, ""),
        "codex_proxy.key": request.get(OWNER, ""),
    }
    if status != CLIENT_LEFT:
        facts["http.response.status_code"] = status
    return facts
