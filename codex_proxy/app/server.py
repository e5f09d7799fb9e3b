"""The server: starts, and stops with everything that it has started."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import structlog
from aiohttp import web

from codex_proxy import __version__
from codex_proxy.agents.agent import all_agents
from codex_proxy.agents.configured.agents import make_agent, plugin_parts
from codex_proxy.agents.registry import call_plugin_part
from codex_proxy.agents.spec import AgentContext
from codex_proxy.app.application import application_of, usage_of, webhooks_of
from codex_proxy.app.server_parts import ServerPart, ServerParts
from codex_proxy.app.start_checks import check, check_has_key, close_state_folder, listen_error
from codex_proxy.app.store_lifecycle import open_store_lifecycle, step_memory_of
from codex_proxy.app.system import SystemClock
from codex_proxy.http.app_keys import RESPONSES
from codex_proxy.http.middleware.access import MAX_LINE
from codex_proxy.http.page import PageContent
from codex_proxy.http.server import Runner
from codex_proxy.http.server_info import NODE_NAME
from codex_proxy.parts import declared
from codex_proxy.process.spawner import use_spawner
from codex_proxy.responses.recovery import LeaseHolder
from codex_proxy.settings.fields import Settings
from codex_proxy.store.leases import Node

log = structlog.get_logger(__name__)

SILENT_SECONDS = 75.0
"""Seconds that a connection may be idle: longer than reverse proxies keep theirs."""

LINGER_SECONDS = 0.5
"""Seconds for requests on their way when the server stops."""

FLUSH_SECONDS = 2.0
"""Seconds for finished answers to reach their clients when the server stops."""


class Server(ServerParts):
    """Call `start`, and at the end `stop`."""

    async def start(self) -> None:
        """Starts the server. Raises `UserError`, or the agent's `Fault`. What was started before an error goes on until
        `stop`.
        """
        self.spawner = use_spawner()
        self.store_lifecycle = await open_store_lifecycle(self.settings, self.clock)
        for part in self.parts:
            await part.start(self)
        self.runs.services.memory = step_memory_of(self.settings, self.clock, self.store_lifecycle)
        await self.agent.start()
        for agent in all_agents(self.agent):
            if agent.warning:
                log.warning("agent_limited", agent=agent.name, reason=agent.warning)
        self.webhooks = webhooks_of(self.settings, self.clock, self.store_lifecycle)
        self.server_tools = None
        for part in self.parts:
            self.server_tools = self.server_tools or part.tools(self)
        self.usage = usage_of(self.clock, self.store_lifecycle)
        self.app = application_of(self, self.usage)
        if self.store_lifecycle is not None:
            self.lease_holder = LeaseHolder(self.app[RESPONSES], self.store_lifecycle.store)
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
        check_has_key(self.settings, self.keyring.current())  # with those in the store
        shares_port = self.worker > 0
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

    async def stop(self) -> None:
        """Refuses new turns, waits for running ones for the drain time, then ends everything, also after a failed
        start.
        """
        async with contextlib.AsyncExitStack() as last:
            # In reverse, and each whatever becomes of those before it.
            for part in (
                self.spawner,
                *self.parts,
                self.store_lifecycle,
                self.webhooks,
                self.usage,
                self.images,
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
        """Kills the agents' processes at once."""
        self.agent.kill()


async def make_server(
    settings: Settings,
    environ: Mapping[str, str] | None = None,
    page: Callable[[Settings, Mapping[str, str]], PageContent] | None = None,
    worker: int = 0,
    start_digest: str = "",
) -> Server:
    """Returns a server that has not started yet. `environ`: None for this process's environment. `page` makes what
    the page shows. `start_digest`: that of the key of this start, if there is one. Raises `UserError` or `Fault`, and
    has then closed what it had made.
    """
    environ = os.environ if environ is None else environ
    async with contextlib.AsyncExitStack() as made:
        parts = []
        for part in _make_parts(settings, environ):
            made.push_async_callback(_close_part, part)
            parts.append(part)
        for part in parts:
            settings = part.settings(settings)
        check(settings, SystemClock(), environ, start_digest)
        close_state_folder(settings.state_dir)
        context = AgentContext(settings, environ, SystemClock())
        agent = None
        for part in parts:
            agent = agent or await part.agent(context)
        agent = agent or await make_agent(context)
        made.push_async_callback(agent.close)
        shown = page(settings, environ) if page is not None and settings.ui else None
        server = Server(settings, agent, shown, worker, parts, start_digest)
        made.pop_all()
        return server


async def _close_part(part: ServerPart) -> None:
    """Closes a part, with an own fault of it in the log: what is told is why the server could not be made."""
    try:
        await part.close()
    except Exception:
        log.exception("part_not_closed", part=type(part).__name__)


def _make_parts(settings: Settings, environ: Mapping[str, str]) -> Iterator[ServerPart]:
    """Makes what the parts of the program add to a server, one after the other."""
    makers = [
        *(partial(make, settings, environ) for make in declared("server")),
        *(partial(call_plugin_part, part, "server", settings, environ) for part in plugin_parts(settings)),
    ]
    for make in makers:
        part = make()
        if part is not None:
            yield part
