"""An agent with a child (a process) per turn, and the transport over its stdin and stdout. For a command that is used
often a child waits for the next turn, if its program reads everything from stdin.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import Final, Literal, Self

import msgspec

from codex_proxy.agents.dialect import Dialect
from codex_proxy.agents.process_pool.plan import ONE_TURN_AHEAD
from codex_proxy.agents.process_pool.pool import PooledAgent, ProcessPool
from codex_proxy.agents.process_pool.processes import RENEWED, PooledProcess
from codex_proxy.agents.sessions.session import (
    AgentSession,
    ChunkFramer,
    LineFramer,
    LineTooLong,
    TransportReader,
    ended_from,
    missing_program,
    rest_of,
)
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import UNFORESEEN, Failure, Fault
from codex_proxy.core.options import Capability
from codex_proxy.core.own_errors import breaks_off
from codex_proxy.core.turn import Turn
from codex_proxy.process.child import Command, Exit, spawn
from codex_proxy.process.own_process import descendants_of, resident_bytes

MAX_EARLY_BYTES: Final = 1 << 16
"""Maximum bytes that are read of a child before its turn begins."""


class ChildTransport(PooledProcess):
    """A `Transport` over one child, which serves one session. `release` ends the child."""

    exclusive = True

    def __init__(self, framer: LineFramer | ChunkFramer | None = None) -> None:
        """`framer` cuts stdout into what the dialect reads; None: lines."""
        super().__init__()
        self.has_printed = False
        self._reader: TransportReader | None = None
        self._framer = framer or LineFramer()
        self._early = bytearray()

    async def start(self, command: Command) -> None:
        """Starts the child. Raises `SpawnError`."""
        self._child = await spawn(command, self)

    def take(self) -> Self:
        self._serve(0)
        self.is_taken = True
        return self

    @property
    def alive(self) -> bool:
        if self._child is None or self.exit is not None:
            return False
        return self.is_taken or self._child.alive  # of a child that has exited a session still reads the rest

    @property
    def memory(self) -> int:
        return resident_bytes(descendants_of(self._child.pid)) if self._child is not None else 0

    @property
    def has_orphans(self) -> bool:
        """False: processes of the turn end with the child."""
        return False

    def attach(self, reader: TransportReader) -> None:
        self._reader = reader
        if self._early or self.exit is not None:
            asyncio.get_running_loop().call_soon(self._read_early)

    @breaks_off
    def _read_early(self) -> None:
        """Passes on output from before the turn, with the size 0: another child can take over if this one ends without
        more.
        """
        lines = self._framer.feed(bytes(self._early))
        self._early.clear()
        if self._reader is not None and lines:
            self._reader.on_messages(lines, 0)
        self.resume_reading()
        if self.exit is not None:
            self._report_end(self.exit)

    # --- the child's sink -----------------------------------------------------------------------

    @breaks_off
    def on_output(self, chunk: bytes) -> None:
        self.has_printed = True
        if self._reader is None or self._early:
            self._early += chunk
            if len(self._early) > MAX_EARLY_BYTES:
                self.pause_reading()
            return
        try:
            lines = self._framer.feed(chunk)
        except LineTooLong as fault:
            self._reader.on_messages(fault.before, len(chunk))
            self._reader.on_long_line(fault)
            return
        if lines:
            self._reader.on_messages(lines, len(chunk))

    @breaks_off
    def on_end(self, exit: Exit) -> None:
        self.exit, self.ended_during_turn = exit, self.turns_running > 0
        self._report_end(exit)
        self._note_change()

    def break_off(self) -> None:
        """Fails the turn, since a part of the output is lost; kills a child without a turn."""
        if self._reader is not None:
            self._reader.fail(UNFORESEEN)
        else:
            self.kill()

    def _report_end(self, exit: Exit) -> None:
        reader = self._reader
        if reader is None:
            return
        for line in rest_of(self._framer, exit):
            reader.on_messages([line], len(line))
        reader.on_end(ended_from(exit))

    # --- what a session calls -------------------------------------------------------------------------

    def send(self, writes: bytes) -> None:
        if self._child is not None:
            self._child.write(writes)

    def close_stdin(self) -> None:
        if self._child is not None:
            self._child.close_stdin()

    def set_idle(self, idle: bool) -> None:
        if idle:
            self._turn_ended(0)
        else:
            self._turn_began(0)
        self._note_change()

    def end_idle_channels(self) -> None:
        if self._reader is not None and not self.turns_running:
            self._reader.on_end(RENEWED)

    async def release(self, *, finished: bool) -> None:
        self.completed_turn = self.completed_turn or (finished and self.has_printed)
        await self.end()

    async def end(self) -> None:
        # `codex proto` does not exit when its stdin closes, so there is nothing to wait for.
        if self._child is not None:
            await self._child.end(grace=0)
        self._child = self._reader = None  # each of them holds this transport


class ChildSpec(msgspec.Struct, frozen=True):
    name: str
    version: str
    command: Callable[[Turn], Command]
    dialect: Callable[[], Dialect[bytes]]
    """Returns a new dialect, which reads what `reads` names."""
    capabilities: frozenset[Capability]
    models: tuple[AgentModel, ...]
    any_model: bool
    warning: str = ""
    """What the operator should know: the agent does less, or is confined less, than its settings suggest."""
    ahead: bool = False
    """Whether a child may be started before its turn is known: the command is the same, and the program does nothing
    before it reads stdin.
    """
    trouble: Callable[[], Failure | None] = lambda: None
    """Returns why no turn can run although the program is there, such as a missing sign-in."""
    reads: Literal["lines", "chunks"] = "lines"
    """`lines` without line ends, or `chunks` as they arrive, of programs that print plain text."""


ANY_TURN = Turn(model="", history=())
"""A turn to find out which program a command starts."""


class ChildPerTurnAgent(PooledAgent[Command, ChildTransport]):
    def __init__(self, spec: ChildSpec) -> None:
        super().__init__()
        self.name = spec.name
        self.version = spec.version
        self.capabilities = spec.capabilities
        self.any_model = spec.any_model
        self._spec = spec
        limits = ONE_TURN_AHEAD if spec.ahead else msgspec.structs.replace(ONE_TURN_AHEAD, spare_uses=0)
        self.pool = ProcessPool(spec.name, self._new_child, ChildTransport.start, lambda command: limits)

    @property
    def warning(self) -> str:
        return self._spec.warning

    async def open(self, turn: Turn) -> AgentSession:
        return await self.start_child(turn, self._spec.command(turn))

    async def start_child(self, turn: Turn, command: Command) -> AgentSession:
        """Starts a turn's child, and returns the session on it. Raises `Fault`."""
        failure = self._spec.trouble()
        if failure is not None:
            raise Fault(failure)
        dialect = self._spec.dialect()
        transport = await self.pool.acquire(command, ChildTransport.take)
        session = AgentSession(turn, dialect, transport)
        session.ran_before = transport.has_waited
        return session

    def _new_child(self, command: Command) -> ChildTransport:
        return ChildTransport(LineFramer() if self._spec.reads == "lines" else ChunkFramer())

    def models(self) -> tuple[AgentModel, ...]:
        return self._spec.models

    def trouble(self) -> Failure | None:
        command = self._spec.command(ANY_TURN)
        if not command.cwd:  # it is the turn's folder, which admission fills in
            command = msgspec.structs.replace(command, cwd=os.curdir)
        return missing_program(command) or self._spec.trouble()
