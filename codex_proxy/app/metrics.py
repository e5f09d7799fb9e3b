"""The Prometheus metrics. Label values are bounded: a `route` is a path template, an `error` the kind of a `Fault`, an
unlisted model `other`. A request is counted at its end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final, get_args

from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from codex_proxy import __version__
from codex_proxy.agents.agent import Agent, BreakerState, UpstreamState, all_agents
from codex_proxy.core.account import AgentModel
from codex_proxy.core.events import Usage
from codex_proxy.core.faults import Fault
from codex_proxy.core.turn import MODEL_SEPARATOR
from codex_proxy.http.app_keys import CLOCK
from codex_proxy.http.endpoint import Handler
from codex_proxy.http.exchange import TIMINGS
from codex_proxy.http.metrics import error_of
from codex_proxy.http.middleware.request_context import CLIENT_LEFT, NOTES
from codex_proxy.http.sse import StreamSlots
from codex_proxy.runs.scheduler import RunScheduler
from codex_proxy.surfaces.messages.answer import STOP_REASONS
from codex_proxy.surfaces.models import ModelCatalog, default_model_of, listed_names, resolve, split_mode

OTHER = "other"
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
FINISH_REASONS = frozenset(
    (
        "stop", "length", "tool_calls", "function_call", "content_filter",
        "completed", "incomplete", "failed",
        *STOP_REASONS,
    )
)  # fmt: skip
CHOICES_BUCKETS = (1, 2, 3, 4, 5, 8, 16, 32, 128)
"""Buckets up to the largest `n` that can be configured."""
SECONDS_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
"""Buckets from the server's own work to the default limit of a turn."""


class ServerState(Collector):
    """The gauges, collected when the metrics are read. `store`: the store's file."""

    def __init__(self, runs: RunScheduler, slots: StreamSlots, store: Path | None) -> None:
        self._runs = runs
        self._slots = slots
        self._store = store

    def collect(self) -> Iterable[Metric]:
        runs, agent = self._runs, self._runs.agent
        yield _gauge("active_streams", "Open streams.", self._slots.active)
        limit = "Most streams that may be open at once; 0: no limit."
        yield _gauge("stream_limit", limit, self._slots.limit or 0)
        yield _gauge("turns_running", "Running turns.", runs.running)
        yield _gauge("turns_queued", "Turns that wait for a slot.", runs.queued)
        yield _gauge(
            "agent_ready",
            "1 if the agent can serve turns, as far as is known, else 0.",
            agent.trouble() is None,
        )
        info = GaugeMetricFamily(
            "codex_proxy_info",
            "The versions of the server and of its agents.",
            labels=("version", "agent", "agent_version"),
        )
        for each in all_agents(agent):
            info.add_metric((__version__, each.name, each.version), 1)
        yield info
        yield from self._members(agent)
        yield from self._children()
        if self._store is not None:
            size = sum(map(_size, (self._store, Path(f"{self._store}-wal"))))
            yield _gauge("store_bytes", "Size of the store on disk.", size)

    def _members(self, agent: Agent) -> Iterator[Metric]:
        ready = GaugeMetricFamily(
            "codex_proxy_agents_ready",
            "1 if this agent can serve turns, as far as is known, else 0.",
            labels=("agent",),
        )
        breaker = GaugeMetricFamily(
            "codex_proxy_upstream_breaker",
            "1 for the current state of the circuit breaker of an upstream, 0 for the others.",
            labels=("agent", "state"),
        )
        attempts = CounterMetricFamily(
            "codex_proxy_upstream_attempts",
            "Attempts at an upstream, by their outcome before any part of an answer was sent to the client.",
            labels=("agent", "outcome"),
        )
        if not agent.members and not isinstance(agent, UpstreamState):
            return
        for each in all_agents(agent):
            name = each.name
            ready.add_metric((name,), each.trouble() is None)
            if isinstance(each, UpstreamState):
                for state in get_args(BreakerState):
                    breaker.add_metric((name, state), each.breaker_state == state)
                for outcome, count in each.attempts.items():
                    attempts.add_metric((name, outcome), count)
        yield from (ready, breaker, attempts)

    def _children(self) -> Iterator[Metric]:
        counts = self._runs.agent.processes()
        family = GaugeMetricFamily("codex_proxy_children", "Processes of the agents.", labels=("state",))
        family.add_metric(("idle",), counts.idle)
        family.add_metric(("busy",), counts.busy)
        yield family
        ended = "Processes of the agents that ended unexpectedly."
        yield CounterMetricFamily("codex_proxy_child_restarts", ended, value=counts.restarts)


