"""Builds the server from the settings, starts it, and stops it with everything that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import structlog
from aiohttp import web

from codex_proxy.admission.admit import Admission
from codex_proxy.admission.clients import Client, Clients, workspace_of
from codex_proxy.admission.images import ImageFetcher
from codex_proxy.admission.routes import Router
from codex_proxy.agents.agent import Agent, all_agents
from codex_proxy.agents.named import NamedAgent, make_agent, named_agents
from codex_proxy.agents.registry import agent_able_to
from codex_proxy.agents.spec import AgentContext
from codex_proxy.cassettes.format import CassetteError
from codex_proxy.cassettes.serving import NO_CASSETTES, Cassettes, cassettes_of
from codex_proxy.config import Settings, split_list
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.keys import NO_KEY_OWNER
from codex_proxy.core.safety import Protected
from codex_proxy.core.turn import MODEL_SEPARATOR
from codex_proxy.http.app_keys import ADMISSION, CATALOG, CLIENTS, CLOCK, IDS, RESPONSES, RUNS, USAGE
from codex_proxy.http.body import BODY_BUDGET, PDF_READER, ByteBudget, body_budget
from codex_proxy.http.chat import CHAT_OPTIONS, ChatOptions
from codex_proxy.http.endpoint import add_endpoints
from codex_proxy.http.endpoints import ENDPOINTS
from codex_proxy.http.messages import MESSAGES_OPTIONS, MessagesOptions
from codex_proxy.http.metrics import Meter, add_metrics
from codex_proxy.http.middleware.access import (
    FORWARDED_HEADERS,
    HOSTS,
    MAX_LINE,
    ORIGINS,
    PASSES_KEYS,
    TRUSTED_PROXIES,
)
from codex_proxy.http.middleware.content_log import log_contents
from codex_proxy.http.middleware.rate_limit import REQUEST_LIMITS, RateLimits, RequestLimits, RunningRequests
from codex_proxy.http.middleware.wrong_keys import WRONG_KEYS, WrongKeys
from codex_proxy.http.page import PAGE, Page
from codex_proxy.http.routing import ROUTER
from codex_proxy.http.server import Runner, application
from codex_proxy.http.server_info import ENVIRONMENT, FAKE_AGENTS, STARTED, WORKER
from codex_proxy.http.stream_slots import STREAM_SLOTS, TEST_ENDPOINTS, StreamSlots, TestEndpoints
from codex_proxy.http.webhook_sender import WebhookSender
from codex_proxy.process.own_process import memory_bytes
from codex_proxy.process.spawner import Spawner, use_spawner
from codex_proxy.protected_paths import protected_paths
from codex_proxy.responses.live import BackgroundResponses
from codex_proxy.responses.recovery import LeaseHolder
from codex_proxy.responses.service import ResponsesService
from codex_proxy.runs.deadlines import Deadlines
from codex_proxy.runs.idle_sessions import IdleLimits
from codex_proxy.runs.scheduler import RunLimits, RunScheduler
from codex_proxy.runs.turn_records import TurnRecords
from codex_proxy.start_checks import (
    StartError,
    allowed_hosts,
    check,
    close_state_folder,
    keyring_of,
    trusted_proxies,
)
from codex_proxy.store.health import WriteCheck
from codex_proxy.store.usage import RamUsage
from codex_proxy.store.usage_recorder import UsageRecorder
from codex_proxy.store_lifecycle import StoreLifecycle, StoreOpenError, open_store_lifecycle, step_memory_of
from codex_proxy.surfaces.chat.parse import ChatSettings
from codex_proxy.surfaces.messages.parse import MessagesSettings
from codex_proxy.surfaces.models import ModelCatalog
from codex_proxy.surfaces.responses.parse import ResponsesSettings
from codex_proxy.surfaces.responses.webhooks import check_secret
from codex_proxy.workers.pdf_reader import PdfReader, can_read_pdfs
from codex_proxy.workers.schema_checks import SchemaChecks

if TYPE_CHECKING:
    from codex_proxy.cassettes.replay import RecordedTools
    from codex_proxy.mcp_tools import McpToolSource
    from codex_proxy.metrics import Metrics

log = structlog.get_logger(__name__)

SILENT_SECONDS = 75.0
"""Seconds for which a connection may be open without a request, or with an incomplete one. Longer than the minute
after which reverse proxies close idle connections themselves."""

LINGER_SECONDS = 0.5
"""Seconds for which connections stay open when the server stops, so that requests on their way are answered. Not
longer than the server waits for turns."""

ALIASES_ADVICE = " The operator can add further names with PROXY_MODEL_ALIASES (`model_aliases`)."
"""What the error about an unknown model advises, for a client whose name of the model cannot be changed."""

FLUSH_SECONDS = 2.0
"""The most seconds for finished answers to reach their clients when the server stops."""


class SystemClock:
    """A `Clock` that reads the computer's own clocks: monotonic seconds, and seconds since 1970."""

    monotonic = staticmethod(time.monotonic)
    epoch = staticmethod(time.time)


