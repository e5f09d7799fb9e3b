"""The interface of an agent: it opens a session for each turn, and reports its models, limits, processes and faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, Protocol, runtime_checkable

import msgspec

from codex_proxy.agents.account_limits import NewestLimits
from codex_proxy.agents.base import Capability
from codex_proxy.agents.session import AgentSession
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure
from codex_proxy.core.turn import Turn

SEPARATOR: Final = "/"
"""Between the name of one agent of several and its own name of the model: `NAME/MODEL`."""


class ProcessCounts(msgspec.Struct, frozen=True):
    """How many processes an agent has now, and how many it has had to restart."""

    idle: int = 0
    busy: int = 0
    restarts: int = 0
    """Processes that ended unexpectedly and were replaced, since the server started."""


class Agent(Protocol):
    """An agent of one kind. It takes turns once `start` has returned."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def off(self) -> Mapping[str, tuple[str, ...]]:
        """Capabilities that this release of the agent's program lacks, each with the names of what is missing in its
        protocol."""
        ...

    @property
    def warning(self) -> str:
        """What the operator must know all the time, because the agent serves less than they may expect: one or two
        sentences for the banner, the log and /healthz. Empty where there is nothing."""
        ...

    @property
    def limits(self) -> NewestLimits:
        """The newest limits of the user's account that the agent has reported."""
        ...

    @property
    def members(self) -> Mapping[str, Agent]:
        """The agents that this one holds, by name, the default one first; empty for a single agent. For what one
        model can do, use the agent that `serving` returns: the properties here cover all of them together."""
        ...

    @property
    def any_model(self) -> bool:
        """Whether any model name is accepted, because only the provider knows which ones exist."""
        ...

    async def start(self) -> None:
        """Finds the agent's program and its models, and starts the processes that are kept warm. Raises `Fault` where
        the agent cannot work."""
        ...

    async def open(self, turn: Turn) -> AgentSession:
        """Returns a session for the turn, which has not begun yet. Raises `Fault` where none can be had."""
        ...

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        """Takes a session back. `finished`: the agent itself has said that the turn is over, so that its process can
        be reused."""
        ...

    def models(self) -> tuple[AgentModel, ...]:
        """Returns the models that can be asked for now."""
        ...

    async def ask_limits(self) -> None:
        """Asks the agent for its account's limits; returns when `limits` holds the answer, or when there will be
        none."""
        ...

    def processes(self) -> ProcessCounts:
        """Counts the agent's processes for the metrics. Zero where it works over the network."""
        ...

    def trouble(self) -> Failure | None:
        """Returns the fault with which a turn would fail now, as far as is known without trying; None where none is
        known."""
        ...

    async def close(self) -> None:
        """Ends every process, or closes every connection. Returns when they are gone."""
        ...

    def kill(self) -> None:
        """Kills every process at once, and does not wait for their ends."""
        ...


@runtime_checkable
class UpstreamState(Protocol):
    """The state of an agent that is one of several upstreams, for health reports and metrics."""

    @property
    def breaker_state(self) -> Literal["closed", "open", "half-open"] | None:
        """The state of its breaker: while that is open, after several failures in a row, no attempt is made. None if
        the agent is no upstream."""
        ...

    @property
    def attempts(self) -> Mapping[str, int]:
        """The number of attempts that have ended, by outcome."""
        ...


def serving(agent: Agent, model: str) -> Agent:
    """The agent that takes turns for a model: of several the one that the model's name begins with, or the first where
    it begins with none; otherwise the agent itself."""
    if not agent.members:
        return agent
    found = agent.members.get(model.partition(SEPARATOR)[0])
    return found if found is not None else next(iter(agent.members.values()))


def each_of(agent: Agent) -> tuple[Agent, ...]:
    """The agents that it holds, or itself."""
    return tuple(agent.members.values()) or (agent,)
