"""The interface of an agent: it opens a session for each turn, and reports its models, limits, processes and
faults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, Protocol, runtime_checkable

import msgspec

from codex_proxy.agents.dialect import Capability
from codex_proxy.agents.processes.account_limits import NewestLimits
from codex_proxy.agents.processes.session import AgentSession
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure
from codex_proxy.core.turn import MODEL_SEPARATOR, Turn


class ProcessCounts(msgspec.Struct, frozen=True):
    """The number of an agent's processes without and with a running turn, and of those it has replaced."""

    idle: int = 0
    busy: int = 0
    restarts: int = 0
    """Processes that ended unexpectedly and were replaced, since the server started."""


class ProcessFacts(msgspec.Struct, frozen=True):
    """One process of an agent, with the turns that run on it, and those that it has had."""

    pid: int
    turns_running: int
    turns_served: int
    memory: int
    """The resident memory in bytes; 0 if it is not known."""


class Agent(Protocol):
    """The interface of an agent, such as Codex, Claude Code or a model server. `start` must return before the first
    `open`.
    """

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """The release of the agent's program; empty for a model server, which has no program here."""
        ...

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def missing_features(self) -> Mapping[str, tuple[str, ...]]:
        """The features that this release of the agent's program lacks, each with the names of what is missing in
        its protocol for it.
        """
        ...

    @property
    def warning(self) -> str:
        """Text for the operator if the agent does less, or is confined less, than its settings suggest; empty if not.
        It is printed at the start, logged, and in /healthz.
        """
        ...

    @property
    def limits(self) -> NewestLimits:
        """The newest limits of the user's account that the agent has reported."""
        ...

    @property
    def members(self) -> Mapping[str, Agent]:
        """The agents that this object combines, by name, the default one first; empty if it is a single agent. The
        other properties are those of all members together.
        """
        ...

    @property
    def any_model(self) -> bool:
        """Whether every model name is accepted, because only the provider knows which models exist."""
        ...

    async def start(self) -> None:
        """Finds the agent's program and its models, and starts the processes that it keeps ready. Raises `Fault` if
        the agent cannot work.
        """
        ...

    async def open(self, turn: Turn) -> AgentSession:
        """Returns a new session for the turn; the caller then starts the turn with the session's `begin`. Raises
        `Fault` if the session cannot be opened.
        """
        ...

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        """Ends the use of a session that `open` returned. `finished`: whether the agent has ended the turn; if not, the
        process gets no further turns.
        """
        ...

    def models(self) -> tuple[AgentModel, ...]:
        """Returns the models that clients can use now. The same object as long as they do not change."""
        ...

    async def ask_limits(self) -> None:
        """Asks the agent for the limits of the user's account, and waits until `limits` has been updated, or the agent
        does not answer in time or cannot report them.
        """
        ...

    def processes(self) -> ProcessCounts:
        """Returns the number of the agent's processes; all 0 for an agent without processes, such as a model
        server.
        """
        ...

    def each_process(self) -> tuple[ProcessFacts, ...]:
        """Returns the agent's processes. Reads files of the system for each, so do not use it for every turn."""
        ...

    def trouble(self) -> Failure | None:
        """Returns the failure with which a turn would end now, if it is known without running one (nobody is signed
        in); or None.
        """
        ...

    async def close(self) -> None:
        """Ends every process, or closes every connection. Returns when they are gone."""
        ...

    def kill(self) -> None:
        """Kills every process at once, and does not wait until they have ended."""
        ...


class AgentBase:
    """The common part of agents: a single one, which lacks nothing, reports no limits and keeps no processes. A
    subclass implements the rest of `Agent`, and overrides what differs.
    """

    version = ""
    any_model = False
    missing_features: Mapping[str, tuple[str, ...]] = {}
    members: Mapping[str, Agent] = {}

    def __init__(self) -> None:
        self.limits = NewestLimits()

    @property
    def warning(self) -> str:
        return ""

    async def start(self) -> None:
        """Does nothing."""

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        await session.transport.release(finished=finished)

    async def ask_limits(self) -> None:
        """Does nothing."""

    def processes(self) -> ProcessCounts:
        return ProcessCounts()

    def each_process(self) -> tuple[ProcessFacts, ...]:
        return ()

    def trouble(self) -> Failure | None:
        return None

    def kill(self) -> None:
        """Does nothing. An agent with processes must override it."""


@runtime_checkable
class UpstreamState(Protocol):
    """The additional properties of an agent that is an upstream (a model server that this server calls over HTTP),
    for health reports and metrics.
    """

    @property
    def breaker_state(self) -> Literal["closed", "open", "half-open"]:
        """The state of the upstream's circuit breaker, which is open after several failures in a row. While it is
        open, nothing is sent to the upstream.
        """
        ...

    @property
    def attempts(self) -> Mapping[str, int]:
        """The number of requests to the upstream that have ended, by outcome: `answered`, `failed`, or `left` (the
        client left before that).
        """
        ...


def agent_for(agent: Agent, model: str) -> Agent:
    """Returns the agent that serves a model: `agent` if it is a single one, else the member named before the `/` in the
    model's name, or the first member.
    """
    if not agent.members:
        return agent
    found = agent.members.get(model.partition(MODEL_SEPARATOR)[0])
    return found if found is not None else next(iter(agent.members.values()))


def all_agents(agent: Agent) -> tuple[Agent, ...]:
    """Returns the members of an agent that combines several, or `(agent,)` for a single agent."""
    return tuple(agent.members.values()) or (agent,)
