"""A server whose spans are kept in memory, and what they are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from codex_proxy.app.server import make_server
from codex_proxy.commands.serve import page_of
from codex_proxy.parts.traces.setup import TracesPart
from codex_proxy.parts.traces.watcher import Traces
from tests.http.serving import ENVIRONMENT, Proxy, running_proxy, settings_of


def recorded_traces(*, content: bool = False) -> tuple[Traces, InMemorySpanExporter]:
    """Traces whose spans are kept."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    return Traces(provider, content=content), exporter


@asynccontextmanager
async def traced_proxy(
    folder: Path, *, content: bool = False, **settings: Any
) -> AsyncIterator[tuple[Proxy, InMemorySpanExporter]]:
    """A server, on the fake agent if the settings say nothing else, and its spans."""
    server = await make_server(settings_of(folder, **settings), ENVIRONMENT, page_of)
    traces, exporter = recorded_traces(content=content)
    server.parts.append(TracesPart({}, traces))
    async with running_proxy(server) as proxy:
        yield proxy, exporter


def spans_named(exporter: InMemorySpanExporter, name: str) -> list[ReadableSpan]:
    """The ended spans whose name begins so, in the order in which they began."""
    found = [span for span in exporter.get_finished_spans() if span.name.startswith(name)]
    return sorted(found, key=lambda span: span.start_time or 0)


def one(exporter: InMemorySpanExporter, name: str) -> ReadableSpan:
    (found,) = spans_named(exporter, name)
    return found


def is_below(span: ReadableSpan, parent: ReadableSpan) -> bool:
    return span.parent is not None and span.parent.span_id == parent.context.span_id


def facts(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})
