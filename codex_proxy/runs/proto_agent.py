"""The agents that take one child per turn: `codex-proto`, and the fake agent in that dialect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from codex_proxy.agents.base import Capability, Dialect
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.models import AgentModel
from codex_proxy.core.turn import Turn
from codex_proxy.process.child import Command, SpawnError
from codex_proxy.process.launch import find_program
from codex_proxy.runs.account_limits import ToldLimits
from codex_proxy.runs.agent import Opened
from codex_proxy.runs.child_lane import ChildLane


class ProtoChildren(msgspec.Struct, frozen=True):
    """What to start for a turn, and who reads it."""

    name: str
    version: str
    command: Callable[[Turn], Command]
    dialect: Callable[[], Dialect[bytes]]
    capabilities: frozenset[Capability]
    models: tuple[AgentModel, ...]
    any_model: bool


ANY_TURN = Turn(model="", history=())
"""One without a wish for itself."""


class ProtoAgent:
    """An `Agent`. Nothing is kept between turns."""

    def __init__(self, children: ProtoChildren) -> None:
        self.name = children.name
        self.version = children.version
        self.capabilities = children.capabilities
        self.any_model = children.any_model
        self._children = children
        self._lanes: set[ChildLane] = set()
        self.limits = ToldLimits()

    async def start(self) -> None:
        """Nothing to warm: a child lives for one turn."""

    async def open(self, turn: Turn) -> Opened:
        lane = ChildLane()
        self._lanes.add(lane)
        try:
            await lane.start(self._children.command(turn))
        except SpawnError as error:
            self._lanes.discard(lane)
            raise Fault(_failure(error)) from error
        except BaseException:
            self._lanes.discard(lane)
            raise
        return Opened(turn, self._children.dialect(), lane)

    async def release(self, opened: Opened, *, settled: bool) -> None:
        assert isinstance(opened.lane, ChildLane)
        try:
            await opened.lane.release(settled=settled)
        finally:
            self._lanes.discard(opened.lane)

    def models(self) -> tuple[AgentModel, ...]:
        return self._children.models

    async def ask_limits(self) -> None:
        """Cannot be asked: a child tells with its turn."""

    def trouble(self) -> Failure | None:
        """Looks for the program and the folder, as a start would."""
        try:
            find_program(self._children.command(ANY_TURN))
        except SpawnError as error:
            return _failure(error)
        return None

    async def close(self) -> None:
        await asyncio.gather(*(lane.release(settled=False) for lane in list(self._lanes)))

    def kill(self) -> None:
        for lane in list(self._lanes):
            lane.kill()


def _failure(error: SpawnError) -> Failure:
    kind = FaultKind.UNAVAILABLE if error.temporary else FaultKind.SPAWN_FAILED
    return Failure(kind=kind, message=str(error))
