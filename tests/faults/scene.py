"""One server per dialect whose agent does what a prompt says, and the proof that a fault has left nothing behind."""

from __future__ import annotations

import asyncio
import os
import shlex
import sqlite3
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import aiohttp
import msgspec

from codex_proxy.agents.agent import Agent
from codex_proxy.agents.codex_app_server.agent import AppServerAgent, AppServerProcesses
from codex_proxy.agents.codex_proto.proto_dialect import CodexProto
from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.fake.fake_spec import PROTO_CAPABILITIES
from codex_proxy.agents.process_pool.plan import PoolLimits
from codex_proxy.agents.sessions.child_per_turn import ChildPerTurnAgent, ChildSpec
from codex_proxy.process.child import Command
from tests.http.serving import ENVIRONMENT, Answer, Proxy, proxy_of, until
from tests.process.children import have_ended, open_descriptors
from tests.waiting import PATIENCE, eventually, out_of_patience, turns_shown

Dialect = Literal["proto", "app-server"]
Surface = Literal["chat", "responses"]

HOUSEKEEPING = {"UsageRecorder._flush_soon"}
"""Tasks that come and go with requests and are nobody's in particular."""

PROGRAM = '#!/bin/sh\nexec {python} -m fake_proto "$@"\n'


@dataclass(frozen=True)
class Mode:
    """How a client asks."""

    surface: Surface
    stream: bool

    def __str__(self) -> str:
        return f"{self.surface}, {'streamed' if self.stream else 'whole'}"


MODES = [Mode(surface, stream) for surface in ("chat", "responses") for stream in (True, False)]


class Scene:
    """A server under test. `program` is the file that its children are started from."""

    def __init__(
        self, proxy: Proxy, dialect: Dialect, folder: Path, opened: list[sqlite3.Connection]
    ) -> None:
        self.proxy = proxy
        self.dialect = dialect
        self.program = folder / "agent"
        self.opened = opened
        """Every connection to the store."""
        self._pids, self._silent = folder / "pids", folder / "silent"
        self._rest = self.things()

    @property
    def agent(self) -> Agent:
        return self.proxy.server.agent

    async def ask(self, mode: Mode, prompt: str, **fields: Any) -> Answer:
        """One request, read to its end."""
        path, body = request_of(mode, prompt, **fields)
        return await self.proxy.send("POST", path, body)

    async def ask_silent(self, asked: Sequence[tuple[Mode, str]], *, shown: int) -> list[Answer]:
        """Asks all of these at once. Their agents fall silent, and their time is up when all have and so many of the
        turns have shown something."""
        scheduler, before = self.proxy.server.runs, self._times_silent()
        answers = [asyncio.create_task(self.ask(mode, prompt)) for mode, prompt in asked]
        await until(lambda: self._times_silent() == before + len(asked))
        await until(lambda: turns_shown(scheduler) == shown)
        out_of_patience(scheduler)
        return await asyncio.gather(*answers)

    def _times_silent(self) -> int:
        return self._silent.read_text().count("\n") if self._silent.exists() else 0

    async def good(self) -> None:
        """A turn as it should be."""
        answer = await self.ask(Mode("chat", stream=False), "[[fake:text say=Fine.]]")
        assert (answer.status, answer.text.count('"Fine."')) == (200, 1), answer.text

    async def come_to_rest(self) -> None:
        """Takes what is there as what has to be there, as soon as it does not change any more."""
        for mode in MODES:
            await self.ask(mode, "[[fake:text]]")
        same = 0

        def at_rest() -> bool:
            nonlocal same
            now = self.things()
            same = same + 1 if now == self._rest else 0
            self._rest = now
            return same > 10

        await eventually(at_rest)

    async def at_rest(self) -> None:
        """Slots, streams, lanes, tasks, descriptors and processes are as before; waits for that, bounded."""
        try:
            await until(lambda: self.things().within(self._rest) and have_ended(self._strangers()))
        except AssertionError:
            left = [pid for pid in self._strangers() if not have_ended([pid])]
            raise AssertionError(f"now: {self.things()}, before: {self._rest}, left: {left}") from None
        self._rest = self.things()  # what was more before is a leak from now on
        self._pids.write_text("".join(self._pids.read_text().splitlines(keepends=True)[-8:]))

    def things(self) -> Things:
        processes = self.agent.pool.processes if isinstance(self.agent, AppServerAgent) else []
        scheduler = self.proxy.server.runs
        return Things(
            turns=(scheduler.running, scheduler.queued, self.proxy.streams),
            lanes=sum(len(process._readers) for process in processes),
            processes=len(processes),
            descriptors=open_descriptors(),
            tasks=sum(task.get_coro().__qualname__ not in HOUSEKEEPING for task in asyncio.all_tasks()),  # type: ignore[union-attr]
        )

    def newest_pids(self, count: int) -> list[int]:
        """Of the processes that the agent has been."""
        return [int(pid) for pid in self._pids.read_text().split()[-count:]]

    def _strangers(self) -> list[int]:
        """Every process that the agent ever was, but for the newest one of an agent that is kept."""
        pids = [int(pid) for pid in self._pids.read_text().split()] if self._pids.exists() else []
        warm = self.things().processes
        return pids[: len(pids) - warm]


