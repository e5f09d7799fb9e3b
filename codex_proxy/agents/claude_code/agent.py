"""The agent `claude-code`: one process for each conversation, and processes that wait for the next conversation.

A process serves one conversation, and is kept after a turn as long as the client may continue the conversation. For
each mode in use (plain-model turns, agent turns) one process is started in advance, shortly after a turn has taken
the one before, so that no turn has to wait for the start. The prompt, the tools and the schema are sent to a
process with the turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Final

import msgspec
import structlog

from codex_proxy.agents.agent import AgentBase, ProcessCounts
from codex_proxy.agents.claude_code.dialect import ClaudeCodeTurn
from codex_proxy.agents.claude_code.failures import NOT_SIGNED_IN
from codex_proxy.agents.claude_code.launch import CAPABILITIES, LaunchKey
from codex_proxy.agents.claude_code.process import (
    ClaudeTransport,
    InitializeResult,
    is_signed_in,
    request_initialize,
)
from codex_proxy.agents.conversions import CLAUDE_MAX_OUTPUT
from codex_proxy.agents.plain_confinement import PlainConfinement
from codex_proxy.agents.session import AgentSession, spawn_failure
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import STOPPING, Failure, Fault
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.tasks import keep_until_done
from codex_proxy.core.turn import Mode, Turn
from codex_proxy.process.child import Command, SpawnError
from codex_proxy.process.launch import find_program

log = structlog.get_logger(__name__)

RESTOCK_SECONDS: Final = 0.3
"""Seconds from when a turn takes the waiting process until the next one is started. A start keeps a core busy for
about as long, which would slow the turn's beginning."""
MAX_WAIT_SECONDS: Final = 3600.0
"""The most seconds that a process waits for a turn. After that the settings and sign-in that it read at its start
may be outdated."""
RECHECK_SECONDS: Final = 10.0
"""Seconds between two checks of whether the user has signed in."""


class ClaudeProcesses(msgspec.Struct, frozen=True):
    """How Claude Code's processes are started, and how many are kept without a running turn."""

    name: str
    version: str
    command: Callable[[LaunchKey], Command]
    """Returns the command that starts a process of this kind, unconfined."""
    confinement: PlainConfinement
    """What keeps the processes of plain-model turns from reading the user's files."""
    empty_folder: str
    """The working folder of plain-model turns. It is empty, so that no file can reach the model."""
    warm: LaunchKey
    """The kind of the process that is started before the first turn, and of those that only answer `initialize`."""
    advice: str = ""
    """What the operator should do if a process cannot be started, as a sentence; empty if nothing is known."""
    kept: int = 4
    """The most processes that are kept without a running turn: those that wait for a turn (one for each mode in
    use), and those of conversations that may continue, of which at least one is kept."""


