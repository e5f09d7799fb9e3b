"""Row 10: the first token of Claude Code and of agents that speak ACP, warm, against the same program driven directly.

A round that drives the program directly opens a session (in Claude Code: takes a process that waits), sets its mode,
and sends a prompt. Between two rounds there is a pause, in which the proxy may open a session of an ACP agent ahead.
The model is scripted. Programs that are neither on PATH nor installed by `scripts/agent-programs` are left out, with a
message.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, nullcontext
from pathlib import Path
from typing import Any, Protocol

import psutil

from codex_proxy.agents.spec import AgentContext
from codex_proxy.app.system import SystemClock
from codex_proxy.parts.acp.acp_setup import launch_of
from codex_proxy.parts.acp.messages import refusal, request
from codex_proxy.parts.acp.presets import INITIALIZE, PRESETS, Program, read_declared_features
from codex_proxy.parts.acp.sessions import session_options_of
from codex_proxy.parts.claude_code.claude_setup import claude_environment, program_of
from codex_proxy.parts.claude_code.claude_spec import NAME as CLAUDE_CODE
from codex_proxy.parts.claude_code.launch import LaunchKey, claude_argv
from codex_proxy.parts.claude_code.messages import control_request
from codex_proxy.process.child import Command
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.protected_paths import unreadable_paths
from scripts.agent_programs import PROGRAMS
from scripts.bench_lib.figures import Figure, quantile
from scripts.bench_lib.servers import (
    PATIENCE,
    BenchError,
    chat_request,
    clean_environment,
    first_delta,
    provider,
    proxy,
)
from tests.real.acp_proxy import environment_of
from tests.real.scripted_apis import script

PROMPT = f"Hi. {script({'text': 'Hello from the model.'})}"
LINE_BYTES = 1 << 26
WARM_SECONDS = 2.0
"""Seconds that a process of Claude Code waits on either side before its turn: its start takes a second."""
PAUSE_SECONDS = 1.0
"""Seconds from the end of a turn to the next one on the same side."""
PIPE = asyncio.subprocess.PIPE


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    there = [name for name in PROGRAMS if _bin(name) is not None]
    for name in PROGRAMS:
        if name not in there:
            print(f"row 10: {name} is not installed (scripts/agent-programs): left out", file=sys.stderr)
    for name in there[:2] if quick else there:
        yield from _of_agent(name, folder / name, rounds=1 if quick else 25)


def _bin(name: str) -> Path | None:
    """Returns the folder of the agent's program, if it is installed."""
    program = PROGRAMS[name]
    if program.is_installed:
        return program.bin
    found = shutil.which(program.command)
    return Path(found).parent if found is not None else None


def _of_agent(name: str, folder: Path, *, rounds: int) -> Iterator[Figure]:
    work = folder / "work"
    work.mkdir(parents=True)
    with provider("apis") as url:
        claude = name == CLAUDE_CODE
        variables = environment_of("claude-acp" if claude else name, folder, url)
        variables["PATH"] = f"{_bin(name)}:{variables['PATH']}"
        variables |= {"PROXY_ACP_ENV": "MOCK_KEY", "PROXY_CHILD_ENV": "ANTHROPIC_API_KEY,IS_SANDBOX"}
        given: dict[str, Any] = {"agent": name, "workdir": work, "state_dir": folder / "direct"}
        given |= {"acp": {"env": "MOCK_KEY"}, "child_env": variables["PROXY_CHILD_ENV"]}
        context = AgentContext(Settings(**given), clean_environment(variables), SystemClock())
        command = _claude_command(context) if claude else launch_of(PRESETS[name], context).command
        codex_home = variables.pop("CODEX_HOME", str(folder))
        flags = ("--agent", name, "--workdir", str(work))
        with proxy(folder, *flags, codex_home=codex_home, **variables) as server:
            sides = _Sides(server.port, command, None if claude else name)
            mine, theirs = asyncio.run(sides.measure(rounds))
    for label, share in (("p50", 0.5), ("p90", 0.9)):
        ratio = quantile(mine, share) / quantile(theirs, share)
        what = f"first token, {name}, warm, {label} ({1000 * quantile(theirs, share):.0f} ms directly)"
        goal = "<= 1.10 at p50" if label == "p50" else ""
        yield Figure("10", what, "the program driven directly", ratio, goal, len(mine))


def _claude_command(context: AgentContext) -> Command:
    settings = context.settings
    key = LaunchKey("agent", str(settings.workdir), settings.sandbox)
    argv = claude_argv(program_of(context), key, unreadable_paths(settings))
    return Command(argv, claude_environment(context), key.cwd)


class _Program(Protocol):
    """A program that is driven directly."""

    async def first_token(self) -> float: ...


