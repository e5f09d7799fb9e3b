"""The interface of an agent."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextvars import ContextVar
from types import MappingProxyType
from typing import Final, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from codex_proxy.agents.sessions.account_limits import NewestLimits
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.account import AgentModel
from codex_proxy.core.events import TurnElsewhere
from codex_proxy.core.faults import Failure
from codex_proxy.core.options import Capability
from codex_proxy.core.own_tools import OwnTools
from codex_proxy.core.turn import MODEL_SEPARATOR, Turn

TRACE_HEADERS: Final[ContextVar[Mapping[str, str]]] = ContextVar(
    "trace_headers", default=MappingProxyType({})
)
"""The headers by which a model server continues the turn's trace."""


class ProcessCounts(msgspec.Struct, frozen=True):
    idle: int = 0
    busy: int = 0
    restarts: int = 0
    """Processes that ended unexpectedly and were replaced."""


class ProcessFacts(msgspec.Struct, frozen=True):
    pid: int
    turns_running: int
    turns_served: int
    memory: int
    """Resident bytes; 0: not known."""


class Agent(Protocol):
    """What the server needs of an agent. `start` must return before the first `open`."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str:
        """The version of the agent's program; empty for a model server."""

    @property
    def capabilities(self) -> frozenset[Capability]: ...

    @property
    def own_tools(self) -> OwnTools:
        """What the agent keeps of a turn's `Toolset`."""

    @property
    def sessions_are_fixed(self) -> bool:
        """Whether a session that the agent stores keeps the instructions and the client's tools of its first turn."""

    @property
    def resume_command(self) -> str:
        """The command that opens a session that the agent stores in its own terminal program, if the session's id is
        put behind it; empty if there is none.
        """

    @property
    def missing_features(self) -> Mapping[str, tuple[str, ...]]:
        """Features that this release lacks, each with what is missing in its protocol."""

    @property
    def warning(self) -> str:
        """Tells the operator that the agent does less, or is confined less, than its settings suggest; else empty."""

    @property
    def limits(self) -> NewestLimits: ...

    @property
    def members(self) -> Mapping[str, Agent]:
        """The agents that this one combines, by name, the default one first; empty for a single agent."""

    @property
    def any_model(self) -> bool:
        """Whether every model name is accepted, because only the provider knows which exist."""

    async def start(self) -> None:
        """Finds program and models, and starts the processes that are kept ready. Raises `Fault`."""

    async def open(self, turn: Turn) -> AgentSession:
        """Returns a new session; the caller then calls its `begin`. Raises `Fault`."""

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        """Ends the use of a session. `finished` False: the agent may still work on the turn, so its process gets no
        other turn.
        """

    async def turns_elsewhere(self, id: str, conversation: str, known: str) -> tuple[TurnElsewhere, ...]:
        """Returns the turns that other programs have run on a stored session of a conversation since its last turn here
        and the turn `known`, oldest first; empty if the agent cannot tell. Raises `Fault`.
        """

    async def fork_session(self, id: str, turn: Turn) -> str:
        """Has the agent copy a session that it has stored and on which no turn goes on, where it would run `turn`: in
        its folder and sandbox. Returns the copy's id; empty if the agent cannot copy it. Raises `Fault`.
        """

    async def delete_session(self, id: str) -> None:
        """Deletes a session that the agent has stored for a turn (`Turn.stored_session`), if it is still there. Raises
        `Fault`: CONFLICT while another program uses it.
        """

    def models(self) -> tuple[AgentModel, ...]:
        """Returns the models that clients can use now: the same object while they do not change."""

    async def ask_limits(self) -> None:
        """Waits until `limits` is updated, or for a while."""

    def processes(self) -> ProcessCounts:
        """Counts the processes; all are 0 for a model server."""

    def each_process(self) -> tuple[ProcessFacts, ...]:
        """Describes each process. Reads files of the system: not for every turn."""

    def trouble(self) -> Failure | None:
        """Returns the failure with which a turn would end now, if known: for example, nobody is signed in."""

    async def close(self) -> None: ...

    def kill(self) -> None:
        """Kills all processes, without waiting."""