class ClaudeCodeAgent(AgentBase):
    """The `Agent` that runs Claude Code. `start` reads its models, and starts a process for the first turn."""

    any_model = True

    def __init__(self, processes: ClaudeProcesses, clock: Clock) -> None:
        super().__init__()
        self.name = processes.name
        self.version = processes.version
        self.capabilities = CAPABILITIES
        self._processes = processes
        self._clock = clock
        self._initialized = InitializeResult()
        self._initialized_at = 0.0
        self._asking: asyncio.Task[None] | None = None
        self._waiting: dict[Mode, tuple[LaunchKey, ClaudeTransport]] = {}
        """The process that waits for a turn, for each mode in use."""
        self._restocking: dict[Mode, asyncio.TimerHandle] = {}
        """The timer that starts the next waiting process, for each mode in use."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._live: set[ClaudeTransport] = set()
        self._idle: dict[ClaudeTransport, None] = {}
        """Processes of conversations that may continue, the longest kept first."""
        self._closed = False
        self.restarts = 0
        """The number of processes that ended while they waited or were given a turn, and were replaced."""

    @property
    def warning(self) -> str:
        return self._processes.confinement.warning

    async def start(self) -> None:
        try:
            self._initialized = await self._first_answer()
        except Fault as fault:
            message = f"{fault.failure.message} {self._processes.advice}".strip()
            raise Fault(msgspec.structs.replace(fault.failure, message=message)) from fault
        self._initialized_at = self._clock.monotonic()
        if not self._initialized.signed_in:
            log.warning("agent_not_signed_in", advice=NOT_SIGNED_IN.message)
        await self._restock(self._processes.warm)

    async def _first_answer(self) -> InitializeResult:
        """Returns the program's answer to `initialize`. At the same time tries out whether the program works
        confined, as it is in plain-model turns.
        """
        warm = self._processes.warm
        plain = self._processes.command(LaunchKey("model", self._processes.empty_folder))
        trial = self._processes.confinement.try_out(request_initialize, plain, is_signed_in)
        if warm.mode == "model":
            return await trial
        tried = asyncio.ensure_future(trial)
        try:
            answer = await request_initialize(self._processes.command(warm))
        finally:
            await asyncio.wait((tried,))
        tried.result()
        return answer

    def _command(self, key: LaunchKey) -> Command:
        command = self._processes.command(key)
        return self._processes.confinement.around(command) if key.mode == "model" else command

    async def open(self, turn: Turn) -> AgentSession:
        if self._closed:
            raise Fault(STOPPING)
        if turn.mode == "model":
            turn = msgspec.structs.replace(turn, workdir=self._processes.empty_folder)
            key = LaunchKey("model", turn.workdir)
        else:
            key = LaunchKey("agent", turn.workdir, turn.sandbox)
        if turn.model == "default":
            turn = msgspec.structs.replace(turn, model="")
        waiting = self._take(key)
        dialect = ClaudeCodeTurn(takes_mark=self._initialized.takes_mark)
        session = AgentSession(turn, dialect, waiting or await self._start_process(key))
        session.ran_before = waiting is not None
        session.max_output = CLAUDE_MAX_OUTPUT
        self._restock_soon(key)
        return session

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        transport = session.transport
        assert isinstance(transport, ClaudeTransport)
        self.restarts += session.ran_before and transport.exit is not None and not transport.printed
        await self._end(transport)

    # --- processes ------------------------------------------------------------------------------

    def _take(self, key: LaunchKey) -> ClaudeTransport | None:
        """Returns the process that waits for a turn with this key; from then on it no longer waits. Returns None if
        there is none. If the process has ended, or has waited for more than `MAX_WAIT_SECONDS`, ends it and returns
        None.
        """
        waits, transport = self._waiting.get(key.mode, (None, None))
        if transport is None or waits != key:
            return None
        del self._waiting[key.mode]
        old = self._clock.monotonic() - transport.started_at > MAX_WAIT_SECONDS
        if transport.exit is None and not old:
            return transport
        self.restarts += transport.exit is not None
        self._end_later(transport)
        return None

    async def _start_process(self, key: LaunchKey) -> ClaudeTransport:
        transport = ClaudeTransport(self._clock.monotonic(), self._set_idle)
        try:
            await transport.start(self._command(key))
        except SpawnError as error:
            raise Fault(spawn_failure(error)) from error
        self._live.add(transport)
        return transport

    def _restock_soon(self, key: LaunchKey) -> None:
        if key.mode in self._restocking:
            self._restocking[key.mode].cancel()
        loop = asyncio.get_running_loop()
        self._restocking[key.mode] = loop.call_later(RESTOCK_SECONDS, lambda: self._do(self._restock(key)))

    async def _restock(self, key: LaunchKey) -> None:
        """Starts a process with this key that waits for a turn, unless there is one. It replaces a waiting process
        of the same mode that has another key. A failure is only logged.
        """
        previous = self._waiting.get(key.mode)
        if self._closed or (previous is not None and previous[0] == key):
            return
        try:
            self._waiting[key.mode] = (key, await self._start_process(key))
        except Fault as fault:
            log.warning("agent_start_failed", reason=fault.failure.unquoted)
            return
        if previous is not None:
            await self._end(previous[1])

    def _set_idle(self, transport: ClaudeTransport, idle: bool) -> None:
        """Records that the conversation of a process is only kept for a later turn (`idle`), or continues. If too
        many are kept, ends the processes that have been kept longest.
        """
        self._idle.pop(transport, None)
        if idle:
            self._idle[transport] = None
            for oldest in list(self._idle)[: -max(1, self._processes.kept - len(self._waiting))]:
                self._idle.pop(oldest)
                asyncio.get_running_loop().call_soon(oldest.end_conversation)

    async def _end(self, transport: ClaudeTransport) -> None:
        self._idle.pop(transport, None)
        try:
            await transport.release(finished=True)
        finally:
            self._live.discard(transport)

    def _end_later(self, transport: ClaudeTransport) -> None:
        self._do(self._end(transport))

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        keep_until_done(self._tasks, asyncio.get_running_loop().create_task(work))

    # --- what is known of it --------------------------------------------------------------------

    def models(self) -> tuple[AgentModel, ...]:
        return self._initialized.models

    def processes(self) -> ProcessCounts:
        idle = len(self._idle) + len(self._waiting)
        return ProcessCounts(idle=idle, busy=max(0, len(self._live) - idle), restarts=self.restarts)

    def trouble(self) -> Failure | None:
        """Returns the failure if the program is missing, or if nobody was signed in when the program was last
        asked; None if neither. If nobody was signed in, asks the program again in the background, at most every
        `RECHECK_SECONDS`.
        """
        try:
            find_program(self._processes.command(self._processes.warm))
        except SpawnError as error:
            return spawn_failure(error)
        if self._initialized.signed_in:
            return None
        old = self._clock.monotonic() - self._initialized_at > RECHECK_SECONDS
        if old and not self._closed and (self._asking is None or self._asking.done()):
            self._initialized_at = self._clock.monotonic()
            self._asking = asyncio.ensure_future(self._ask_again())
        return NOT_SIGNED_IN

    async def _ask_again(self) -> None:
        try:
            self._initialized = await request_initialize(self._command(self._processes.warm))
        except Fault as fault:
            log.warning("agent_start_failed", reason=fault.failure.unquoted)

    async def close(self) -> None:
        self._closed = True
        for timer in self._restocking.values():
            timer.cancel()
        pending = [*self._tasks, *([self._asking] if self._asking is not None else [])]
        await asyncio.gather(*pending, return_exceptions=True)
        await asyncio.gather(*(self._end(transport) for transport in list(self._live)))
        self._waiting.clear()

    def kill(self) -> None:
        for transport in list(self._live):
            transport.kill()