class _Sides:
    """Both sides of one agent. `preset`: its name, if it speaks ACP."""

    def __init__(self, port: int, command: Command, preset: str | None) -> None:
        self._port = port
        self._command = command
        self._preset = preset
        self._request = chat_request(PROMPT)

    async def measure(self, rounds: int) -> tuple[list[float], list[float]]:
        """Returns the seconds to the first token, of the proxy and of the program, in turns; one round before is not
        counted. Each is first every other time, since the work after a turn slows the next one down.
        """
        mine: list[float] = []
        theirs: list[float] = []
        async with AsyncExitStack() as stack:
            acp: _Program | None = None
            if self._preset is not None:
                acp = await stack.enter_async_context(_acp(self._command, self._preset))
            for number in range(rounds + 1):
                await asyncio.sleep(PAUSE_SECONDS)
                async with nullcontext(acp) if acp is not None else _claude(self._command) as program:
                    if number % 2:
                        mine.append(await first_delta(self._port, self._request))
                        theirs.append(await program.first_token())
                    else:
                        theirs.append(await program.first_token())
                        mine.append(await first_delta(self._port, self._request))
        return mine[1:], theirs[1:]


@asynccontextmanager
async def _child(command: Command) -> AsyncIterator[asyncio.subprocess.Process]:
    """Yields the program, in a session of its own, and kills it at the end."""
    process = await asyncio.create_subprocess_exec(
        *command.argv,
        stdin=PIPE,
        stdout=PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=command.env,
        cwd=command.cwd,
        limit=LINE_BYTES,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(2):
                await process.wait()
        except TimeoutError:
            _kill(process.pid)
            await process.wait()


def _kill(pid: int) -> None:
    """Kills a process and its descendants."""
    for each in [*psutil.Process(pid).children(recursive=True), psutil.Process(pid)]:
        each.kill()


async def _line(process: asyncio.subprocess.Process) -> dict[str, Any]:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise BenchError("the program ended")
    message: dict[str, Any] = json.loads(line)
    return message


class _Claude:
    """A process of Claude Code that waits for its turn."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def first_token(self) -> float:
        """Returns the seconds from `initialize` to the first delta of the text. Reads the turn to its end."""
        assert self._process.stdin is not None
        clock = asyncio.get_running_loop().time
        user: dict[str, Any] = {"type": "user", "message": {"role": "user", "content": PROMPT}}
        user |= {"parent_tool_use_id": None, "session_id": ""}
        first = 0.0
        async with asyncio.timeout(PATIENCE):
            begun = clock()
            self._process.stdin.write(control_request("initialize", "initialize", hooks=None))
            self._process.stdin.write(json.dumps(user).encode() + b"\n")
            while (message := await _line(self._process))["type"] != "result":
                event: Mapping[str, Any] = message.get("event") or {}
                if not first and event.get("delta", {}).get("type") == "text_delta":
                    first = clock() - begun
        return first


@asynccontextmanager
async def _claude(command: Command) -> AsyncIterator[_Claude]:
    async with _child(command) as process:
        await asyncio.sleep(WARM_SECONDS)
        yield _Claude(process)


class _Acp:
    """A program that speaks ACP, initialized."""

    def __init__(self, process: asyncio.subprocess.Process, preset: str, cwd: str) -> None:
        self._process = process
        self._preset = PRESETS[preset]
        self._cwd = cwd
        self._program = Program(self._preset)
        self._last = 0
        self._first = 0.0

    async def initialize(self) -> None:
        result = await self._ask(
            "initialize", {**INITIALIZE, "clientInfo": {"name": "bench", "version": "0"}}
        )
        self._program = Program(self._preset, read_declared_features(result))

    async def first_token(self) -> float:
        """Returns the seconds from `session/new` to the first text. Reads the turn to its end."""
        clock = asyncio.get_running_loop().time
        async with asyncio.timeout(PATIENCE):
            begun = clock()
            result = await self._ask("session/new", {"cwd": self._cwd, "mcpServers": []})
            session, offer = result["sessionId"], session_options_of(result)
            mode = offer.mode_of(self._program.modes("read-only"))
            wanted = (
                offer.mode.request(session, mode) if offer.mode is not None and mode is not None else None
            )
            if wanted is not None:
                await self._ask(*wanted)
            self._first = 0.0
            prompt = [{"type": "text", "text": PROMPT}]
            await self._ask("session/prompt", {"sessionId": session, "prompt": prompt})
            if self._program.declared.closes:
                await self._ask("session/close", {"sessionId": session})
        return self._first - begun

    async def _ask(self, method: str, params: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._last += 1
        self._process.stdin.write(request(self._last, method, params))
        while True:
            message = await _line(self._process)
            if "method" not in message:
                if message.get("id") == self._last:
                    return message["result"]
            elif "id" in message:
                self._process.stdin.write(refusal(message["id"]))
            elif not self._first:
                update = message["params"].get("update", {})
                text = update.get("sessionUpdate") == "agent_message_chunk" and update["content"].get("text")
                self._first = asyncio.get_running_loop().time() if text else 0.0


@asynccontextmanager
async def _acp(command: Command, preset: str) -> AsyncIterator[_Acp]:
    async with _child(command) as process:
        program = _Acp(process, preset, command.cwd)
        async with asyncio.timeout(PATIENCE):
            await program.initialize()
        yield program
