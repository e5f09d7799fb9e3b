"""An agent that speaks ACP: one process that is kept warm, with a session for each turn or conversation."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Mapping
from typing import Any, Final

import msgspec
import structlog

from codex_proxy.agents.account_limits import NewestLimits
from codex_proxy.agents.acp.dialect import AcpTurn
from codex_proxy.agents.acp.failures import failure_of_error
from codex_proxy.agents.acp.presets import CAPABILITIES, Preset
from codex_proxy.agents.acp.process import AcpProcess, AcpTransport
from codex_proxy.agents.acp.program import Program
from codex_proxy.agents.acp.session_setup import Offer, offer_of
from codex_proxy.agents.acp.tool_server import Door, ToolServer
from codex_proxy.agents.agent import Agent, ProcessCounts
from codex_proxy.agents.base import Capability
from codex_proxy.agents.session import AgentSession
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import STOPPING, Failure, Fault, FaultKind
from codex_proxy.core.ids import Clock
from codex_proxy.core.turn import Turn
from codex_proxy.process.child import Command

log = structlog.get_logger(__name__)

START_SECONDS: Final = 60.0
"""Seconds that a program may take to answer `initialize`: usually 0.3 to 2.5 s, ten times as long on a busy machine."""
PROBE_SECONDS: Final = 60.0
"""Seconds that it may take to open the probe session."""
MAX_SESSIONS: Final = 200
"""Sessions per process before it is replaced: not every agent frees sessions that are over."""
PAUSE_SECONDS: Final = 5.0
"""Seconds after a failed start in which turns fail at once for the same reason."""

RECHECK_SECONDS: Final = 10.0
"""Seconds after which a process that found no sign-in is replaced, to check again."""

UNCONFINED: Final = (
    "--agent-unconfined is given: nothing keeps {} from running commands and writing files on this machine."
)


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """The command that starts the program, and the folder of the probe session."""

    preset: Preset
    command: Command
    workdir: str
    unconfined: bool = False


class AcpAgent:
    """An `Agent` that keeps one ACP process running. A process that has ended, or has served many sessions, is
    replaced at the next turn."""

    members: Mapping[str, Agent] = {}
    off: Mapping[str, tuple[str, ...]] = {}
    any_model = False

    def __init__(self, launch: Launch, clock: Clock) -> None:
        self.name = launch.preset.name
        self.warning = UNCONFINED.format(launch.preset.title) if launch.unconfined else ""
        self.version = ""
        self.capabilities: frozenset[Capability] = CAPABILITIES
        self.limits = NewestLimits()
        self.offer = Offer()
        """What the probe session of the newest process offered."""
        self._launch = launch
        self._clock = clock
        self._tool_server = ToolServer()
        self._current: AcpProcess | None = None
        self._leaving: set[AcpProcess] = set()
        """Processes that take no further sessions, and are ended when their last one is over."""
        self._starting = asyncio.Lock()
        self._restarts = 0
        self._failure: Failure | None = None
        """Why the last start failed, or that nobody is signed in; None if neither."""
        self._failed_at = 0.0
        self._closed = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Starts the program and reads what it offers. Raises `Fault` if it cannot be started. A missing sign-in
        fails turns, but not the start."""
        await self._process()

    async def open(self, turn: Turn) -> AgentSession:
        """Returns a session that has not begun. Raises `Fault` if the program cannot be started."""
        process = await self._process()
        door = await self._open_door(turn)
        if process.exit is not None or process in self._leaving:  # while the door was being opened
            process = await self._process()
        declared = process.connection.declared
        assert declared is not None
        program = Program(self._launch.preset, declared, self._launch.unconfined)
        servers = () if door is None else (door.server_entry(http=declared.http_tools),)
        channel = process.open_channel()
        dialect = AcpTurn(channel, program, _new_id, servers=servers)
        if not turn.workdir:
            turn = msgspec.structs.replace(turn, workdir=self._launch.workdir)
        if turn.mode == "model":  # a plain model would act on nothing
            turn = msgspec.structs.replace(turn, sandbox="read-only")
        return AgentSession(turn, dialect, AcpTransport(process, channel, dialect, door))

    async def _open_door(self, turn: Turn) -> Door | None:
        if not turn.tools:
            return None
        try:
            return await self._tool_server.open(turn.tools)
        except OSError as error:
            message = f"No port can be had for the client's tools ({error.strerror})."
            raise Fault(Failure(kind=FaultKind.UNAVAILABLE, message=message, retry_after=5)) from error

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        assert isinstance(session.transport, AcpTransport)
        await session.transport.release(finished=finished)
        self._tidy()

    def models(self) -> tuple[AgentModel, ...]:
        """Returns the models that the newest process listed in its probe session."""
        return self.offer.models()

    async def ask_limits(self) -> None:
        """Does nothing: ACP has no request for limits."""

    def processes(self) -> ProcessCounts:
        processes = [*self._leaving, *([] if self._current is None else [self._current])]
        busy = sum(1 for process in processes if process.turns_running)
        return ProcessCounts(idle=len(processes) - busy, busy=busy, restarts=self._restarts)

    def trouble(self) -> Failure | None:
        return self._failure

    async def close(self) -> None:
        self._closed = True
        async with self._starting:
            processes = [*self._leaving, *([] if self._current is None else [self._current])]
            await asyncio.gather(*(process.end() for process in processes))
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._tool_server.close()

    def kill(self) -> None:
        for process in (*self._leaving, self._current):
            if process is not None:
                process.kill()

    # --- the process ----------------------------------------------------------------------------

    async def _process(self) -> AcpProcess:
        """Returns the process for the next session, and starts one if there is none. Raises `Fault` if that fails."""
        async with self._starting:
            if self._closed:
                raise Fault(STOPPING)
            current, now = self._current, self._clock.monotonic()
            # Somebody may have signed in since: not every program looks again by itself.
            again = self._failure is not None and now - self._failed_at >= RECHECK_SECONDS
            if current is not None and _takes_sessions(current) and not again:
                return current
            if current is not None:
                self._retire(current)
            if self._failure is not None and current is None and now - self._failed_at < PAUSE_SECONDS:
                raise Fault(self._failure)
            self._current = await self._started()
            return self._current

    async def _started(self) -> AcpProcess:
        process = AcpProcess()
        try:
            await process.start(self._launch.command, timeout_seconds=START_SECONDS)
            await process.probe(self._launch.workdir, timeout_seconds=PROBE_SECONDS)
        except Fault as fault:
            await process.end()
            self._failure, self._failed_at = fault.failure, self._clock.monotonic()
            log.warning("agent_start_failed", agent=self.name, reason=fault.failure.unquoted)
            raise
        except BaseException:
            process.kill()
            raise
        process.on_change = self._tidy
        self._take_in(process)
        return process

    def _take_in(self, process: AcpProcess) -> None:
        """Stores what the program declared and what its probe session offered."""
        declared, probe = process.connection.declared, process.connection.probe
        assert declared is not None
        assert probe is not None
        self.version = declared.version
        self.capabilities = Program(self._launch.preset, declared, self._launch.unconfined).capabilities
        if probe.error is None:
            self.offer, self._failure = offer_of(probe.result), None
        else:
            self._failure = failure_of_error(probe.error, self._launch.preset)
            self._failed_at = self._clock.monotonic()
            log.warning("agent_session_failed", agent=self.name, reason=self._failure.kind.value)

    def _retire(self, process: AcpProcess) -> None:
        """Stops giving sessions to a process; it is ended when it has none."""
        if process is self._current:
            self._current = None
        if process.exit is not None:
            self._restarts += 1
            return
        self._leaving.add(process)
        process.end_idle_channels()
        self._tidy()

    def _tidy(self) -> None:
        """Ends processes that are no longer needed, and forgets those that have ended."""
        current = self._current
        if current is not None and not _takes_sessions(current):
            self._retire(current)
        for process in list(self._leaving):
            if process.exit is not None:
                self._leaving.discard(process)
            elif not process.connection.channel_count or process.unhealthy:
                self._leaving.discard(process)
                self._spawn(process.end())

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _takes_sessions(process: AcpProcess) -> bool:
    return process.alive and not process.unhealthy and process.sessions_served < MAX_SESSIONS


def _new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex
