"""However a server or its agent ends, nothing of the real programs is left: launchers that re-spawn, workers, shells.

Each agent may do everything here, and its model runs a command without an end.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import openai
import psutil
import pytest
from openai import AsyncOpenAI

from tests.real.acp_proxy import AGENTS, SHELL, environment_of
from tests.real.claude_code import claude_path
from tests.real.proxy import ADDRESS, client_of, has_ended
from tests.real.scripted_apis import ScriptedApis, script, scripted_apis
from tests.real.shared import living_on
from tests.waiting import PATIENCE, eventually

CLAUDE_CODE = "claude-code"
ENDLESS = ("tail", "-f", "/dev/null")
"""The command. Some agents refuse a long `sleep`."""
pytestmark = [pytest.mark.exhaustive, pytest.mark.parametrize("agent", [*AGENTS, CLAUDE_CODE])]


@living_on()
async def apis() -> AsyncIterator[ScriptedApis]:
    async with scripted_apis() as apis:
        yield apis


class Served:
    """A server as a process of its own, and its client."""

    def __init__(self, process: asyncio.subprocess.Process, client: AsyncOpenAI, agent: str) -> None:
        self.process = process
        self.client = client
        self._agent = agent
        self._asking: list[asyncio.Task[Any]] = []

    def below(self) -> set[psutil.Process]:
        """Every process that the server has started, however deep."""
        return set(psutil.Process(self.process.pid).children(recursive=True))

    def command(self) -> psutil.Process | None:
        """The command of the agent's shell."""
        return next((each for each in self.below() if _runs(each, *ENDLESS)), None)

    async def run_command(self) -> psutil.Process:
        """Has the model run the command. Returns when it runs."""
        name, arguments = SHELL.get(self._agent, SHELL["claude-acp"])
        key = "cmd" if "cmd" in arguments else "command"
        step = {"text": "I wait.", "tools": [{"name": name, "args": {**arguments, key: " ".join(ENDLESS)}}]}
        prompt = f"Run. {script(step)}"
        asked = self.client.chat.completions.create(
            model="codex-5", messages=[{"role": "user", "content": prompt}]
        )
        self._asking.append(asyncio.create_task(asked))
        found = await eventually(self.command)
        assert found is not None
        return found

    async def failed(self) -> None:
        """Waits for the end of what was asked, which has no answer."""
        for task in self._asking:
            with suppress(openai.APIError):
                await task
        self._asking.clear()


def _runs(process: psutil.Process, *command: str) -> bool:
    try:
        return bool(process.cmdline()[-len(command) :] == list(command))
    except psutil.Error:
        return False


@asynccontextmanager
async def serve_agent(agent: str, folder: Path, apis: ScriptedApis) -> AsyncIterator[Served]:
    work = folder / "work"
    work.mkdir()
    claude = agent == CLAUDE_CODE
    environment = environment_of("claude-acp" if claude else agent, folder, apis.url)
    environment |= {
        "PROXY_ACP_ENV": "MOCK_KEY",
        "PROXY_STATE_DIR": str(folder / "state"),
        "PROXY_PORT": "0",
    }
    environment |= {"PROXY_CHILD_ENV": "ANTHROPIC_API_KEY,IS_SANDBOX"}
    if claude:
        environment["CLAUDE_BIN"] = str(claude_path())
    flags = ("--agent", agent, "--sandbox", "danger-full-access", "--workdir", str(work))
    process = await asyncio.create_subprocess_exec(
        *(
            sys.executable,
            "-P",
            "-m",
            "codex_proxy",
            "serve",
            *flags,
            *(() if claude else ("--agent-unconfined",)),
        ),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=environment,
    )
    try:
        url = await _address(process)
        async with client_of(url) as client:
            yield Served(process, client, agent)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


async def _address(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    async with asyncio.timeout(2 * PATIENCE):
        async for line in process.stdout:
            found = re.search(ADDRESS, line.decode())
            if found is not None:
                return found[1]
    raise AssertionError("the server ended before it served")


async def test_an_agent_that_is_killed_and_a_server_that_is_stopped_leave_nothing(
    agent: str, apis: ScriptedApis, tmp_path: Path
) -> None:
    async with serve_agent(agent, tmp_path, apis) as server:
        command = await server.run_command()
        first = server.below()
        wardens = [each for each in psutil.Process(server.process.pid).children() if each.children()]
        for warden in wardens:
            for child in warden.children():
                child.send_signal(signal.SIGKILL)
        await eventually(lambda: has_ended(command))
        await server.failed()
        await server.run_command()
        everything = first | server.below()
        server.process.send_signal(signal.SIGTERM)
        await server.process.wait()
        await eventually(lambda: all(map(has_ended, everything)))
        await server.failed()


async def test_a_server_that_is_killed_leaves_nothing(agent: str, apis: ScriptedApis, tmp_path: Path) -> None:
    async with serve_agent(agent, tmp_path, apis) as server:
        await server.run_command()
        everything = server.below()
        os.kill(server.process.pid, signal.SIGKILL)
        await server.process.wait()
        await eventually(lambda: all(map(has_ended, everything)))
        await server.failed()
