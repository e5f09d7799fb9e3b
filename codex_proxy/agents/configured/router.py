"""Combines several agents into one, which passes each turn to the agent that has its model (`NAME/MODEL`; it gets
MODEL). Content that only one agent can decrypt is marked.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Generic, TypeVar
from weakref import WeakKeyDictionary

import msgspec
import structlog

from codex_proxy import __version__
from codex_proxy.agents.agent import Agent, AgentBase, AgentInFront, ProcessCounts, ProcessFacts
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.agents.shared.history_items import OriginMarks
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault, FaultKind, misconfigured
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.options import Capability
from codex_proxy.core.turn import MODEL_SEPARATOR, Turn

Listed = tuple[tuple[AgentModel, ...], ...]


class AgentRouter(AgentBase):
    """The first member is the default. A model without a member's name must be in the list of models."""

    name = "several"
    version = __version__

    def __init__(self, members: Mapping[str, Agent], *, defaults: Mapping[str, str] | None = None) -> None:
        """`defaults`: the default models that the operator has set for members."""
        super().__init__()
        self.members = dict(members)
        self._defaults = defaults or {}
        self._listed: Listed = ()
        self._models: tuple[AgentModel, ...] = ()
        self._member_of_session: WeakKeyDictionary[AgentSession, Agent] = WeakKeyDictionary()

    @property
    def capabilities(self) -> frozenset[Capability]:
        """The capabilities of all members; `agent_for` returns the member for a model."""
        return frozenset().union(*(member.capabilities for member in self.members.values()))

    async def start(self) -> None:
        """Starts the members. Raises `Fault` only if none could start; their `trouble` says why."""
        starts = await asyncio.gather(
            *(member.start() for member in self.members.values()), return_exceptions=True
        )
        faults = {}
        for name, result in zip(self.members, starts, strict=True):
            if isinstance(result, Fault):
                faults[name] = result.failure.message
            elif isinstance(result, BaseException):
                raise result
        if len(faults) == len(self.members):
            reasons = "; ".join(f"{name}: {message}" for name, message in faults.items())
            raise misconfigured(f"None of the agents can start. {reasons}")

    async def open(self, turn: Turn) -> AgentSession:
        name, model = self._agent_and_model(turn.model)
        member = self.members[name]
        session = await member.open(msgspec.structs.replace(turn, model=model))
        self._member_of_session[session] = member
        return session

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        await self._member_of_session.pop(session).release(session, finished=finished)

    def models(self) -> tuple[AgentModel, ...]:
        """Returns all models as `NAME/MODEL`: the same object while they are unchanged."""
        listed = tuple(member.models() for member in self.members.values())
        if len(listed) != len(self._listed) or any(
            new is not old for new, old in zip(listed, self._listed, strict=True)
        ):
            first = next(iter(self.members))
            self._models = tuple(
                self._with_full_name(name, model, is_default=name == first)
                for name, models in zip(self.members, listed, strict=True)
                for model in models
            )
            self._listed = listed
        return self._models

    def _with_full_name(self, name: str, model: AgentModel, *, is_default: bool) -> AgentModel:
        default = self._defaults.get(name)
        own = model.is_default if default is None else model.id == default
        return msgspec.structs.replace(
            model, id=f"{name}{MODEL_SEPARATOR}{model.id}", agent=name, is_default=is_default and own
        )

    async def ask_limits(self) -> None:
        await asyncio.gather(*(member.ask_limits() for member in self.members.values()))

    def processes(self) -> ProcessCounts:
        counts = [member.processes() for member in self.members.values()]
        return ProcessCounts(
            idle=sum(each.idle for each in counts),
            busy=sum(each.busy for each in counts),
            restarts=sum(each.restarts for each in counts),
        )

    def each_process(self) -> tuple[ProcessFacts, ...]:
        return tuple(process for member in self.members.values() for process in member.each_process())

    def trouble(self) -> Failure | None:
        troubles = [member.trouble() for member in self.members.values()]
        return troubles[0] if None not in troubles else None

    async def close(self) -> None:
        await asyncio.gather(*(member.close() for member in self.members.values()))

    def kill(self) -> None:
        for member in self.members.values():
            member.kill()

    def _agent_and_model(self, model: str) -> tuple[str, str]:
        name, _, own = model.partition(MODEL_SEPARATOR)
        if name not in self.members:
            name, own = next(iter(self.members)), model
        return name, own or self._defaults.get(name, "")