class Metrics:
    """Counts finished requests. `known_models` maps the `model` of a request to its label."""

    def __init__(self, state: ServerState, known_models: Callable[[str], str]) -> None:
        self._registry = CollectorRegistry()
        self._known_model = known_models
        self._registry.register(state)
        ProcessCollector(registry=self._registry)
        self.loop_delay = LoopDelay(self._registry)
        self._requests = self._counter(
            "requests", "Completed requests, by status and error.", ("route", "method", "status", "error")
        )
        self._seconds = self._histogram("request_seconds", "Seconds from a request to the end of its answer.")
        self._first = self._histogram(
            "first_token_seconds", "Seconds from a request to the first visible output."
        )
        self._deltas = self._counter("deltas", "Deltas (pieces of answers) that agents sent.", ("route",))
        self._choices = Histogram(
            "codex_proxy_choice_count",
            "Choices (`n`) that chat requests asked for.",
            buckets=CHOICES_BUCKETS,
            registry=self._registry,
        )
        self._finish_reasons = self._counter(
            "finish_reasons", "Ended answers, by each finish reason of their choices.", ("route", "reason")
        )
        self._agents = self._counter(
            "agent_requests", "Completed requests, by agent, if there are several agents.", ("agent", "error")
        )
        self._tokens = self._counter("tokens", "Tokens that turns used.", ("kind", "model"))

    def _counter(self, name: str, about: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"codex_proxy_{name}", about, labels, registry=self._registry)

    def _histogram(self, name: str, about: str) -> Histogram:
        return Histogram(
            f"codex_proxy_{name}", about, ("route",), buckets=SECONDS_BUCKETS, registry=self._registry
        )

    @web.middleware
    async def middleware(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Counts each request, also those that other middlewares answer."""
        clock = request.app[CLOCK]
        began = clock.monotonic()
        status = CLIENT_LEFT
        try:
            response = await handler(request)
            status = response.status
            return response
        finally:
            self._count(request, status, clock.monotonic() - began)

    def _count(self, request: web.Request, status: int, seconds: float) -> None:
        notes, timings = request.get(NOTES, {}), request.get(TIMINGS)
        resource = request.match_info.route.resource
        route = "unknown" if resource is None else resource.canonical
        method = request.method if request.method in METHODS else "other"
        error = error_of(request, status)
        self._requests.labels(route, method, str(status), error).inc()
        self._seconds.labels(route).observe(seconds)
        first, model, choices = notes.get("first_ms"), notes.get("model"), notes.get("choice_count")
        if isinstance(first, int | float):
            self._first.labels(route).observe(first / 1000)
        if timings is not None and timings.deltas:
            self._deltas.labels(route).inc(timings.deltas)
        if isinstance(choices, int):
            self._choices.observe(choices)
        reasons = notes.get("finish_reason", ())
        for reason in reasons if isinstance(reasons, tuple) else (str(reasons),):
            self._finish_reasons.labels(route, reason if reason in FINISH_REASONS else OTHER).inc()
        if agent := notes.get("agent"):
            self._agents.labels(agent, error).inc()
        if isinstance(model, str):
            label = self._known_model(model)
            for kind, count in _tokens(notes, None if timings is None else timings.usage).items():
                self._tokens.labels(kind, label).inc(count)

    async def exposition(self) -> bytes:
        """Returns the metrics in Prometheus's text format."""
        return generate_latest(self._registry)


def _tokens(notes: Mapping[str, object], usage: Usage | None) -> dict[str, int]:
    if usage is not None:
        return {
            "input": usage.input,
            "cached_input": usage.cached,
            "output": usage.output,
            "reasoning": usage.reasoning,
        }
    noted = {"input": notes.get("input_tokens"), "output": notes.get("output_tokens")}
    return {kind: count for kind, count in noted.items() if isinstance(count, int)}


def known_models(catalog: ModelCatalog) -> Callable[[str], str]:
    """Returns a function that maps a model's name to a label: the name in the list of models (for an alias, the
    name of its model), `AGENT/other` for an unlisted model of an agent, else `other`.
    """
    listed: dict[str, str] = {}
    models: tuple[AgentModel, ...] | None = None

    def label(name: str) -> str:
        nonlocal listed, models
        if models is not catalog.models:  # an agent may get new ones at any time
            models, names = catalog.models, catalog.names
            listed = {}
            for each in dict.fromkeys((*listed_names(catalog, "prod"), *listed_names(catalog, "dev"))):
                with contextlib.suppress(Fault):  # an alias that leads nowhere
                    resolve(each, catalog, names)
                    listed[each.lower()] = each
        own = listed.get(name.lower()) or listed.get(split_mode(name)[0].lower())
        return own or (label_of_unlisted(name) if catalog.members else OTHER)

    def label_of_unlisted(name: str) -> str:
        try:
            full = resolve(name, catalog).agent_model
        except Fault:  # the agent has lost the model meanwhile
            return OTHER
        if full.endswith(MODEL_SEPARATOR):
            full = default_model_of(catalog, full[:-1])
        return listed.get(full.lower()) or f"{full.partition(MODEL_SEPARATOR)[0]}{MODEL_SEPARATOR}{OTHER}"

    return label


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"codex_proxy_{name}", about, value=float(value))


def _size(file: Path) -> int:
    with contextlib.suppress(OSError):  # the write-ahead log comes and goes
        return os.stat(file).st_size
    return 0


INTERVAL_SECONDS: Final = 0.05
"""Seconds between two measurements of the event loop's delay."""
BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 60)


class LoopDelay:
    """Measures how late the timers of the event loop fire."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._delays = Histogram(
            "codex_proxy_event_loop_delay_seconds",
            "Seconds by which the event loop was late, measured 20 times a second.",
            buckets=BUCKETS,
            registry=registry,
        )
        self._longest = Gauge(
            "codex_proxy_event_loop_delay_max_seconds",
            "Most seconds by which the event loop was late since the start.",
            registry=registry,
        )
        self._max = 0.0
        self._timer: asyncio.TimerHandle | None = None

    async def watch(self, _: web.Application) -> AsyncIterator[None]:
        """Measures while the application runs; for `Application.cleanup_ctx`."""
        loop = asyncio.get_running_loop()
        self._schedule(loop)
        yield
        if self._timer is not None:
            self._timer.cancel()

    def _schedule(self, loop: asyncio.AbstractEventLoop) -> None:
        due = loop.time() + INTERVAL_SECONDS
        self._timer = loop.call_at(due, self._measure, loop, due)

    def _measure(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        delay = max(loop.time() - due, 0.0)
        self._delays.observe(delay)
        if delay > self._max:
            self._max = delay
            self._longest.set(delay)
        self._schedule(loop)