class Things(msgspec.Struct, frozen=True):
    """What a turn takes, and has to give back. `turns`: that run, that wait, and streams that are open."""

    turns: tuple[int, int, int]
    lanes: int
    processes: int
    descriptors: int
    tasks: int

    def within(self, before: Things) -> bool:
        """Whether this is no more than there was."""
        steady = (self.turns, self.lanes, self.processes) == (before.turns, before.lanes, before.processes)
        return steady and self.descriptors <= before.descriptors and self.tasks <= before.tasks


def request_of(mode: Mode, prompt: str, **fields: Any) -> tuple[str, dict[str, Any]]:
    """Path and body."""
    body: dict[str, Any] = {"model": "codex-5", "stream": mode.stream, **fields}
    if mode.surface == "chat":
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": prompt}]}
    return "/v1/responses", body | {"input": prompt}


def agent_of(dialect: Dialect, program: Path, environment: dict[str, str]) -> Agent:
    """The fake agent, started from a file that a test may take away. Its ends do not take long."""

    def command(argument: str) -> Command:
        return Command((str(program), argument), environment, "/", eof_grace=0.3, term_grace=0.3)

    if dialect == "app-server":
        processes = AppServerProcesses(
            name="fake",
            version="test",
            plain=command("app-server"),
            confinement=PlainConfinement("It", None),
            agent=None,
            empty_folder="",
            models=(),
            any_model=True,
        )
        return AppServerAgent(processes, PoolLimits(max_processes=1), warm_plain=True)
    return ChildPerTurnAgent(
        ChildSpec(
            name="fake",
            version="test",
            command=lambda turn: command("proto"),
            dialect=lambda: CodexProto(extended=True),
            capabilities=PROTO_CAPABILITIES,
            models=(),
            any_model=True,
        )
    )


@asynccontextmanager
async def scene(dialect: Dialect, folder: Path, opened: list[sqlite3.Connection]) -> AsyncIterator[Scene]:
    """The server, warm, with a client whose connections end with their answers."""
    program = folder / "agent"
    write_program(program)
    environment = {
        **ENVIRONMENT,
        "FAKE_CODEX_PID_FILE": str(folder / "pids"),
        "FAKE_CODEX_SILENT_FILE": str(folder / "silent"),
        "STREAM_RELEASE_FILE": str(folder / "never"),
    }
    settings: dict[str, Any] = {"kept_threads": 0, "max_running_turns": 8}
    async with (
        proxy_of(agent_of(dialect, program, environment), folder, **settings) as running,
        aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True), timeout=aiohttp.ClientTimeout(total=PATIENCE)
        ) as session,
    ):
        there = Scene(Proxy(running.server, session, running.url), dialect, folder, opened)
        await there.come_to_rest()
        yield there


def write_program(program: Path) -> None:
    """The agent's program as it should be."""
    program.unlink(missing_ok=True)
    program.write_text(PROGRAM.format(python=shlex.quote(sys.executable)))
    os.chmod(program, 0o755)
