"""Builds the HTTP application and its parts from the settings."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping

from aiohttp import web

from codex_proxy.admission.admit import Admission
from codex_proxy.admission.clients import Client, Clients, HeldRights, workspace_of
from codex_proxy.admission.routes import Router
from codex_proxy.agents.agent import Agent
from codex_proxy.agents.configured.agents import ConfiguredAgent
from codex_proxy.agents.registry import agent_able_to, plugin_reference
from codex_proxy.app.server_parts import ServerParts
from codex_proxy.app.start_checks import allowed_hosts, trusted_proxies, webhook_secret
from codex_proxy.app.store_lifecycle import StoreLifecycle
from codex_proxy.app.system import RandomIds, SystemClock
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.keys import NO_KEY_OWNER
from codex_proxy.core.turn import MODEL_SEPARATOR
from codex_proxy.http.app_keys import (
    ADMISSION,
    CATALOG,
    CLIENTS,
    CLOCK,
    IDS,
    KEEPALIVE,
    RESPONSES,
    RUNS,
    USAGE,
)
from codex_proxy.http.body import BODY_BUDGET, PDF_READER, ByteBudget, body_budget
from codex_proxy.http.chat import CHAT_OPTIONS, ChatOptions
from codex_proxy.http.endpoint import add_endpoints
from codex_proxy.http.endpoints import ENDPOINTS
from codex_proxy.http.messages import REASONING_STATE
from codex_proxy.http.metrics import METER, METRICS_KEY
from codex_proxy.http.middleware.access import (
    FORWARDED_HEADERS,
    HOSTS,
    ORIGINS,
    PASSES_KEYS,
    RIGHTS,
    TRUSTED_PROXIES,
)
from codex_proxy.http.middleware.content_log import log_contents
from codex_proxy.http.middleware.rate_limit import (
    CONNECTIONS,
    REQUEST_LIMITS,
    WRONG_KEYS,
    RequestLimits,
    WrongKeys,
)
from codex_proxy.http.page import PAGE
from codex_proxy.http.routing import ROUTER
from codex_proxy.http.server import application, max_connections
from codex_proxy.http.server_info import ENVIRONMENT, FAKE_AGENTS, NODE_NAME, STARTED, WORKER
from codex_proxy.http.sse import STREAM_SLOTS, TEST_ENDPOINTS, StreamSlots
from codex_proxy.http.webhook_sender import WebhookSender
from codex_proxy.process.own_process import memory_bytes
from codex_proxy.responses.service import ResponsesService
from codex_proxy.settings.fields import Settings, split_list
from codex_proxy.settings.protected_paths import protected_paths
from codex_proxy.store.health import WriteCheck
from codex_proxy.store.usage import RamUsage, UsageRecorder
from codex_proxy.surfaces.models import ModelCatalog
from codex_proxy.surfaces.requests.options import RequestSettings
from codex_proxy.workers.slots import FairQueue

ALIASES_ADVICE = " The operator can add further names with PROXY_MODEL_ALIASES (`model_aliases`)."
"""The advice for a client that cannot change its name of the model."""


def application_of(server: ServerParts, usage: UsageRecorder) -> web.Application:
    """Returns the application of a `server` whose store and agents have started. Raises `UserError` if a setting is
    invalid.
    """
    settings, clock = server.settings, server.clock
    app = application(body_limit=settings.body_limit)
    app[RUNS], app[CLOCK], app[IDS] = server.runs, clock, RandomIds()
    app[CATALOG] = catalog_of(settings, server.agent, server.configured)
    app[FAKE_AGENTS] = frozenset(name for name, each in server.configured.items() if each.spec.is_fake)
    app[CLIENTS] = Clients(server.keyring, everybody_of(settings, app[CATALOG]))
    app[RIGHTS] = HeldRights(app[CLIENTS])
    app[ADMISSION] = Admission(
        server.agent,
        server.runs.services.checks,
        images=server.images,
        tools=server.server_tools,
        tool_steps=settings.max_tool_call_iterations,
        agent_able_to=agent_able_to,
        plugins=frozenset(
            name for name, each in server.configured.items() if plugin_reference(each.settings)
        ),
    )
    if server.pdfs is not None:
        app[PDF_READER] = server.pdfs
    app[USAGE] = usage
    app[RESPONSES] = _responses(server, app)
    app[CHAT_OPTIONS] = ChatOptions(
        choices=settings.choices, profile=settings.chat_profile, stream_metrics=settings.stream_metrics
    )
    app[KEEPALIVE], app[REASONING_STATE] = settings.heartbeat_interval, settings.reasoning_state
    app[WORKER] = server.worker
    app[NODE_NAME] = platform.node() + (f"/worker {server.worker}" if server.worker else "")
    app[ENVIRONMENT], app[STARTED] = settings.env, int(clock.epoch())
    app[PASSES_KEYS], app[FORWARDED_HEADERS] = False, frozenset[str]()
    app[STREAM_SLOTS] = StreamSlots(settings.sse_max_concurrency, server.owners)
    app[REQUEST_LIMITS] = RequestLimits(clock)
    app[CONNECTIONS] = FairQueue(max_connections(), server.owners)
    app[BODY_BUDGET] = ByteBudget(*body_budget(memory_bytes()))
    app[WRONG_KEYS], app[HOSTS] = WrongKeys(clock), allowed_hosts(settings)
    if settings.routes:
        app[ROUTER] = Router(settings.routes, clock)
    app[ORIGINS] = frozenset(origin.lower() for origin in split_list(settings.allowed_origins))
    app[TRUSTED_PROXIES] = trusted_proxies(settings)
    if settings.test_endpoints:
        app[TEST_ENDPOINTS] = settings.stream_release_file or ""
    if server.page is not None:
        app[PAGE] = server.page
    if settings.log_content:
        app.middlewares.insert(0, log_contents)
    if settings.metrics:
        _add_metrics(server, app)
    add_endpoints(app, ENDPOINTS)
    for part in reversed(server.parts):
        part.add_to(app)
    return app


def _responses(server: ServerParts, app: web.Application) -> ResponsesService:
    settings, lifecycle = server.settings, server.store_lifecycle
    return ResponsesService(
        runs=server.runs,
        clock=server.clock,
        ids=app[IDS],
        clients=app[CLIENTS],
        rights=app[RIGHTS],
        admission=app[ADMISSION],
        usage=app[USAGE],
        store=None if lifecycle is None else lifecycle.store,
        profile=settings.responses_profile,
        heartbeat=settings.heartbeat_interval,
        conversation_wait=settings.queue_wait,
        background=server.background,
        background_recovery=settings.background_recovery,
        write_check=None if lifecycle is None else WriteCheck(lifecycle.store, server.clock),
        pdfs=server.pdfs,
        webhooks=server.webhooks,
    )


def _add_metrics(server: ServerParts, app: web.Application) -> None:
    # Imported here, since most servers have no metrics.
    from codex_proxy.app.metrics import Metrics, ServerState, known_models

    store = server.settings.store_file if server.settings.in_file else None
    state = ServerState(server.runs, app[STREAM_SLOTS], store)
    meter = Metrics(state, known_models(app[CATALOG]))
    app.cleanup_ctx.append(meter.loop_delay.watch)
    app[METER] = meter.exposition
    key = server.settings.metrics_key
    app[METRICS_KEY] = key.get_secret_value() if key else ""
    app.middlewares.insert(0, meter.middleware)


def webhooks_of(
    settings: Settings, clock: SystemClock, lifecycle: StoreLifecycle | None
) -> WebhookSender | None:
    """Returns what sends webhooks; None without a URL or a store (`lifecycle`)."""
    urls = split_list(settings.webhooks.urls)
    if not urls or lifecycle is None:
        return None  # without a store there are no background responses
    return WebhookSender(urls, webhook_secret(settings), clock=clock, outbox=lifecycle.store)


def usage_of(clock: Clock, lifecycle: StoreLifecycle | None) -> UsageRecorder:
    """Returns what records usage in the store, or in RAM."""
    if lifecycle is not None:
        return UsageRecorder(lifecycle.store, clock, durable=lifecycle.durable)
    return UsageRecorder(RamUsage(), clock, durable=False)


def catalog_of(settings: Settings, agent: Agent, named: Mapping[str, ConfiguredAgent]) -> ModelCatalog:
    """Returns the models that clients see. `agent` lists them; `named` are the agents by name."""
    first = next(iter(named.values()))
    aliases = list(settings.aliases)
    for name, each in named.items():
        aliases += [(alias, f"{name}{MODEL_SEPARATOR}{model}") for alias, model in each.aliases.items()]
    alone = not agent.members
    return ModelCatalog(
        source=agent,
        aliases=tuple(aliases),
        codex=[name for name, each in named.items() if each.spec.uses_codex or each.spec.is_fake],
        default_model=(settings.codex_model or "") if alone else "",
        defaults={name: each.default_model for name, each in named.items() if each.default_model},
        plain=[name for name, each in named.items() if each.spec.plain_only],
        other_tiers=("flex",) if "service_tier" in agent.capabilities else (),
        advice=ALIASES_ADVICE
        + (" The fake agent accepts any name with FAKE_CODEX_MODELS=any." if first.spec.is_fake else ""),
    )


def everybody_of(settings: Settings, catalog: ModelCatalog) -> Client:
    """Returns a client without limits of its own."""
    workdir, roots = str(settings.workdir), split_list(settings.workdir_roots, ":")
    writes = settings.sandbox != "read-only"
    protected = protected_paths(settings, os.environ) if writes else ()
    return Client(
        name=NO_KEY_OWNER,
        settings=RequestSettings(
            builtin_tools=settings.builtin_tools,
            show_activity=settings.show_activity,
            sandbox=settings.sandbox,
            workdir=workdir,
            max_items=settings.max_input_items,
            web_search=settings.web_search,
            logprobs=settings.logprobs,
            max_choices=settings.max_chat_choices,
            structured_output=settings.structured_output,
        ),
        workspace=workspace_of(workdir, roots, protected),
        rpm=settings.rate_limit_rpm,
        concurrency=settings.key_concurrency,
        catalog=catalog,
        approvals=settings.approvals,
    )
