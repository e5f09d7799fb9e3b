"""The proxy under test, in this process or as a process of its own, and the official SDK as its client.

Its agent is the real binary with a home of the tests, its provider the scripted model server.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
from openai import AsyncOpenAI

from codex_proxy.agents.codex_app_server.agent import AppServerAgent, AppServerProcess
from codex_proxy.agents.process_pool.pool import ProcessPool
from codex_proxy.app.server import Server, make_server
from codex_proxy.core.turn import Mode
from codex_proxy.process.warden import SPAWNER_NAME
from codex_proxy.settings.fields import Settings
from tests.real.codex_home import MODEL, CodexHome
from tests.real.release import codex_path
from tests.waiting import PATIENCE, eventually

ADDRESS = re.compile(r"serves on (http://\S+)/v1")


def client_of(base_url: str) -> AsyncOpenAI:
    """The official SDK. It retries nothing: a test wants the first answer."""
    return AsyncOpenAI(base_url=f"{base_url}/v1", api_key="no key", max_retries=0, timeout=PATIENCE)


def settings_of(home: CodexHome, **more: Any) -> Settings:
    """Settings for a proxy whose every file is beside this home."""
    given: dict[str, Any] = {
        "agent": "codex-app-server",
        "codex_bin": str(codex_path()),
        "codex_home": home.path,
        "workdir": home.workdir,
        "state_dir": home.path.parent / "state",
        "port": 0,
        "drain_ms": 0,
        "queue_wait": PATIENCE,
    }
    return Settings(**(given | more))


@asynccontextmanager
async def serve(
    settings: Settings, environment: Mapping[str, str], start_digest: str = ""
) -> AsyncIterator[tuple[AsyncOpenAI, Server]]:
    """A server with these settings in this process, and the official SDK as its client."""
    server = await make_server(settings, environment, start_digest=start_digest)
    try:
        await server.start()
        async with client_of(f"http://127.0.0.1:{server.port}") as client:
            yield client, server
    finally:
        await server.stop()


@dataclass(frozen=True)
class Proxy:
    """A server in this process, and a client of it."""

    server: Server
    client: AsyncOpenAI
    url: str

    @property
    def pool(self) -> ProcessPool[Mode, AppServerProcess]:
        """The processes of the agent, by the mode of their turns."""
        agent = self.server.agent
        assert isinstance(agent, AppServerAgent)
        return agent.pool

    @property
    def processes(self) -> list[AppServerProcess]:
        """Every process that is ready, of both kinds."""
        return self.pool.processes

    @property
    def idle(self) -> bool:
        """No turn runs, none waits, and no process has one."""
        scheduler, processes = self.server.runs, self.server.agent.processes()
        return scheduler.running == 0 and scheduler.queued == 0 and processes.busy == 0


_CHECKS: dict[str, bytes] = {}
"""What the binary was found to speak, by the name of the file in a state folder: the same for every proxy."""


def _bring_checks(state: Path) -> None:
    folder = state / "codex-checks"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    for name, content in _CHECKS.items():
        (folder / name).write_bytes(content)


def _keep_checks(state: Path) -> None:
    _CHECKS.update({file.name: file.read_bytes() for file in (state / "codex-checks").iterdir()})


@asynccontextmanager
async def proxy(
    home: CodexHome,
    environment: Mapping[str, str] | None = None,
    start_digest: str = "",
    **settings: Any,
) -> AsyncIterator[Proxy]:
    """A running proxy in this process; `environment` is added to the home's own."""
    given = settings_of(home, **settings)
    _bring_checks(given.state_dir)
    server = await make_server(given, home.environment(environment), start_digest=start_digest)
    _keep_checks(given.state_dir)
    try:
        await server.start()
        url = f"http://127.0.0.1:{server.port}"
        async with client_of(url) as client:
            yield Proxy(server, client, url)
    finally:
        await server.stop()


@dataclass
class ProxyProcess:
    """A proxy that is a process of its own, so that it can be killed."""

    process: asyncio.subprocess.Process
    url: str
    client: AsyncOpenAI
    said: list[str] = field(default_factory=list)

    @property
    def pid(self) -> int:
        return self.process.pid

    def family(self) -> list[int]:
        """Every descendant there is now, wherever it hangs in the tree, but for the spawner, which serves all."""
        found = []
        for each in psutil.Process(self.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if each.name().encode() != SPAWNER_NAME:
                    found.append(each.pid)
        return found

    async def exit(self, within: float = PATIENCE) -> int:
        """Its exit status, as soon as there is one."""
        await eventually(lambda: self.process.returncode is not None, within=within)
        assert self.process.returncode is not None
        return self.process.returncode


def has_ended(process: psutil.Process) -> bool:
    """Whether a process has ended, also one that nobody waits for now, such as a warden of a server of other tests."""
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.Error:
        return True


@asynccontextmanager
async def proxy_process(
    home: CodexHome, *arguments: str, environment: Mapping[str, str] | None = None
) -> AsyncIterator[ProxyProcess]:
    """A proxy of the real Codex, started by its command line. It is killed at the end, if it is still there."""
    env = home.environment(
        {
            "PROXY_STATE_DIR": str(home.path.parent / "state"),
            "PROXY_QUEUE_WAIT": str(PATIENCE),
            "CODEX_BIN": str(codex_path()),
            "XDG_CONFIG_HOME": str(home.user),
            **(environment or {}),
        }
    )
    async with server_process(env, "--workdir", str(home.workdir), *arguments) as running:
        yield running


@asynccontextmanager
async def server_process(environment: Mapping[str, str], *arguments: str) -> AsyncIterator[ProxyProcess]:
    """A server with this whole environment. It is killed at the end, if it is still there."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "codex_proxy", "serve", "--port", "0", *arguments),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env=dict(environment),
        cwd=Path(__file__).parents[2],
        start_new_session=True,
    )
    said: list[str] = []
    reading: asyncio.Task[None] | None = None
    try:
        async with asyncio.timeout(PATIENCE):
            url = await _address(process, said)
        reading = asyncio.create_task(_read(process, said))
        async with client_of(url) as client:
            yield ProxyProcess(process, url, client, said)
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):  # it is collected already, and the loop has yet to hear of it
                os.kill(process.pid, signal.SIGKILL)
        if reading is not None:
            await reading
        await process.wait()


async def _address(process: asyncio.subprocess.Process, said: list[str]) -> str:
    """The address that the banner tells."""
    assert process.stdout is not None
    async for line in process.stdout:
        said.append(line.decode())
        found = ADDRESS.search(said[-1])
        if found:
            return found[1]
    raise AssertionError("the proxy ended before it served:\n" + "".join(said))


async def _read(process: asyncio.subprocess.Process, said: list[str]) -> None:
    assert process.stdout is not None
    async for line in process.stdout:
        said.append(line.decode())  # noqa: PERF401 - each line as it comes


def chat_request(prompt: str, **more: Any) -> dict[str, Any]:
    """The arguments of a request that says this; a plain-model turn where `system` is given."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": prompt}]
    system = more.pop("system", None)
    if system is not None:
        messages.insert(0, {"role": "system", "content": system})
    return {"model": MODEL, "messages": messages, **more}
