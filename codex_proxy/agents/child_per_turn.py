"""An agent that starts one child for each turn. A `ChildSpec` says what to start and which dialect reads it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from codex_proxy.agents.agent import Agent, ProcessCounts
from codex_proxy.agents.base import Capability, Dialect
from codex_proxy.agents.child_transport import ChildTransport
from codex_proxy.agents.lines import Chunks, LineFramer
from codex_proxy.agents.newest_limits import NewestLimits
from codex_proxy.agents.session import AgentSession
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.turn import Turn
from codex_proxy.process.child import Command, SpawnError
from codex_proxy.process.launch import find_program


class ChildSpec(msgspec.Struct, frozen=True):
    """What to start for a turn, and the dialect that reads it."""

    name: str
    version: str
    command: Callable[[Turn], Command]
    dialect: Callable[[], Dialect[bytes]]
    """Makes a new dialect for each turn. `reads` says in which pieces it gets what the child prints."""
    capabilities: frozenset[Capability]
    models: tuple[AgentModel, ...]
    any_model: bool
    """Any model name is accepted, not only those in `models`."""
    off: Mapping[str, tuple[str, ...]] = {}
    """Capabilities that this release of the program lacks, each with the names of what is missing in its protocol."""
    reads: Literal["lines", "chunks"] = "lines"
    """`lines`: whole lines without line ends. `chunks`: bytes as they arrive, for plain text that is shown as it
    grows."""


ANY_TURN = Turn(model="", history=())
"""A turn without content, to ask what a child would be started with."""


class ChildPerTurnAgent:
    """An `Agent` that keeps no process between turns."""

    members: Mapping[str, Agent] = {}

    def __init__(self, spec: ChildSpec) -> None:
        self.name = spec.name
        self.version = spec.version
        self.capabilities = spec.capabilities
        self.off: Mapping[str, tuple[str, ...]] = spec.off
        self.any_model = spec.any_model
        self._spec = spec
        self._transports: set[ChildTransport] = set()
        self.limits = NewestLimits()

    async def start(self) -> None:
        """Does nothing: no process is started before its turn."""

    async def open(self, turn: Turn) -> AgentSession:
        transport = ChildTransport(LineFramer() if self._spec.reads == "lines" else Chunks())
        self._transports.add(transport)
        try:
            await transport.start(self._spec.command(turn))
        except SpawnError as error:
            self._transports.discard(transport)
            raise Fault(_failure(error)) from error
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
        """Does nothing: a child reports limits only during its turn."""

    def processes(self) -> ProcessCounts:
        """Counts the children, each of which is busy with a turn."""
        return ProcessCounts(busy=len(self._transports))

    def trouble(self) -> Failure | None:
        """Returns the fault of a program or a folder that is missing; None where both are there."""
        try:
            find_program(self._spec.command(ANY_TURN))
        except SpawnError as error:
            return _failure(error)
        return None

    async def close(self) -> None:
        await asyncio.gather(*(transport.release(finished=False) for transport in list(self._transports)))

    def kill(self) -> None:
        for transport in list(self._transports):
            transport.kill()


def _failure(error: SpawnError) -> Failure:
    kind = FaultKind.UNAVAILABLE if error.temporary else FaultKind.SPAWN_FAILED
    return Failure(kind=kind, message=str(error))
