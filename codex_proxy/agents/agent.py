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
"""Separates the agent's name from the model's in `NAME/MODEL`, if the server has several agents."""


class ProcessCounts(msgspec.Struct, frozen=True):
    """How many processes an agent has now, and how many it has had to restart."""

    idle: int = 0
    busy: int = 0
    restarts: int = 0
    """Processes that ended unexpectedly and were replaced, since the server started."""


class Agent(Protocol):
    """The interface of an agent, such as Codex or Claude Code. It takes turns once `start` has returned."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """The release of the agent's program; empty for a model server, which tells none."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def off(self) -> Mapping[str, tuple[str, ...]]:
        """Capabilities that this release of the agent's program lacks, each with the names of what is missing in its
        protocol."""
        ...

    @property
    def warning(self) -> str:
        """One or two sentences for the banner, the log and /healthz if the agent does less than the operator may
        expect; else empty.
        """
        ...

    @property
    def limits(self) -> NewestLimits:
        """The newest limits of the user's account that the agent has reported."""
        ...

    @property
    def members(self) -> Mapping[str, Agent]:
        """The agents that this object combines, by name, the default one first; empty for a single agent. The other
        properties are about all of them together; `serving` returns the agent of one model.
        """
        ...

    @property
    def any_model(self) -> bool:
        """Whether any model name is accepted, because only the provider knows which ones exist."""
        ...

    async def start(self) -> None:
        """Finds the agent's program and its models, and starts the processes that it keeps ready. Raises `Fault` if
        the agent cannot work.
        """
        ...

    async def open(self, turn: Turn) -> AgentSession:
        """Returns a session for the turn, which has yet to be begun. Raises `Fault` if there can be none."""
        ...

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        """Takes a session back. `finished`: the agent has reported the end of the turn, so that its process can be
        reused.
        """
        ...

    def models(self) -> tuple[AgentModel, ...]:
        """Returns the models that can be asked for now."""
        ...

    async def ask_limits(self) -> None:
        """Asks the agent for its account's limits. Returns when `limits` has the answer, or when none will come."""
        ...

    def processes(self) -> ProcessCounts:
        """Counts the agent's processes for the metrics. Zero where it works over the network."""
        ...

    def trouble(self) -> Failure | None:
        """Returns the failure that a turn would end with now, as far as is known without running one; None if none
        is known.
        """
        ...

    async def close(self) -> None:
        """Ends every process, or closes every connection. Returns when they are gone."""
        ...

    def kill(self) -> None:
        """Kills every process at once, and does not wait for their ends."""
        ...


@runtime_checkable
class UpstreamState(Protocol):
    """The state of an agent that is an upstream, for health reports and metrics."""

    @property
    def breaker_state(self) -> Literal["closed", "open", "half-open"] | None:
        """The state of the circuit breaker: while it is open, after several failures in a row, no attempts are
        made. None if the agent is not an upstream.
        """
        ...

    @property
    def attempts(self) -> Mapping[str, int]:
        """The number of attempts that have ended, by outcome."""
        ...


def serving(agent: Agent, model: str) -> Agent:
    """Returns the agent that runs turns for a model. If there are several, it is the one that the model's name
    begins with, or the first one if it begins with no agent's name.
    """
    if not agent.members:
        return agent
    found = agent.members.get(model.partition(SEPARATOR)[0])
    return found if found is not None else next(iter(agent.members.values()))


def each_of(agent: Agent) -> tuple[Agent, ...]:
    """Returns the members of an agent, or the agent itself if it has none."""
    return tuple(agent.members.values()) or (agent,)
