"""What a run needs of an agent, whichever it is: a session for each turn, and how the agent is doing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import msgspec

from codex_proxy.agents.base import Capability
from codex_proxy.agents.newest_limits import NewestLimits
from codex_proxy.agents.session import AgentSession
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure
from codex_proxy.core.turn import Turn


class ProcessCounts(msgspec.Struct, frozen=True):
    """An agent's processes at this moment, and how many it has had to start again."""

    idle: int = 0
    busy: int = 0
    restarts: int = 0
    """Processes that ended by themselves and were replaced, since the server started."""


class Agent(Protocol):
    """One kind of agent, ready to take turns once `start` has returned."""

    name: str
    version: str
    capabilities: frozenset[Capability]
    off: Mapping[str, tuple[str, ...]]
    """What another release of its program could do besides, and what this one lacks for it, by name."""
    limits: NewestLimits
    """What it has told of its account's limits."""

    @property
    def any_model(self) -> bool:
        """The provider judges model names, so none is unknown here."""
        ...

    async def start(self) -> None:
        """Finds out what there is and warms what is kept warm. A `Fault` where the agent cannot work."""
        ...

    async def open(self, turn: Turn) -> AgentSession:
        """A session for a turn, which has not begun. Raises `Fault` where there is none to be had."""
        ...

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        """Gives back what a session has used; `finished`: the agent itself has said that the turn is over."""
        ...

    def models(self) -> tuple[AgentModel, ...]:
        """Those that there are now."""
        ...

    async def ask_limits(self) -> None:
        """Returns when `limits` is as new as can be had without a turn, or cannot be."""
        ...

    def processes(self) -> ProcessCounts:
        """How many processes it has, for the metrics; none where it works over the network."""
        ...

    def trouble(self) -> Failure | None:
        """Why a turn would not work just now, as far as is known without trying."""
        ...

    async def close(self) -> None:
        """Ends every child, or closes every connection, and returns when they are gone."""
        ...

    def kill(self) -> None:
        """Ends every child at once, without waiting."""
        ...