class RandomIds:
    """An `IdSource` with random ids that cannot be guessed."""

    def new(self, prefix: str) -> str:
        return prefix + os.urandom(16).hex()


class Server:
    """The server: its agents, its store and its HTTP application. Call `start`, and at the end `stop`, which ends
    every process and connection.
    """

    def __init__(
        self,
        settings: Settings,
        agent: Agent,
        cassettes: Cassettes = NO_CASSETTES,
        page: Page | None = None,
        worker: int = 0,
    ) -> None:
        """`page` is what the page for browsers shows beside the server's state; None: there is no page. `worker` is the
        number of this process among those that share the port; 0: it is the only one.
        """
        self.agent = agent
        self.worker = worker
        self.cassettes = cassettes
        self.page = page
        self.named: Mapping[str, NamedAgent] = {each.name: each for each in named_agents(settings)}
        """Every agent by name, the default one first. If there is a single agent, its name is empty."""
        if all(each.spec.plain_only for each in self.named.values()):
            settings = settings.model_copy(update={"builtin_tools": "never"})
        self.settings = settings
        self.clock = SystemClock()
        deadlines = {name: deadlines_of(each) for name, each in self.named.items()}
        self.runs = RunScheduler(
            agent,
            RunLimits(
                max_running=settings.max_running_turns,
                max_wait_seconds=settings.queue_wait,
                max_chars=settings.max_output_size,
            ),
            lambda turn: deadlines[self._named_for(turn.model).name],
            idle_limits=IdleLimits(settings.kept_threads, settings.kept_thread_seconds),
            owners=self._owners,
            records=None if page is None else TurnRecords(self.clock),
        )
        allowed = split_list(settings.image_fetch)
        self.images = ImageFetcher(allowed) if allowed else None
        self.pdfs = PdfReader(self._owners) if can_read_pdfs() else None
        self.clients: Clients | None = None
        """The clients of the server; None before the start."""
        self.usage: UsageRecorder | None = None
        self.app: web.Application | None = None
        """The application with all parts of the server; None before the start."""
        self.background = BackgroundResponses(settings.max_running_turns, self._owners)
        self.webhooks: WebhookSender | None = None
        self.server_tools: McpToolSource | RecordedTools | None = None
        self.lease_holder: LeaseHolder | None = None
        """Holds the leases of the background responses; None before the start, and if the server has no store."""
        self.store_lifecycle: StoreLifecycle | None = None
        """The open store; None before the start, and if the server has no store."""
        self.spawner: Spawner | None = None
        self.runner: Runner | None = None
        self.host = settings.host
        self.port = 0

    async def start(self) -> None:
        """Opens the store, starts the agent, then listens. Raises `StartError` if the store cannot be opened, a
        setting is invalid, or the address cannot be listened on; raises the agent's `Fault` if it cannot be
        started. What was started before an error goes on until `stop` is called.
        """
        self.spawner = use_spawner()
        try:
            self.store_lifecycle = await open_store_lifecycle(self.settings, self.clock)
        except StoreOpenError as error:
            raise StartError(str(error)) from error
        self.runs.memory = step_memory_of(self.settings, self.clock, self.store_lifecycle)
        await self.agent.start()
        for agent in all_agents(self.agent):
            if agent.warning:
                log.warning("agent_limited", agent=agent.name, reason=agent.warning)
        # A handler must end when its client leaves, or nobody tells the agent.
        self.webhooks = webhooks_of(self.settings, self.clock, self.store_lifecycle)
        self.server_tools = self.cassettes.tools(RandomIds()) or mcp_tools_of(
            self.settings, self.clock, self.runs.checks
        )
        self.app = self._application()
        if self.store_lifecycle is not None:
            self.lease_holder = LeaseHolder(self.app[RESPONSES], self.store_lifecycle.store)
        self.runner = Runner(
            self.app,
            access_log=None,
            handler_cancellation=True,
            auto_decompress=False,  # `http.body` unpacks: bounded, and only what is whole
            keepalive_timeout=SILENT_SECONDS,
            max_line_size=MAX_LINE,
            max_field_size=MAX_LINE,
            shutdown_timeout=FLUSH_SECONDS / 2,  # then handlers are cancelled, and have as long again
        )
        await self.runner.setup()
        shares_port = self.settings.workers > 1
        site = web.TCPSite(self.runner, self.settings.host, self.settings.port, reuse_port=shares_port)
        try:
            await site.start()
        except OSError as error:
            raise StartError(
                f"cannot listen on {self.settings.host}:{self.settings.port}: {error.strerror}. "
                "Give another --port; a second server of yours also needs a state folder of its own (PROXY_STATE_DIR)."
            ) from error
        self.host, self.port = self.runner.addresses[0][:2]
        await self.runner.listen_as_ollama(wanted=self.settings.ollama, reuse_port=shares_port)
        if self.store_lifecycle is not None:
            bound = self.settings.model_copy(update={"port": self.port})
            self.store_lifecycle.write_address(bound.server_url)
        if self.webhooks is not None:
            self.webhooks.wake()
        if self.lease_holder is not None:
            await self.lease_holder.start()

    def _application(self) -> web.Application:
        settings, clock = self.settings, self.clock
        app = application(body_limit=settings.body_limit)
        app[RUNS], app[CLOCK], app[IDS] = self.runs, clock, RandomIds()
        app[CATALOG] = catalog_of(settings, self.agent, self.named)
        app[FAKE_AGENTS] = frozenset(name for name, each in self.named.items() if each.spec.is_fake)
        app[CLIENTS] = self.clients = Clients(
            keyring_of(settings, clock), everybody_of(settings, app[CATALOG])
        )
        app[ADMISSION] = Admission(
            self.agent,
            self.runs.checks,
            images=self.images,
            tools=self.server_tools,
            agent_able_to=agent_able_to,
        )
        if self.pdfs is not None:
            app[PDF_READER] = self.pdfs
        app[USAGE] = self.usage = usage_of(clock, self.store_lifecycle)
        app[RESPONSES] = self._responses(app)
        app[CHAT_OPTIONS] = ChatOptions(
            choices=settings.choices,
            profile=settings.chat_profile,
            stream_metrics=settings.stream_metrics,
            keepalive=settings.heartbeat_interval,
        )
        app[MESSAGES_OPTIONS] = MessagesOptions(
            keepalive=settings.heartbeat_interval, reasoning_state=settings.reasoning_state
        )
        app[WORKER] = self.worker
        app[ENVIRONMENT], app[STARTED] = settings.env, int(clock.epoch())
        app[PASSES_KEYS] = passes_keys_on(settings)
        tables = settings.upstreams.values()
        app[FORWARDED_HEADERS] = frozenset(name for table in tables for name in table.forward_headers)
        app[STREAM_SLOTS] = StreamSlots(settings.sse_max_concurrency, self._owners)
        app[REQUEST_LIMITS] = RequestLimits(RateLimits(clock), RunningRequests())
        app[BODY_BUDGET] = ByteBudget(*body_budget(memory_bytes() // settings.workers))
        app[WRONG_KEYS], app[HOSTS] = WrongKeys(clock), allowed_hosts(settings)
        app[ROUTER] = Router([table.route(name) for name, table in settings.routes.items()], clock)
        app[ORIGINS] = frozenset(origin.lower() for origin in split_list(settings.allowed_origins))
        app[TRUSTED_PROXIES] = trusted_proxies(settings)
        if settings.test_endpoints:
            app[TEST_ENDPOINTS] = TestEndpoints(settings.stream_release_file)
        if self.page is not None:
            app[PAGE] = self.page
        if settings.log_content:
            app.middlewares.insert(0, log_contents)
        self.cassettes.add_to(app)
        if settings.metrics:
            self._add_metrics(app)
        add_endpoints(app, ENDPOINTS)
        return app

    def _named_for(self, model: str) -> NamedAgent:
        """Returns the agent for a model's name `NAME/MODEL`; the default agent if no agent is called NAME."""
        found = self.named.get(model.partition(MODEL_SEPARATOR)[0])
        return next(iter(self.named.values())) if found is None else found

    def _owners(self) -> int:
        return 1 if self.clients is None else self.clients.count

    def _add_metrics(self, app: web.Application) -> None:
        # Imported here, since most servers have no metrics.
        from codex_proxy.metrics import Metrics, ServerState, known_models

        store = self.settings.store_file if self.store_lifecycle and self.store_lifecycle.durable else None
        state = ServerState(self.runs, app[STREAM_SLOTS], self.settings.sse_max_concurrency, store)
        key = self.settings.metrics_key
        meter = Metrics(state, known_models(app[CATALOG]))
        app.cleanup_ctx.append(meter.loop_delay.watched)
        add_metrics(app, self._of_all_workers(app, meter), key.get_secret_value() if key else None)

    def _of_all_workers(self, app: web.Application, meter: Metrics) -> Meter:
        if not self.worker:
            return meter
        from codex_proxy.worker_metrics import WorkerMetrics

        metrics = WorkerMetrics(meter, self.worker, supervisor=os.getppid())
        app.cleanup_ctx.append(metrics.shared)
        return metrics

    def _responses(self, app: web.Application) -> ResponsesService:
        settings = self.settings
        return ResponsesService(
            runs=self.runs,
            clock=self.clock,
            ids=app[IDS],
            clients=app[CLIENTS],
            admission=app[ADMISSION],
            usage=app[USAGE],
            store=None if self.store_lifecycle is None else self.store_lifecycle.store,
            profile=settings.responses_profile,
            heartbeat=settings.heartbeat_interval,
            conversation_wait=settings.queue_wait,
            background=self.background,
            background_recovery=settings.background_recovery,
            write_check=None
            if self.store_lifecycle is None
            else WriteCheck(self.store_lifecycle.store, self.clock),
            pdfs=self.pdfs,
            webhooks=self.webhooks,
        )

    async def stop(self) -> None:
        """Refuses new turns, and waits for running turns for at most the drain time; turns that still run are then
        ended. Closes every connection and ends every process. Also called after a failed start.
        """
        async with contextlib.AsyncExitStack() as last:
            # In reverse, and each whatever becomes of those before it.
            for part in (
                self.spawner,
                self.store_lifecycle,
                self.webhooks,
                self.usage,
                self.images,
                self.server_tools,
                self.lease_holder,
                self.background,  # writes down how its turns have ended, and tells the webhooks
                self.runs,
            ):
                if part is not None:
                    last.push_async_callback(part.close)
            self.runs.begin_drain()
            if self.pdfs is not None:
                await self.pdfs.close()  # the end waits for turns, and for no request that is yet to be read
            grace = self.settings.drain_ms / 1000
            if self.runner is not None:
                await self.runner.stop_listening()
            until = self.clock.monotonic() + min(grace, LINGER_SECONDS)
            await self.runs.drain(grace)
            if self.runner is not None:
                if self.runner.has_connections:
                    await asyncio.sleep(max(0.0, until - self.clock.monotonic()))
                await self.runner.close_connections(FLUSH_SECONDS)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(FLUSH_SECONDS):
                        await self.runner.cleanup()

    def kill(self) -> None:
        """Kills every process that the agents have started, at once."""
        self.agent.kill()


def mcp_tools_of(settings: Settings, clock: SystemClock, checks: SchemaChecks) -> McpToolSource | None:
    """Returns the source of the tools of MCP servers, which this server runs; None if the settings name no MCP
    servers. Raises `StartError` if the file of MCP servers or the list of allowed URLs is invalid.
    """
    if settings.mcp_config is None and not settings.mcp_allowed_urls:
        return None
    # Imported here, since most servers have none.
    from codex_proxy.mcp_tools import McpConfigError, tool_source

    try:
        return tool_source(settings, os.environ, clock, RandomIds(), checks)
    except McpConfigError as error:
        raise StartError(str(error)) from error


def webhooks_of(
    settings: Settings, clock: SystemClock, lifecycle: StoreLifecycle | None
) -> WebhookSender | None:
    """Returns the sender of webhooks; None if there is no URL or no store (`lifecycle` is None). Raises
    `StartError` if there are URLs, and the secret is missing or invalid.
    """
    urls = split_list(settings.webhook_urls)
    if not urls:
        return None
    if settings.webhook_secret is None:
        raise StartError(
            "PROXY_WEBHOOK_URLS needs PROXY_WEBHOOK_SECRET: a webhook without a signature proves nothing."
        )
    try:
        secret = settings.webhook_secret.get_secret_value()
        check_secret(secret)
    except ValueError as error:
        raise StartError(f"PROXY_WEBHOOK_SECRET is invalid: {error}") from error
    if lifecycle is None:
        return None  # without a store there are no background responses
    return WebhookSender(urls, secret, clock=clock, outbox=lifecycle.store)


def usage_of(clock: Clock, lifecycle: StoreLifecycle | None) -> UsageRecorder:
    """Returns the recorder of usage. It writes into the store, or into RAM if there is none (`lifecycle` is None)."""
    if lifecycle is not None:
        return UsageRecorder(lifecycle.store, clock, durable=lifecycle.durable)
    return UsageRecorder(RamUsage(), clock, durable=False)


def passes_keys_on(settings: Settings) -> bool:
    """Returns whether the server passes the API keys of clients on to its upstream."""
    return settings.upstream_key is not None and settings.upstream_key.get_secret_value() == "client"


def deadlines_of(named: NamedAgent) -> Deadlines:
    """Returns the time limits of a turn of this agent. If the agent limits by itself how long a model may be
    silent, `first_event_timeout` and `idle_timeout` apply only if the operator has set them.
    """
    settings = named.settings

    def seconds(name: str) -> float:
        is_default = name not in settings.model_fields_set
        bounded = named.spec.has_own_timeouts and is_default
        return settings.total_timeout if bounded else getattr(settings, name)

    return Deadlines(
        first=seconds("first_event_timeout"), idle=seconds("idle_timeout"), total=settings.total_timeout
    )


def catalog_of(settings: Settings, agent: Agent, named: Mapping[str, NamedAgent]) -> ModelCatalog:
    """Returns the catalog of models that clients see, with aliases and defaults. `agent` lists the models; `named`
    are the server's agents by name.
    """
    first = next(iter(named.values()))
    aliases = list(settings.aliases)
    for name, each in named.items():
        if each.upstream is not None:
            aliases += [
                (alias, f"{name}{MODEL_SEPARATOR}{model}") for alias, model in each.upstream.aliases.items()
            ]
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
    """Returns the rights of a client without limits of its own: one without a key, or with a key for which none are
    set.
    """
    workdir = str(settings.workdir)
    common: dict[str, Any] = {
        "builtin_tools": settings.builtin_tools,
        "show_activity": settings.show_activity,
        "sandbox": settings.sandbox,
        "workdir": workdir,
        "max_items": settings.max_input_items,
        "web_search": settings.web_search,
    }
    return Client(
        name=NO_KEY_OWNER,
        chat=ChatSettings(
            **common,
            max_choices=settings.max_chat_choices,
            structured_output=settings.structured_output,
            logprobs=settings.logprobs,
        ),
        responses=ResponsesSettings(**common, logprobs=settings.logprobs),
        messages=MessagesSettings(**common),
        workspace=workspace_of(workdir, split_list(settings.workdir_roots, ":"), _protected(settings)),
        rpm=settings.rate_limit_rpm,
        concurrency=settings.key_concurrency,
        catalog=catalog,
    )


def _protected(settings: Settings) -> tuple[Protected, ...]:
    """Returns the paths that no writable folder of a turn may contain; none if the settings let no turn write."""
    return protected_paths(settings, os.environ) if settings.sandbox != "read-only" else ()


async def make_server(
    settings: Settings,
    environ: Mapping[str, str] | None = None,
    page: Callable[[Settings, Mapping[str, str]], Page] | None = None,
    worker: int = 0,
) -> Server:
    """Returns a server that has not started yet. `environ` is the environment, None for that of this process. `page`
    returns what the page for browsers shows (see `Server`), if the settings want a page. `worker` is its number, 0
    without others.

    Raises `StartError` for settings with which no server can start, and `NoAgentError` or `Fault` if
    the agent cannot be used.
    """
    environ = os.environ if environ is None else environ
    try:
        cassettes = cassettes_of(settings, environ)
    except CassetteError as error:
        raise StartError(str(error)) from error
    settings = cassettes.settings or settings
    check(settings, SystemClock(), environ)
    close_state_folder(settings.state_dir)
    agent = await cassettes.agent(lambda own: make_agent(AgentContext(own, environ, SystemClock())))
    shown = page(settings, environ) if page is not None and settings.ui else None
    return Server(settings, agent, cassettes, shown, worker)
