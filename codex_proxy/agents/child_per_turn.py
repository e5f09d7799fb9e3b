"""The agent that starts a child for each turn. What the child is and how it is read is a `ChildSpec`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from codex_proxy.agents.agent import ProcessCounts
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
    """What to start for a turn, and who reads it."""

    name: str
    version: str
    command: Callable[[Turn], Command]
    dialect: Callable[[], Dialect[bytes]]
    """A new dialect for each turn. It is given what the child prints, in pieces as `reads` says."""
    capabilities: frozenset[Capability]
    models: tuple[AgentModel, ...]
    any_model: bool
    """Any model name is accepted: `models` is not all there is."""
    off: Mapping[str, tuple[str, ...]] = {}
    """What another release of the program could do besides, and what this one lacks for it, by name."""
    reads: Literal["lines", "chunks"] = "lines"
    """`lines`: whole lines without their ends; `chunks`: bytes as they come, for text that is shown as it grows."""


ANY_TURN = Turn(model="", history=())
"""One without a wish for itself."""


class ChildPerTurnAgent:
    """An `Agent`. Nothing is kept between turns."""

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
        """Nothing to warm: a child lives for one turn."""

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
        """Cannot be asked: a child tells with its turn."""

    def processes(self) -> ProcessCounts:
        """A child that runs has a turn: it ends with it, and none is started in its place."""
        return ProcessCounts(busy=len(self._transports))

    def trouble(self) -> Failure | None:
        """Looks for the program and the folder, as a start would."""
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