class AgentSlot(AgentInFront):
    """One member, whose `Agent` is made when the server starts."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Awaitable[Agent]],
        clock: Clock,
        *,
        capabilities: frozenset[Capability] = frozenset(),
    ) -> None:
        """`make` returns the actual agent, not yet started, or raises `Fault`. Until it has started, `capabilities` are
        reported.
        """
        super().__init__()
        self.name = name
        self._make = make
        self._late = LateStart(name, self._start, clock)
        self._declared = capabilities
        self._marks = OriginMarks(name)

    async def _start(self) -> Agent:
        agent = await self._make()
        try:
            await agent.start()
        except BaseException:
            await agent.close()
            raise
        return agent

    # --- what it is -----------------------------------------------------------------------------

    @property
    def _agent(self) -> Agent | None:
        return self._late.value

    @property
    def version(self) -> str:
        return "" if self._agent is None else self._agent.version

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._declared if self._agent is None else self._agent.capabilities

    @property
    def any_model(self) -> bool:
        """True until the agent has started, since its models are not known."""
        return self._agent is None or self._agent.any_model

    def trouble(self) -> Failure | None:
        return self._late.failure if self._agent is None else self._agent.trouble()

    # --- from its start to its end --------------------------------------------------------------

    async def start(self) -> None:
        """Starts the agent. Raises `Fault`, which `trouble` then returns."""
        await self._late.start()

    async def open(self, turn: Turn) -> AgentSession:
        agent = await self._late.for_turn()
        history = self._marks.unmark(turn.history)
        session = await agent.open(msgspec.structs.replace(turn, history=history))
        session.origin = self._marks
        return session

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        assert self._agent is not None
        await self._agent.release(session, finished=finished)


log = structlog.get_logger(__name__)

RETRY_START_SECONDS: Final = 30.0

T = TypeVar("T")


class LateStart(Generic[T]):
    """Makes and starts a value without ending the server if that fails: the first turn after 30 seconds tries again."""

    def __init__(self, name: str, make: Callable[[], Awaitable[T]], clock: Clock) -> None:
        """`make` returns the value, started, or raises `Fault`."""
        self.value: T | None = None
        self.failure: Failure | None = None
        self._name = name
        self._make = make
        self._clock = clock
        self._failed_at = 0.0
        self._lock = asyncio.Lock()

    async def start(self) -> T:
        """Makes the value, unless it exists. Raises `Fault` if that fails, which is also logged."""
        async with self._lock:
            if self.value is not None:
                return self.value
            try:
                self.value = await self._make()
            except Fault as fault:
                self.failure = fault.failure
            except Exception as error:
                log.exception("agent_internal_error", agent=self._name)
                message = (
                    f"The agent {self._name} cannot start ({type(error).__name__}). The server's log "
                    "has the reason."
                )
                self.failure = Failure(FaultKind.INTERNAL, message)
            else:
                self.failure = None
                return self.value
            self._failed_at = self._clock.monotonic()
            log.warning("agent_not_started", agent=self._name, reason=self.failure.unquoted)
            raise Fault(self.failure)

    async def for_turn(self) -> T:
        """Makes the value, unless it exists or has just failed. Raises `Fault` (UNAVAILABLE)."""
        if self.value is None and self._clock.monotonic() - self._failed_at >= RETRY_START_SECONDS:
            with contextlib.suppress(Fault):
                await self.start()
        if self.value is not None:
            return self.value
        why = "" if self.failure is None else f" {self.failure.message}"
        message = f"The agent {self._name} could not be started.{why}"
        quoted = "" if self.failure is None else self.failure.quoted
        raise Fault(Failure(FaultKind.UNAVAILABLE, message, retry_after=RETRY_START_SECONDS, quoted=quoted))
