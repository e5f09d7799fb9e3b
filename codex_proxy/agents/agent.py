"""What a run needs of an agent, whichever it is: a lane and a dialect for a turn, and how it is doing."""

from __future__ import annotations

from typing import Any, Protocol

import msgspec

from codex_proxy.agents.base import Capability, Dialect
from codex_proxy.agents.lane import Lane, LaneReader
from codex_proxy.agents.newest_limits import NewestLimits
from codex_proxy.core.faults import Failure
from codex_proxy.core.models import AgentModel
from codex_proxy.core.turn import Turn, without_content


class Opened(msgspec.Struct, frozen=True):
    """A place for one turn. `turn` is the turn as the agent is to be given it."""

    turn: Turn
    dialect: Dialect[Any]
    lane: OpenedLane


def outline(opened: Opened) -> Opened:
    """What is needed to give it back: a thread that is kept must not keep what was said."""
    return msgspec.structs.replace(opened, turn=without_content(opened.turn))


class ProcessCounts(msgspec.Struct, frozen=True):
    """An agent's processes at this moment, and how many it has had to start again."""

    idle: int = 0
    busy: int = 0
    restarts: int = 0
    """Processes that ended by themselves and were replaced, since the server started."""


class OpenedLane(Lane, Protocol):
    def attach(self, reader: LaneReader) -> None:
        """Who is to hear what the child says; before anything is sent."""
        ...


class Agent(Protocol):
    """One kind of agent on this machine, ready to take turns once `start` has returned."""

    name: str
    version: str
    capabilities: frozenset[Capability]
    any_model: bool
    """The provider judges model names, so none is unknown here."""

    limits: NewestLimits
    """What it has told of its account's limits."""

    async def start(self) -> None:
        """Finds out what there is and warms what is kept warm. A `Fault` where the agent cannot work."""
        ...

    async def open(self, turn: Turn) -> Opened:
        """A place for a turn. A `Fault` where there is none."""
        ...

    async def release(self, opened: Opened, *, settled: bool) -> None:
        """The turn is over; `settled`: the agent has said so itself."""
        ...

    def models(self) -> tuple[AgentModel, ...]: ...

    async def ask_limits(self) -> None:
        """Returns when `limits` is as new as can be had without a turn, or cannot be."""
        ...

    def processes(self) -> ProcessCounts:
        """How many processes it has, for the metrics."""
        ...

    def trouble(self) -> Failure | None:
        """Why a turn would not work just now, as far as is known without trying."""
        ...

    async def close(self) -> None:
        """Ends every child, and returns when they are gone."""
        ...

    def kill(self) -> None:
        """Ends every child at once, without waiting."""
        ...
