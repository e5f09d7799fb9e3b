"""The server: starts, and stops with everything that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import structlog
from aiohttp import web

from codex_proxy import __version__
from codex_proxy.admission.images import ImageFetcher
from codex_proxy.agents.agent import Agent, all_agents
from codex_proxy.agents.configured.agents import (
    ConfiguredAgent,
    configured_agents,
    make_agent,
    settings_without_effect,
)
from codex_proxy.agents.spec import AgentContext
from codex_proxy.app.application import application_of, deadlines_of, mcp_tools_of, usage_of, webhooks_of
from codex_proxy.app.start_checks import check, check_has_key, close_state_folder, keyring_of, listen_error
from codex_proxy.app.store_lifecycle import StoreLifecycle, open_store_lifecycle, step_memory_of
from codex_proxy.app.system import RandomIds, SystemClock
from codex_proxy.app.team_sync import TeamSync
from codex_proxy.core.faults import UserError
from codex_proxy.core.turn import MODEL_SEPARATOR
from codex_proxy.http.app_keys import CLIENTS, RESPONSES
from codex_proxy.http.cluster import NODE_NAME
from codex_proxy.http.middleware.access import MAX_LINE
from codex_proxy.http.middleware.rate_limit import REQUEST_LIMITS
from codex_proxy.http.page import PageContent
from codex_proxy.http.server import Runner
from codex_proxy.http.webhook_sender import WebhookSender
from codex_proxy.process.spawner import Spawner, use_spawner
from codex_proxy.responses.live import BackgroundResponses
from codex_proxy.responses.recovery import LeaseHolder
from codex_proxy.runs.idle_sessions import IdleLimits
from codex_proxy.runs.scheduler import RunLimits, RunScheduler
from codex_proxy.runs.turn_records import TurnRecords
from codex_proxy.settings.fields import Settings, split_list
from codex_proxy.store.leases import Node
from codex_proxy.store.team import Team
from codex_proxy.store.usage_recorder import UsageRecorder
from codex_proxy.store.values import StoreUnavailable
from codex_proxy.traces.setup import traces_note, traces_of
from codex_proxy.workers.pdf_reader import PdfReader, can_read_pdfs

if TYPE_CHECKING:
    from codex_proxy.app.mcp_tools import McpToolSource
    from codex_proxy.cassettes.replay import RecordedTools
    from codex_proxy.cassettes.serving import Cassettes
    from codex_proxy.traces.watcher import Traces

log = structlog.get_logger(__name__)

SILENT_SECONDS = 75.0
"""Seconds that a connection may be idle: longer than reverse proxies keep theirs."""

LINGER_SECONDS = 0.5
"""Seconds for requests on their way when the server stops."""

FLUSH_SECONDS = 2.0
"""Seconds for finished answers to reach their clients when the server stops."""


class Server:
    """Call `start`, and at the end `stop`. Parts are None before the start, and if no setting wants them."""

    def __init__(
        self,
        settings: Settings,
        agent: Agent,
        cassettes: Cassettes | None = None,
        page: PageContent | None = None,
        worker: int = 0,
    ) -> None:
        """`page`: what the page for browsers shows beside its state. `worker`: this process's number among those
        that share the port; 0 without others.
        """
        self.agent = agent
        self.worker = worker
        self.cassettes = cassettes
        self.page = page
        configured = configured_agents(settings)
        self.configured: Mapping[str, ConfiguredAgent] = {each.name: each for each in configured}
        """The agents by name, the default one first. The name of a single agent is empty."""
        if all(each.spec.plain_only for each in self.configured.values()):
            settings = settings.model_copy(update={"builtin_tools": "never"})
        self.settings = settings
        self.clock = SystemClock()
        deadlines = {name: deadlines_of(each) for name, each in self.configured.items()}
        self.runs = RunScheduler(
            agent,
            RunLimits(
                max_running=settings.max_running_turns,
                max_wait_seconds=settings.queue_wait,
                max_chars=settings.max_output_size,
            ),
            lambda turn: deadlines[self._configured_for(turn.model).name],
            idle_limits=IdleLimits(settings.kept_threads, settings.kept_thread_seconds),
            owners=self.owners,
            records=None if page is None else TurnRecords(self.clock, worker),
        )
        allowed = split_list(settings.image_fetch)
        self.images = ImageFetcher(allowed) if allowed else None
        self.pdfs = PdfReader(self.owners) if can_read_pdfs() else None
        self.keyring = keyring_of(settings, self.clock)
        self.usage: UsageRecorder | None = None
        self.app: web.Application | None = None
        self.background = BackgroundResponses(settings.max_running_turns, self.owners)
        self.webhooks: WebhookSender | None = None
        self.server_tools: McpToolSource | RecordedTools | None = None
        self.mcp: McpToolSource | None = None
        """The same, unless they are recorded."""
        self.lease_holder: LeaseHolder | None = None
        self.team_sync: TeamSync | None = None
        self.store_lifecycle: StoreLifecycle | None = None
        self.spawner: Spawner | None = None
        self.traces: Traces | None = None
        self.traces_note = traces_note(os.environ)
        self.runner: Runner | None = None
        self.host = settings.host
        self.port = 0

    async def start(self) -> None:
        """Starts the server. Raises `UserError`, or the agent's `Fault`. What was started before an error goes on until
        `stop`.
        """
        self.spawner = use_spawner()
        self.store_lifecycle = await open_store_lifecycle(self.settings, self.clock)
        self.traces = self.traces or traces_of(os.environ)
        if self.traces is not None:
            self.runs.watchers.append(self.traces)
        self.runs.services.memory = step_memory_of(self.settings, self.clock, self.store_lifecycle)
        await self.agent.start()
        for agent in all_agents(self.agent):
            if agent.warning:
                log.warning("agent_limited", agent=agent.name, reason=agent.warning)
        self.webhooks = webhooks_of(self.settings, self.clock, self.store_lifecycle)
        self.server_tools = None if self.cassettes is None else self.cassettes.tools(RandomIds())
        if self.server_tools is None:
            self.mcp = self.server_tools = mcp_tools_of(self.settings, self.clock, self.runs.services.checks)
            if self.mcp is not None and "mcp_config" not in self.settings_without_effect():
                self.mcp.start()
        self.usage = usage_of(self.clock, self.store_lifecycle)
        self.app = application_of(self, self.usage)
        if self.store_lifecycle is not None:
            self.lease_holder = LeaseHolder(self.app[RESPONSES], self.store_lifecycle.store)
            await self._join_team(self.store_lifecycle.store.team, self.app)
        self.runner = Runner(
            self.app,
            access_log=None,
            handler_cancellation=True,  # or nobody tells the agent that its client has left
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
            raise listen_error(self.settings, error) from error
        self.host, self.port = self.runner.addresses[0][:2]
        await self.runner.listen_as_ollama(wanted=self.settings.ollama, reuse_port=shares_port)
        url = self.settings.model_copy(update={"port": self.port}).server_url
        if self.store_lifecycle is not None:
            self.store_lifecycle.write_address(url)
        if self.webhooks is not None:
            self.webhooks.wake()
        if self.lease_holder is not None:
            await self.lease_holder.start(
                Node(name=self.app[NODE_NAME], url=url, version=__version__, started=self.clock.epoch())
            )

    async def _join_team(self, team: Team | None, app: web.Application) -> None:
        if team is None:
            return
        self.team_sync = TeamSync(team, self.keyring, app[CLIENTS], app[REQUEST_LIMITS])
        try:
            await self.team_sync.start()
        except StoreUnavailable as error:
            raise UserError(str(error)) from error
        check_has_key(self.settings, self.keyring.current())

    def _configured_for(self, model: str) -> ConfiguredAgent:
        found = self.configured.get(model.partition(MODEL_SEPARATOR)[0])
        return next(iter(self.configured.values())) if found is None else found

    def settings_without_effect(self) -> tuple[str, ...]:
        """Returns the settings that no agent uses."""
        first = next(iter(self.configured.values()))
        return settings_without_effect(first.settings, self.agent.capabilities)

    def owners(self) -> int:
        """Returns how many clients share the slots."""
        return max(1, len(self.keyring.current().keys))

    async def stop(self) -> None:
        """Refuses new turns, waits for running ones for the drain time, then ends everything, also after a failed
        start.
        """
        async with contextlib.AsyncExitStack() as last:
            # In reverse, and each whatever becomes of those before it.
            for part in (
                self.cassettes,
                self.spawner,
                self.traces,
                self.store_lifecycle,
                self.webhooks,
                self.usage,
                self.images,
                self.server_tools,
                self.lease_holder,
                self.team_sync,
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
        """Kills the agents' processes at once."""
        self.agent.kill()


async def make_server(
    settings: Settings,
    environ: Mapping[str, str] | None = None,
    page: Callable[[Settings, Mapping[str, str]], PageContent] | None = None,
    worker: int = 0,
) -> Server:
    """Returns a server that has not started yet. `environ`: None for this process's environment. `page` makes what
    the page shows. Raises `UserError` or `Fault`.
    """
    environ = os.environ if environ is None else environ
    cassettes = _cassettes_of(settings, environ)
    settings = settings if cassettes is None else cassettes.settings
    check(settings, SystemClock(), environ)
    close_state_folder(settings.state_dir)
    context = AgentContext(settings, environ, SystemClock())
    agent = await (make_agent(context) if cassettes is None else cassettes.agent(context))
    shown = page(settings, environ) if page is not None and settings.ui else None
    return Server(settings, agent, cassettes, shown, worker)


def _cassettes_of(settings: Settings, environ: Mapping[str, str]) -> Cassettes | None:
    if settings.cassettes.record is None and settings.cassettes.replay is None:
        return None
    from codex_proxy.cassettes.serving import cassettes_of

    return cassettes_of(settings, environ)
