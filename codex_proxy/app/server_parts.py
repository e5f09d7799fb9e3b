"""The parts of a server, which its HTTP application is built from, and which it starts and ends."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

import msgspec
from aiohttp import web

from codex_proxy.admission.admit import ToolSource
from codex_proxy.admission.images import ImageFetcher
from codex_proxy.agents.agent import Agent
from codex_proxy.agents.configured.agents import ConfiguredAgent, configured_agents, settings_without_effect
from codex_proxy.agents.spec import AgentContext
from codex_proxy.app.start_checks import keyring_of
from codex_proxy.app.store_lifecycle import StoreLifecycle
from codex_proxy.app.system import SystemClock
from codex_proxy.core.turn import MODEL_SEPARATOR
from codex_proxy.http.page import PageContent
from codex_proxy.http.server import Runner
from codex_proxy.http.webhook_sender import WebhookSender
from codex_proxy.process.spawner import Spawner
from codex_proxy.responses.recovery import LeaseHolder
from codex_proxy.responses.service import BackgroundResponses
from codex_proxy.runs.idle_sessions import IdleLimits
from codex_proxy.runs.observers import TurnRecords
from codex_proxy.runs.scheduler import RunLimits, RunScheduler
from codex_proxy.runs.time_and_tokens import Deadlines
from codex_proxy.settings.fields import Settings, split_list
from codex_proxy.store.usage import UsageRecorder
from codex_proxy.workers.pdf_reader import PdfReader, can_read_pdfs


class ExampleRequest(msgspec.Struct, frozen=True):
    path: str
    body: str
    headers: Mapping[str, str] = {}


class ServerPart:
    """What a part of the program (`codex_proxy.parts`) adds to one server. It overrides what it needs; the methods are
    called in this order.
    """

    def settings(self, settings: Settings) -> Settings:
        """Returns the server's settings, changed or not."""
        return settings

    async def agent(self, context: AgentContext) -> Agent | None:
        """Returns the server's agent, in place of those that are configured. Raises what `make_agent` raises."""
        return None

    async def start(self, server: ServerParts) -> None:
        """Called when the store is open and the agent is about to start. Raises `UserError`."""

    def tools(self, server: ServerParts) -> ToolSource | None:
        """Returns tools that the server runs; the first source that a part returns is used. Called when the agent has
        started. Raises `UserError`.
        """

    def add_to(self, app: web.Application) -> None:
        """Adds middlewares, keys and what runs beside it (`cleanup_ctx`) to the complete application."""

    def serving(self, stop_wanted: asyncio.Event) -> None:
        """Called when the server serves and waits for its end: the event stops it."""

    async def before_banner(self) -> None:
        """Returns when the part knows its lines of the banner. Requests are answered meanwhile."""

    def banner(self) -> list[str]:
        """Returns the part's lines of the banner."""
        return []

    def example(self) -> ExampleRequest | str:
        """Returns a request for the banner, if the server does not answer every one, or a sentence in its place;
        empty if it does.
        """
        return ""

    async def close(self) -> None:
        """Called when the store is closed and no turn runs any more; also if the start failed, or never began."""


class ServerParts:
    """What a server consists of: settings, agent, store, and what else is made from the settings. An attribute is None
    before the start, and if no setting wants it.
    """

    def __init__(
        self,
        settings: Settings,
        agent: Agent,
        page: PageContent | None = None,
        worker: int = 0,
        parts: Sequence[ServerPart] = (),
        start_digest: str = "",
    ) -> None:
        """`page`: what the page for browsers shows beside its state. `worker`: this process's number among those
        that share the port; 0 without others. `parts`: what the parts of the program add to this server.
        `start_digest`: that of the key of this start, if there is one.
        """
        self.agent = agent
        self.worker = worker
        self.parts = [*parts]
        self.page = page
        configured = configured_agents(settings)
        self.configured: Mapping[str, ConfiguredAgent] = {each.name: each for each in configured}
        """The agents by name, the default one first. The name of a single agent is empty."""
        if all(each.spec.plain_only for each in self.configured.values()):
            settings = settings.model_copy(update={"builtin_tools": "never"})
        self.settings = settings
        self.clock = SystemClock()
        deadlines = {name: deadlines_of(each) for name, each in self.configured.items()}
        first, *others = deadlines.values()
        self.runs = RunScheduler(
            agent,
            RunLimits(
                max_running=settings.max_running_turns,
                max_wait_seconds=settings.queue_wait,
                max_chars=settings.max_output_size,
            ),
            (lambda turn: deadlines[self._configured_for(turn.model).name]) if others else first,
            idle_limits=IdleLimits(settings.kept_threads, settings.kept_thread_seconds),
            owners=self.owners,
            records=None if page is None else TurnRecords(self.clock, worker),
        )
        allowed = split_list(settings.image_fetch)
        self.images = ImageFetcher(allowed) if allowed else None
        self.pdfs = PdfReader(self.owners) if can_read_pdfs() else None
        self.keyring = keyring_of(settings, self.clock, start_digest)
        self.usage: UsageRecorder | None = None
        self.app: web.Application | None = None
        self.background = BackgroundResponses(settings.max_running_turns, self.owners)
        self.webhooks: WebhookSender | None = None
        self.server_tools: ToolSource | None = None
        self.lease_holder: LeaseHolder | None = None
        self.store_lifecycle: StoreLifecycle | None = None
        self.spawner: Spawner | None = None
        self.runner: Runner | None = None
        self.host = settings.host
        self.port = 0

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


def deadlines_of(named: ConfiguredAgent) -> Deadlines:
    """Returns the time limits of an agent's turn (see `AgentSpec.has_own_timeouts`)."""
    settings = named.settings

    def seconds(name: str) -> float:
        is_default = name not in settings.model_fields_set
        bounded = named.spec.has_own_timeouts and is_default
        return settings.total_timeout if bounded else getattr(settings, name)

    return Deadlines(
        first=seconds("first_event_timeout"), idle=seconds("idle_timeout"), total=settings.total_timeout
    )
