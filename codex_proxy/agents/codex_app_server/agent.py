"""The agent `codex-app-server`: two pools of long-lived processes, one for plain-model turns (in which Codex only
calls the model) and one for agent turns (in which Codex works with its own tools).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from weakref import WeakKeyDictionary

import msgspec

from codex_proxy import __version__
from codex_proxy.agents.agent import AgentBase, ProcessCounts
from codex_proxy.agents.codex.home_locks import first_start_lock
from codex_proxy.agents.codex.program import NOT_SIGNED_IN
from codex_proxy.agents.codex.sandbox_config import Profiles
from codex_proxy.agents.codex_app_server.contract import ContractCheck
from codex_proxy.agents.codex_app_server.plan import PoolLimits
from codex_proxy.agents.codex_app_server.pool import Pool
from codex_proxy.agents.codex_app_server.process import AppServerProcess, ThreadTransport
from codex_proxy.agents.plain_confinement import PlainConfinement
from codex_proxy.agents.session import AgentSession
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.turn import Turn
from codex_proxy.process.child import Command

START_SECONDS = 20.0
"""The most seconds that a process may take to answer `initialize`. It usually takes 70 ms; 0.5 s in a new home,
more from a cold disk."""

RECHECK_SECONDS = 10.0
"""Seconds after which a new process is started to find out whether somebody has signed in, since a sign-in in the
system's keyring changes no file."""

LIMITS_SECONDS = 5.0
"""The most seconds to wait for the agent to report the limits of its account, for which it asks its provider."""

CLIENT_NAME = "codex_openai_proxy"


class AppServerProcesses(msgspec.Struct, frozen=True):
    """How the processes are started, and the properties of the Codex program: its release, its models, and what its
    protocol lacks.
    """

    name: str
    version: str
    plain: Command
    """The command of processes for plain-model turns, unconfined."""
    confinement: PlainConfinement
    """What keeps processes for plain-model turns from reading the user's files."""
    agent: Command | None
    """The command of processes for agent turns. None if one kind of process serves both kinds of turn (the fake
    agent)."""
    empty_folder: str
    """The working folder of plain-model turns; empty if they run in the turn's folder (the fake agent)."""
    models: tuple[AgentModel, ...]
    any_model: bool
    """Whether any model name is accepted, not only those in `models`."""
    sign_in_file: str = ""
    """The path of the file that changes when somebody signs in."""
    start_mark: str = ""
    """The path of a file that exists once this release has started with this state folder."""
    profiles: Profiles | None = None
    """The permission profiles of agent processes; None for the fake agent, which has none."""
    can_confine: Callable[[], Awaitable[bool]] | None = None
    """Finds out whether commands can be kept from reading files on this machine. Takes 0.1 s and more. None if no
    turn's reading is to be limited (the fake agent)."""
    contract: ContractCheck = ContractCheck()
    """Which parts of the protocol the binary lacks."""
    renew_check: Callable[[], Awaitable[None]] | None = None
    """Asks the binary again what it supports, if the stored answer is more than a day old, and stores the new one
    in the state folder, where the next start of the server reads it. `AppServerAgent.start` starts it once, in the
    background. None if there is nothing to ask (the fake agent)."""


class _Start(msgspec.Struct, frozen=True):
    """When a process was started, in seconds of a monotonic clock (`at`), and the result of `_stamp` for the
    sign-in file at that time.
    """

    at: float
    stamp: tuple[int, int, int] | None


def _stamp(file: str) -> tuple[int, int, int] | None:
    """Returns the inode, size and modification time of a file, which change when it is replaced or written; None if
    it does not exist.
    """
    try:
        stat = os.stat(file)
    except OSError:
        return None
    return stat.st_ino, stat.st_size, stat.st_mtime_ns


