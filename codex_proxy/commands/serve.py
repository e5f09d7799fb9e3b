"""`codex-proxy serve`: runs a server until it is stopped, prints a banner, and gives the page for browsers what only
commands know.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import math
import os
import resource
import shlex
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog

from codex_proxy import __version__
from codex_proxy.agents.agent import Agent, all_agents
from codex_proxy.agents.configured.agents import targets_without_agent
from codex_proxy.agents.spec import AgentSpec
from codex_proxy.app.keyring import new_secret
from codex_proxy.app.server import Server, make_server
from codex_proxy.app.server_parts import ExampleRequest
from codex_proxy.core.checks import Check
from codex_proxy.core.faults import Fault, UserError
from codex_proxy.core.keys import digest_of
from codex_proxy.http.page import PageContent
from codex_proxy.parts import declared
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import unused_settings, variables_of
from codex_proxy.surfaces.chat.wire import ChatRequest
from codex_proxy.surfaces.messages.wire import MessagesRequest
from codex_proxy.surfaces.responses.wire import ResponseRequest

FRESH_SECONDS: Final = 60.0
"""Seconds until the checks are run again; one of them starts a process."""


def page_of(settings: Settings, environ: Mapping[str, str]) -> PageContent:
    return PageContent(findings=Findings(settings, environ).newest, clients=partial(_guides, settings))


class Findings:
    """The checks of `doctor` but for the agents and the port, for a running server."""

    def __init__(self, settings: Settings, environ: Mapping[str, str]) -> None:
        self._settings = settings
        self._environ = environ
        self._found: Sequence[Check] = ()
        self._when = -math.inf
        self._lock = asyncio.Lock()

    async def newest(self) -> Sequence[Check]:
        """Returns the checks, at most `FRESH_SECONDS` old."""
        # Imported here: who never opens the page does not need the formats of MCP servers.
        from codex_proxy.commands.checks import machine_checks

        async with self._lock:
            now = asyncio.get_running_loop().time()
            if now - self._when >= FRESH_SECONDS:
                self._found, self._when = await machine_checks(self._settings, self._environ, runs=True), now
            return self._found


def _guides(settings: Settings, base_url: str) -> Sequence[dict[str, Any]]:
    return [guide for guides in declared("client_guides") for guide in guides(settings, base_url)]


COLLECT_AFTER = 20_000
"""The garbage collector's first threshold; Python's default is 700."""

REQUEST_MODELS = (ChatRequest, ResponseRequest, MessagesRequest)
EXAMPLE = ExampleRequest(
    "/v1/chat/completions",
    """{"model": "codex-5", "stream": true, "messages": [{"role": "user", "content": "Say hello."}]}""",
)
"""The request that the banner shows."""
BUILD_AFTER = 0.5
"""Seconds from the start until the models of request bodies are built."""

log = structlog.get_logger(__name__)


async def serve_to_the_end(settings: Any, say: Callable[..., None], *, worker: int = 0) -> int:
    """Runs the server; returns 0 after a signal, or 1 if it could not start. `say` prints (`err=True`: to stderr).
    `worker`: this process's number among several, 0 for the only one.
    """
    server = None
    for name, hint in settings.unknown_variables.items():
        log.warning("unknown_variable", name=name, text=f"It sets nothing: {hint}")
    raise_open_files()
    try:
        start_key = start_key_for(settings, worker)
        digest = digest_of(start_key) if start_key else ""
        server = await make_server(settings, page=page_of, worker=worker, start_digest=digest)
        await server.start()
    except (UserError, Fault) as error:
        if server is not None:
            await server.stop()
        if settings.log_format == "json":
            log.error("not_started", text=str(error))
        else:
            say(f"codex-proxy: {error}", err=True)
        return 1
    tune_gc()
    announcing = asyncio.create_task(_announce(server, say, start_key))
    building = asyncio.create_task(_build_request_models())
    await wait_for_signal(server)
    announcing.cancel()
    building.cancel()
    stopping = "stopping (interrupt again to stop at once)"
    if worker or settings.log_format == "json":
        log.info("stopping", text=stopping)
    else:
        say(f"codex-proxy: {stopping}", err=True)
    await server.stop()
    return 0


def start_key_for(settings: Settings, worker: int) -> str:
    """Returns a new key of this start, which is kept nowhere; empty where it is not wanted. Without keys, who reads the
    terminal may approve with it what an agent asks. What is no terminal may be a file or a log, which others read; and
    other processes of the server, and other machines, would not know the key.
    """
    alone = not (worker or settings.in_database or settings.wants_key)
    return new_secret() if alone and sys.stdout.isatty() else ""


async def _announce(server: Server, say: Callable[..., None], start_key: str) -> None:
    """Prints the banner, when the parts know what they say there. Requests are answered meanwhile."""
    await asyncio.gather(*(part.before_banner() for part in server.parts))
    say(banner(server, start_key))


async def wait_for_signal(server: Server) -> None:
    """Returns at the first SIGINT, SIGTERM or SIGHUP, or when a part stops the server. A second SIGINT or SIGTERM
    kills the agents' processes and this one.
    """
    loop = asyncio.get_running_loop()
    stop_wanted = asyncio.Event()

    def on_signal(number: int) -> None:
        if stop_wanted.is_set():
            server.kill()
            os._exit(128 + number)
        stop_wanted.set()

    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, on_signal, number)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as for nohup
        # Of a closed terminal it comes twice, from the system and from the shell.
        loop.add_signal_handler(signal.SIGHUP, stop_wanted.set)

    for part in server.parts:
        part.serving(stop_wanted)
    await stop_wanted.wait()


async def _build_request_models() -> None:
    """Builds the validators of requests, which would delay the start by some 40 ms each."""
    await asyncio.sleep(BUILD_AFTER)
    for model in REQUEST_MODELS:
        model.model_rebuild()
        await asyncio.sleep(0)


def raise_open_files() -> None:
    """Raises the limit of open files as far as the system permits: each client takes one, and many systems begin with
    1024.
    """
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError):  # macOS permits less than it says
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def tune_gc() -> None:
    """Makes the garbage collector run less often, and without existing objects: reference counting frees a turn's
    objects, and with thousands of streams a run takes milliseconds.
    """
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
    gc.enable()


def _agent_lines(agent: Agent, spec: AgentSpec, settings: Settings, *, keyed: bool) -> list[str]:
    lines = [f"  agent      {agent.name} {agent.version}".rstrip()]
    if spec.plain_only:
        unlisted = "any name" if agent.trouble() is None else "not known yet"
        lines.append(f"  models     {len(agent.models()) or unlisted} (plain models: nothing runs here)")
    else:
        sandbox = f"sandbox: {settings.sandbox}"
        if not spec.confined and settings.sandbox == "danger-full-access":
            sandbox = "no sandbox: its commands run as you"
        elif not spec.confined and "sandbox" not in agent.capabilities:
            sandbox = f"no sandbox but the agent's own rules ({settings.sandbox}): its commands run as you"
        lines.append(f"  workspace  {settings.workdir} ({sandbox})")
        if settings.approvals == "ask":
            who = "keys with may_approve" if keyed else "who has the key of this start"
            lines.append(f"  approvals  sessions ask their client ({who}), other APIs decline")
    lines += [
        f"  off        {feature}: this release has no {', no '.join(names)}"
        for feature, names in agent.missing_features.items()
    ]
    if agent.warning:
        lines.append(f"  WARNING    {agent.warning}")
    trouble = agent.trouble()
    if trouble is not None:
        lines.append(f"  TROUBLE    {trouble.message}")
    return lines


def _page_lines(server: Any, base: str, start_key: str) -> list[str]:
    """Returns the lines with the page and the key of this start: in a link, whose end browsers send to no server."""
    page, until = base.removesuffix("v1"), "until this server ends or the first key is made"
    if not start_key:
        return [] if server.page is None else [f"  page       {page}"]
    if server.page is None:
        return [f"  key        {start_key} (may approve what agents ask, {until})"]
    return [
        f"  page       {page}#key={start_key}",
        f"             (who has this link may approve what agents ask, {until})",
    ]


def banner(server: Any, start_key: str = "") -> str:
    """Returns the banner. `server` is a started `app.Server`. `start_key`: the key of this start, if there is one."""
    host = f"[{server.host}]" if ":" in server.host else server.host
    base = f"http://{host}:{server.port}/v1"
    settings = server.settings
    keyed = server.keyring.current().required
    key = " -H 'Authorization: Bearer KEY'" if keyed else ""
    lines = [f"codex-proxy {__version__} serves on {base}"]
    lines += _page_lines(server, base, start_key)
    if server.runner.ollama:
        lines.append(f"  Ollama     {server.runner.ollama}")
    for agent in all_agents(server.agent):
        named = server.configured.get(agent.name) or next(iter(server.configured.values()))
        lines += _agent_lines(agent, named.spec, settings, keyed=keyed)
    unused = server.settings_without_effect()
    if unused:
        lines.append(
            f"  NO EFFECT  {', '.join(variables_of(name)[0] for name in unused)}: not with this agent"
        )
    lines += [f"  NO EFFECT  {each}" for each in unused_settings(settings)]
    lines += [f"  NO AGENT   {each}" for each in targets_without_agent(settings)]
    for part in server.parts:
        lines += part.banner()
    if settings.log_content:
        lines += [
            "",
            "  *** PROMPTS AND ANSWERS ARE LOGGED (--log-content): whoever reads the log reads them.   ***",
            "  *** Meant for finding a fault. Start without it, and remove the log, when that is done. ***",
        ]
    fakes = [name for name, named in server.configured.items() if named.spec.is_fake]
    if fakes and len(server.configured) > 1:
        lines += [
            "",
            f"  *** The embedded FAKE agent serves as {', '.join(fakes)}: its answers are made up. ***",
        ]
    elif fakes:
        lines += [
            "",
            "  *** This is the embedded FAKE agent: its answers are made up. ***",
            "  *** For a real one install Codex, sign in, and start again.   ***",
        ]
    return "\n".join([*lines, "", *_try_it(server, base, key), ""])


def _try_it(server: Any, base: str, key: str) -> list[str]:
    """Returns the lines with a request that this server answers."""
    request = next(filter(None, (part.example() for part in server.parts)), EXAMPLE)
    if isinstance(request, str):
        return [request]
    headers = "".join(f" -H {shlex.quote(f'{name}: {value}')}" for name, value in request.headers.items())
    url = shlex.quote(base.removesuffix("/v1") + request.path)
    return [
        "Try it:",
        f"  curl -N {url}{key}{headers} -H 'Content-Type: application/json' \\",
        f"    -d {shlex.quote(request.body)}",
    ]