class AgentBase:
    """An agent without missing features, limits and processes. A subclass overrides what differs."""

    version = ""
    any_model = False
    own_tools = OwnTools()
    sessions_are_fixed = True
    resume_command = ""
    missing_features: Mapping[str, tuple[str, ...]] = {}
    members: Mapping[str, Agent] = {}

    def __init__(self) -> None:
        self.limits = NewestLimits()

    @property
    def warning(self) -> str:
        return ""

    async def start(self) -> None: ...

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        await session.transport.release(finished=finished)

    async def turns_elsewhere(self, id: str, conversation: str, known: str) -> tuple[TurnElsewhere, ...]:
        return ()

    async def fork_session(self, id: str, turn: Turn) -> str:
        return ""

    async def delete_session(self, id: str) -> None: ...

    async def ask_limits(self) -> None: ...

    def processes(self) -> ProcessCounts:
        return ProcessCounts()

    def each_process(self) -> tuple[ProcessFacts, ...]:
        return ()

    def trouble(self) -> Failure | None:
        return None

    def kill(self) -> None: ...


class AgentInFront(ABC):
    """An agent that forwards to another agent everything that a subclass does not override. While there is no other
    agent, the answers are empty.
    """

    members: Mapping[str, Agent] = {}

    def __init__(self) -> None:
        self._no_limits = NewestLimits()

    @property
    @abstractmethod
    def _agent(self) -> Agent | None: ...

    @property
    def own_tools(self) -> OwnTools:
        return OwnTools() if self._agent is None else self._agent.own_tools

    @property
    def sessions_are_fixed(self) -> bool:
        return self._agent is None or self._agent.sessions_are_fixed

    @property
    def resume_command(self) -> str:
        return "" if self._agent is None else self._agent.resume_command

    @property
    def missing_features(self) -> Mapping[str, tuple[str, ...]]:
        return {} if self._agent is None else self._agent.missing_features

    @property
    def warning(self) -> str:
        return "" if self._agent is None else self._agent.warning

    @property
    def limits(self) -> NewestLimits:
        return self._no_limits if self._agent is None else self._agent.limits

    def models(self) -> tuple[AgentModel, ...]:
        return () if self._agent is None else self._agent.models()

    async def turns_elsewhere(self, id: str, conversation: str, known: str) -> tuple[TurnElsewhere, ...]:
        return () if self._agent is None else await self._agent.turns_elsewhere(id, conversation, known)

    async def fork_session(self, id: str, turn: Turn) -> str:
        return "" if self._agent is None else await self._agent.fork_session(id, turn)

    async def delete_session(self, id: str) -> None:
        if self._agent is not None:
            await self._agent.delete_session(id)

    async def ask_limits(self) -> None:
        if self._agent is not None:
            await self._agent.ask_limits()

    def processes(self) -> ProcessCounts:
        return ProcessCounts() if self._agent is None else self._agent.processes()

    def each_process(self) -> tuple[ProcessFacts, ...]:
        return () if self._agent is None else self._agent.each_process()

    def trouble(self) -> Failure | None:
        return None if self._agent is None else self._agent.trouble()

    async def close(self) -> None:
        if self._agent is not None:
            await self._agent.close()

    def kill(self) -> None:
        if self._agent is not None:
            self._agent.kill()


BreakerState: TypeAlias = Literal["closed", "open", "half-open"]


@runtime_checkable
class UpstreamState(Protocol):
    """What an agent for an upstream (a model server) also reports."""

    @property
    def breaker_state(self) -> BreakerState:
        """The circuit breaker's state; while it is open, nothing is sent."""

    @property
    def attempts(self) -> Mapping[str, int]:
        """Number of ended requests by outcome: `answered`, `failed`, or `left` (by the client)."""


def agent_for(agent: Agent, model: str) -> Agent:
    """Returns the member named before the `/` of the model, or the first; a single agent itself."""
    if not agent.members:
        return agent
    found = agent.members.get(model.partition(MODEL_SEPARATOR)[0])
    return found if found is not None else next(iter(agent.members.values()))


def all_agents(agent: Agent) -> tuple[Agent, ...]:
    return tuple(agent.members.values()) or (agent,)