class AppServerAgent(AgentBase):
    """An `Agent` with a pool of processes for plain-model turns and one for agent turns; if the constructor's
    `processes` have no command for agent turns (as the fake agent's), a single pool serves both. `start` starts the
    pool for plain-model turns if the constructor's `warm_plain` is True, else the pool for agent turns. The other
    pool starts with its first turn.
    """

    def __init__(
        self, processes: AppServerProcesses, limits: PoolLimits, clock: Clock, *, warm_plain: bool
    ) -> None:
        super().__init__()
        self.name = processes.name
        self.version = processes.version
        self.any_model = processes.any_model
        self.capabilities = processes.contract.capabilities
        self.missing_features = processes.contract.missing_features
        self._renewal: asyncio.Task[None] | None = None
        self._models = processes.models
        self._empty = processes.empty_folder
        self._processes = processes
        self._confines: asyncio.Task[bool] | None = None
        self._sign_in_file = processes.sign_in_file
        self._starts: WeakKeyDictionary[AppServerProcess, _Start] = WeakKeyDictionary()
        self._clock = clock
        self._plain = self._pool(processes.plain, limits, clock, processes.confinement)
        self._agent = self._plain
        if processes.agent is not None:
            self._agent = self._pool(processes.agent, limits, clock, None)
        self._warm_plain = warm_plain

    @property
    def warning(self) -> str:
        return self._processes.confinement.warning

    def _pool(
        self, command: Command, limits: PoolLimits, clock: Clock, confinement: PlainConfinement | None
    ) -> Pool:
        async def start(process: AppServerProcess) -> None:
            await self._start(process, command if confinement is None else confinement.around(command))

        return Pool(self._process, start, limits, clock)

    async def _start(self, process: AppServerProcess, command: Command) -> None:
        async with first_start_lock(self._processes.start_mark, START_SECONDS):
            self._starts[process] = _Start(self._clock.monotonic(), _stamp(self._sign_in_file))
            await process.start(command, timeout_seconds=START_SECONDS)

    def _process(self) -> AppServerProcess:
        process = AppServerProcess(
            CLIENT_NAME, __version__, parallel_calls="parallel_calls" not in self.missing_features
        )
        process.on_limits = self.limits.update
        return process

    @property
    def pools(self) -> tuple[Pool, ...]:
        """The pools of processes: one for plain-model turns and one for agent turns, or a single one for both."""
        return (self._plain,) if self._plain is self._agent else (self._plain, self._agent)

    async def start(self) -> None:
        trial = asyncio.ensure_future(self._try_confined())
        try:
            if self._warm_plain:  # its processes are started as the trial has found
                await trial
            await (self._plain if self._warm_plain else self._agent).warm()
        finally:
            await asyncio.wait((trial,))
        trial.result()
        if self._processes.renew_check is not None:
            self._renewal = asyncio.ensure_future(self._processes.renew_check())

    async def _try_confined(self) -> None:
        """Tries out whether Codex works confined, as it is in plain-model turns. Raises `Fault` if it does not start
        with the mechanism that the operator has named.
        """
        if self._processes.confinement.confinement is None or "plain_model" in self.missing_features:
            return

        async def start(command: Command) -> bool:
            process = self._process()
            try:
                await self._start(process, command)
                return process.connection.signed_in
            finally:
                await process.end()

        await self._processes.confinement.try_out(start, self._processes.plain, bool)

    async def open(self, turn: Turn) -> AgentSession:
        pool = self._plain if turn.mode == "model" else self._agent
        permissions = await self._permissions(turn)
        transport = await self._signed_in_transport(pool)
        if turn.mode == "model" and self._empty:
            turn = msgspec.structs.replace(turn, workdir=self._empty)
        if permissions is not None:
            turn = msgspec.structs.replace(turn, permissions=permissions)
        return AgentSession(turn, transport.dialect, transport)

    async def _permissions(self, turn: Turn) -> str | None:
        """Returns the name of the permission profile for an agent turn whose commands must not read protected
        paths. Returns None if the turn gets a sandbox mode instead: it may read everything, the release has no
        profiles, or Codex cannot limit reading on this machine (with a profile every command would then fail).
        """
        profiles, can_confine = self._processes.profiles, self._processes.can_confine
        if turn.mode == "model" or not turn.confine_reads or profiles is None or can_confine is None:
            return None
        if (
            "confined_reads" in self.missing_features
        ):  # the thread would have neither a profile nor the sandbox
            return None
        if self._confines is None or (self._confines.done() and not self._confines.result()):
            self._confines = asyncio.ensure_future(can_confine())
        return profiles.of(turn.sandbox) if await asyncio.shield(self._confines) else None

    async def _signed_in_transport(self, pool: Pool) -> ThreadTransport:
        """Returns a transport on a process that is signed in. If the process is not, and somebody may have signed
        in since its start, replaces it by a new one, because only a process's start reads the sign-in. Raises
        `Fault` if nobody is signed in.
        """
        transport = await pool.acquire()
        if not transport.process.connection.signed_in and self._may_have_changed(transport.process):
            pool.retire(transport.process)
            await pool.release(transport, finished=True)
            transport = await pool.acquire()
        if transport.process.connection.signed_in:
            return transport
        await pool.release(transport, finished=True)
        raise Fault(NOT_SIGNED_IN)

    def _may_have_changed(self, process: AppServerProcess) -> bool:
        """Returns whether somebody may have signed in since the process was started: if the sign-in file has
        changed, or more than `RECHECK_SECONDS` have passed.
        """
        start = self._starts.get(process)
        if start is None or start.stamp != _stamp(self._sign_in_file):
            return True
        return self._clock.monotonic() - start.at > RECHECK_SECONDS

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        assert isinstance(session.transport, ThreadTransport)
        pool = self._plain if session.turn.mode == "model" else self._agent
        await pool.release(session.transport, finished=finished)

    def models(self) -> tuple[AgentModel, ...]:
        return self._models

    async def ask_limits(self) -> None:
        process = next((process for pool in self.pools for process in pool.processes if process.alive), None)
        if process is not None:
            process.ask_limits()
            await self.limits.answered(LIMITS_SECONDS)

    def processes(self) -> ProcessCounts:
        processes = [process for pool in self.pools for process in pool.processes]
        busy = sum(1 for process in processes if process.turns_running)
        restarts = sum(pool.restarts for pool in self.pools)
        return ProcessCounts(idle=len(processes) - busy, busy=busy, restarts=restarts)

    def trouble(self) -> Failure | None:
        for pool in self.pools:
            trouble = pool.readiness_failure()
            if trouble is not None:
                return trouble
        processes = [process for pool in self.pools for process in pool.processes]
        if processes and not any(process.connection.signed_in for process in processes):
            return NOT_SIGNED_IN
        return None

    async def close(self) -> None:
        for task in (self._confines, self._renewal):
            if task is not None:
                task.cancel()
        await asyncio.gather(*(pool.close() for pool in self.pools))

    def kill(self) -> None:
        for pool in self.pools:
            pool.kill()
