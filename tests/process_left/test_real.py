"""The real agent runs a shell command, and somebody dies: the command, and all it has started, dies too."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
import psutil
import pytest

from tests.process.children import have_ended
from tests.process_left.talk import Talk, assert_serves, talk
from tests.real.codex_home import CodexHome
from tests.real.model_server import ModelServer
from tests.real.proxy import ProxyProcess, chat_request, proxy_process
from tests.waiting import eventually

pytestmark = [pytest.mark.real, pytest.mark.exhaustive]

PLAIN = "sleep 1000.25"
ORPHAN = "(setsid sleep 1000.5 &) ; sleep 1000.25"
"""One that leaves its session and its parent, which no signal to a group and no parent's death reaches."""

COMMANDS = pytest.mark.parametrize(
    "command",
    [pytest.param(PLAIN, id="plain"), pytest.param(ORPHAN, id="orphan")],
)
SANDBOXES = pytest.mark.parametrize("sandbox", ["read-only", "danger-full-access"])


@dataclass
class Scene:
    """A proxy whose agent runs a command for a client, and every process below it."""

    proxy: ProxyProcess
    talk: Talk
    family: list[int]
    commands: list[int]

    @property
    def agents(self) -> list[int]:
        """The agent's processes."""
        return [
            pid for pid in self.family if "app-server" in argv(pid) and "warden.py" not in " ".join(argv(pid))
        ]


def argv(pid: int) -> list[str]:
    try:
        return list(psutil.Process(pid).cmdline())
    except psutil.NoSuchProcess:
        return []


def sleepers(proxy: ProxyProcess) -> list[int]:
    return [pid for pid in proxy.family() if argv(pid)[:1] == ["sleep"]]


@asynccontextmanager
async def running_command(
    home: CodexHome, command: str, *arguments: str, **environment: str
) -> AsyncIterator[Scene]:
    """A client has asked, and the command and what it starts is running."""
    expected = command.count("sleep")
    async with (
        proxy_process(home, *arguments, environment=environment) as proxy,
        talk(proxy.url, chat_request(f'[[model:shell cmd="{command}"]]')) as client,
    ):
        await eventually(lambda: len(sleepers(proxy)) == expected)
        yield Scene(proxy, client, proxy.family(), sleepers(proxy))


@pytest.mark.sampled(every=2)
@COMMANDS
@SANDBOXES
async def test_a_client_that_leaves_ends_its_command(
    codex_home: CodexHome, command: str, sandbox: str
) -> None:
    async with running_command(codex_home, command, "--sandbox", sandbox) as scene:
        await scene.talk.leave()
        await eventually(lambda: have_ended(scene.commands))
        await assert_serves(scene.proxy.url, "[[model:text say=Hi.]]", "Hi.")


@COMMANDS
async def test_the_kill_of_an_agent_ends_its_command_and_its_stream_with_an_error(
    codex_home: CodexHome, command: str
) -> None:
    async with running_command(codex_home, command, "--sandbox", "danger-full-access") as scene:
        [agent] = scene.agents
        os.kill(agent, signal.SIGKILL)
        await eventually(lambda: have_ended(scene.family))
        await scene.talk.end()
        assert scene.talk.error_code == "agent_crashed"
        await assert_serves(scene.proxy.url, "[[model:text say=Hi.]]", "Hi.")


@COMMANDS
@SANDBOXES
async def test_the_kill_of_the_proxy_ends_all_its_processes(
    codex_home: CodexHome, command: str, sandbox: str
) -> None:
    async with running_command(codex_home, command, "--sandbox", sandbox) as scene:
        os.kill(scene.proxy.pid, signal.SIGKILL)
        await scene.talk.end()
        assert scene.talk.broken, "the connection is cut, not left half open"
        await eventually(lambda: have_ended(scene.family))


@COMMANDS
async def test_a_proxy_that_gets_sigterm_ends_everything_and_sends_its_clients_an_error(
    codex_home: CodexHome, command: str
) -> None:
    arguments = ("--sandbox", "danger-full-access")
    async with running_command(codex_home, command, *arguments, PROXY_DRAIN_MS="200") as scene:
        os.kill(scene.proxy.pid, signal.SIGTERM)
        await scene.talk.end()
        assert scene.talk.error_code == "service_unavailable"
        assert await scene.proxy.exit() == 0
        assert have_ended(scene.family), "when it is gone, so are they"


@COMMANDS
async def test_a_second_signal_ends_everything_at_once(codex_home: CodexHome, command: str) -> None:
    async with running_command(codex_home, command, PROXY_DRAIN_MS="60000") as scene:
        os.kill(scene.proxy.pid, signal.SIGINT)
        await eventually(lambda: any("stopping" in line for line in scene.proxy.said))
        os.kill(scene.proxy.pid, signal.SIGINT)
        assert await scene.proxy.exit() == 128 + signal.SIGINT
        await scene.talk.end()
        assert scene.talk.broken
        await eventually(lambda: have_ended(scene.family))


async def test_a_command_that_outlives_its_turn_is_ended_after_it(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    """The turn ends well, but has left a process that only the warden can find."""
    command = "(setsid sleep 1000.5 &) ; echo hi"
    async with proxy_process(codex_home, "--sandbox", "danger-full-access") as proxy:
        async with talk(proxy.url, chat_request(f'[[model:shell cmd="{command}"]]')) as client:
            await client.end()
        assert client.body.endswith(b"data: [DONE]\n\n")
        assert len(model_server.calls) == 2
        await eventually(lambda: not sleepers(proxy))


async def test_a_running_stream_is_finished_while_the_server_drains_and_listens_no_longer(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    environment = {"PROXY_DRAIN_MS": "30000"}
    async with proxy_process(codex_home, environment=environment) as proxy:
        family = proxy.family()
        async with talk(proxy.url, chat_request("[[model:stall n=2 gate=go]]")) as stream:
            await stream.says(b"word1")
            os.kill(proxy.pid, signal.SIGTERM)
            await eventually(lambda: any("stopping" in line for line in proxy.said))
            with pytest.raises(aiohttp.ClientConnectorError):  # it listens no longer
                async with talk(proxy.url, chat_request("[[model:text]]")):
                    pass
            model_server.open_gate("go")
            await stream.end()
        assert b'"finish_reason":"stop"' in stream.body
        assert stream.body.endswith(b"data: [DONE]\n\n")
        assert await proxy.exit() == 0
        assert have_ended(family)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
async def test_a_proxy_that_dies_while_its_agent_starts_leaves_no_process(
    codex_home: CodexHome, signum: signal.Signals
) -> None:
    """The process of plain-model turns starts with the first that needs it; the signal comes in the middle."""
    async with proxy_process(codex_home, environment={"PROXY_DRAIN_MS": "0"}) as proxy:
        asking = asyncio.create_task(_outcome(proxy.url, chat_request("[[model:text]]", system="Be brief.")))
        wardens = psutil.Process(proxy.pid).children
        await eventually(lambda: len(wardens()) == 2)
        family = proxy.family()
        os.kill(proxy.pid, signum)
        await proxy.exit()
        await eventually(lambda: have_ended(family))
        assert await asking in (503, None)


async def _outcome(url: str, request: dict[str, Any]) -> int | None:
    """The status, or None where the connection was cut."""
    try:
        async with talk(url, request) as client:
            await client.end()
            return client.status
    except aiohttp.ClientError:
        return None
