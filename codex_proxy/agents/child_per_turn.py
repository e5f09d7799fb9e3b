"""An agent that starts one child (a process) for each turn, and the transport over the child's stdin and stdout.

A `ChildSpec` describes such an agent: the command to start, and the dialect for the child's output.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from codex_proxy.agents.account_limits import NewestLimits
from codex_proxy.agents.agent import Agent, ProcessCounts
from codex_proxy.agents.dialect import Capability, Dialect
from codex_proxy.agents.session import (
    AgentSession,
    ChunkFramer,
    LineFramer,
    LineTooLong,
    TransportReader,
    broken_protocol,
    ended_from,
    spawn_failure,
)
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.turn import Turn
from codex_proxy.process.child import Child, Command, Exit, SpawnError, spawn
from codex_proxy.process.launch import find_program


class ChildTransport:
    """A `Transport` over the stdin and stdout of one child, which serves one session. `release` ends the child.
    `exclusive`: see `Transport`.
    """

    exclusive = True

    def __init__(self, framer: LineFramer | ChunkFramer | None = None) -> None:
        """`framer` cuts stdout into the pieces that the dialect reads; None for lines."""
        self._child: Child | None = None
        self._reader: TransportReader | None = None
        self._framer = framer or LineFramer()

    async def start(self, command: Command) -> None:
        """Starts the child. Raises `SpawnError` if that fails."""
        self._child = await spawn(command, self)

    def attach(self, reader: TransportReader) -> None:
        self._reader = reader

    def kill(self) -> None:
        """Kills the child at once, and does not wait until it has ended."""
        if self._child is not None:
            self._child.kill()

    # --- the child's sink -----------------------------------------------------------------------

    def received(self, chunk: bytes) -> None:
        if self._reader is None:
            return
        try:
            lines = self._framer.feed(chunk)
        except LineTooLong as fault:
            self._reader.received(fault.before, len(chunk))
            self._reader.fail(broken_protocol(str(fault)))
            return
        if lines:
            self._reader.received(lines, len(chunk))

    def ended(self, exit: Exit) -> None:
        if self._reader is None:
            return
        rest = self._framer.close()
        if rest:
            self._reader.received([rest], len(rest))
        self._reader.ended(ended_from(exit))

    # --- what a session calls -------------------------------------------------------------------------

    def send(self, writes: bytes) -> None:
        if self._child is not None:
            self._child.write(writes)

    def close_stdin(self) -> None:
        if self._child is not None:
            self._child.close_stdin()

    def pause_reading(self) -> None:
        if self._child is not None:
            self._child.pause()

    def resume_reading(self) -> None:
        if self._child is not None:
            self._child.resume()

    def set_idle(self, idle: bool) -> None:
        """Does nothing: the child serves this session alone, and idle children are not counted."""

    async def release(self, *, finished: bool) -> None:
        # `codex proto` does not exit when its stdin closes, so there is nothing to wait for.
        if self._child is not None:
            await self._child.end(grace=0)
        self._child = self._reader = None  # each of them holds this transport


class ChildSpec(msgspec.Struct, frozen=True):
    """Describes an agent with a child per turn: what to start, the dialect that reads its output, and the agent's
    properties.
    """

    name: str
    version: str
    command: Callable[[Turn], Command]
    """Returns the command that starts the child for a turn."""
    dialect: Callable[[], Dialect[bytes]]
    """Returns a new dialect for a turn, which reads the child's output in the units that `reads` names."""
    capabilities: frozenset[Capability]
    models: tuple[AgentModel, ...]
    any_model: bool
    """Whether any model name is accepted, not only those in `models`."""
    missing_features: Mapping[str, tuple[str, ...]] = {}
    """The features that this release of the program lacks, each with the names of what is missing in its protocol
    for it."""
    warning: str = ""
    """One or two sentences for the operator if the agent does less than they may expect; else empty."""
    reads: Literal["lines", "chunks"] = "lines"
    """`lines`: whole lines without line ends. `chunks`: bytes as they arrive, for programs that print plain text."""


ANY_TURN = Turn(model="", history=())
"""A turn without content, for finding out which program the command of a turn starts."""


class ChildPerTurnAgent:
    """An `Agent` that starts a child for each turn and ends it with the turn. `members`: see `Agent`."""

    members: Mapping[str, Agent] = {}

    def __init__(self, spec: ChildSpec) -> None:
        self.name = spec.name
        self.version = spec.version
        self.capabilities = spec.capabilities
        self.missing_features: Mapping[str, tuple[str, ...]] = spec.missing_features
        self.any_model = spec.any_model
        self.warning = spec.warning
        self._spec = spec
        self._transports: set[ChildTransport] = set()
        self.limits = NewestLimits()

    async def start(self) -> None:
        """Does nothing, because this agent starts a process only when there is a turn."""

    async def open(self, turn: Turn) -> AgentSession:
        return await self.start_child(turn, self._spec.command(turn))

    async def start_child(self, turn: Turn, command: Command) -> AgentSession:
        """Starts the child of a turn with this command, and returns the session on it. Raises `Fault` if the child
        cannot be started.
        """
        transport = ChildTransport(LineFramer() if self._spec.reads == "lines" else ChunkFramer())
        self._transports.add(transport)
        try:
            await transport.start(command)
        except SpawnError as error:
            self._transports.discard(transport)
            raise Fault(spawn_failure(error)) from error
        except BaseException:
            self._transports.discard(transport)
            raise
        return AgentSession(turn, self._spec.dialect(), transport)

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        assert isinstance(session.transport, ChildTransport)
        try:
            await session.transport.release(finished=finished)
        finally:
            self._transports.discard(session.transport)

    def models(self) -> tuple[AgentModel, ...]:
        return self._spec.models

    async def ask_limits(self) -> None:
        """Does nothing: a child reports the account's limits only during its turn."""

    def processes(self) -> ProcessCounts:
        """Returns the number of running children, all of which count as busy."""
        return ProcessCounts(busy=len(self._transports))

    def trouble(self) -> Failure | None:
        """Returns the failure if the program or its working folder does not exist; None if both exist."""
        try:
            find_program(self._spec.command(ANY_TURN))
        except SpawnError as error:
            return spawn_failure(error)
        return None

    async def close(self) -> None:
        await asyncio.gather(*(transport.release(finished=False) for transport in list(self._transports)))

    def kill(self) -> None:
        for transport in list(self._transports):
            transport.kill()
