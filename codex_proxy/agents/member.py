"""One agent of a server that may have several. The actual agent is created when the server starts; if that fails,
the other agents are not affected.

If an agent could not start, turns for it are refused with UNAVAILABLE; the first turn after 30 seconds tries to
start it again. If the agent is an upstream, this module also limits its concurrent turns and has its circuit
breaker.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, Literal, TypeAlias

import msgspec
import structlog

from codex_proxy.agents.account_limits import NewestLimits
from codex_proxy.agents.agent import Agent, ProcessCounts
from codex_proxy.agents.attempts import BLAMED
from codex_proxy.agents.breaker import Breaker, BreakerState
from codex_proxy.agents.dialect import Capability
from codex_proxy.agents.session import AgentSession
from codex_proxy.core.account import AgentModel
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.turn import Turn

log = structlog.get_logger(__name__)

RETRY_START_SECONDS: Final = 30.0
"""Seconds after which a turn tries again to start an agent that could not start."""

Outcome: TypeAlias = Literal["answered", "failed", "left"]
"""The outcome of an attempt: the upstream has `answered`, the attempt has `failed`, or the client has `left` before
that."""


class UpstreamNotAskedError(Fault):
    """This server refused an attempt without asking the upstream: its agent has not started, its breaker is open
    (both with the fault UNAVAILABLE), or too many turns are running (CONCURRENCY_EXCEEDED).
    """


class UpstreamRules(msgspec.Struct, frozen=True, kw_only=True):
    """The operator's limits for one upstream: retries, fallbacks, concurrency and the breaker."""

    retries: int = 0
    """How many times a failed attempt is repeated at this upstream."""
    retry_wait: float = 30.0
    """The longest `Retry-After`, in seconds, that is obeyed. If the upstream asks for a longer wait, the attempt is
    not repeated at this upstream.
    """
    fallback: tuple[tuple[str, str], ...] = ()
    """The upstreams to ask next, each with the name of its model. An empty name is the same model; if the upstream
    does not have it, its default model."""
    concurrency: int = 0
    """The most turns that run at the same time; 0 for no limit."""
    queue_wait: float = 30.0
    """The most seconds that a turn waits for another one to end, if the limit of `concurrency` is reached; then it
    is refused with CONCURRENCY_EXCEEDED.
    """
    breaker_failures: int = 0
    """The number of failures in a row after which the circuit breaker opens, so that the upstream gets no requests;
    0 for never.
    """
    breaker_seconds: float = 10.0
    """How many seconds the breaker stays open before one attempt may test the upstream."""


class Member:
    """One of the agents of a server, under the name that the operator gave it. It is an `Agent` itself: it creates
    the actual agent when it is started, and passes calls on to that.
    """

    members: Mapping[str, Agent] = {}
    """Empty: the agent contains no others."""

    def __init__(
        self,
        name: str,
        make: Callable[[], Awaitable[Agent]],
        clock: Clock,
        *,
        capabilities: frozenset[Capability] = frozenset(),
        rules: UpstreamRules | None = None,
        is_only_agent: bool = False,
    ) -> None:
        """`make` returns the actual agent; it raises `Fault` if it cannot. `capabilities` are reported until the
        agent has been created. `rules` are the limits for an upstream; None if the agent is not an upstream.
        `is_only_agent`: whether it is the only agent of its server, so that messages leave its name out.
        """
        self.name = name
        self.is_only_agent = is_only_agent
        self._title = "The model server" if is_only_agent else f"The model server '{name}'"
        self.rules = rules
        self.breaker = Breaker(
            rules.breaker_failures if rules else 0, rules.breaker_seconds if rules else 0.0
        )
        self.attempts: dict[Outcome, int] = {"answered": 0, "failed": 0, "left": 0}
        """The number of ended attempts by outcome, for the metrics."""
        self._make = make
        self._clock = clock
        self._declared = capabilities
        self._agent: Agent | None = None
        self._failure: Failure | None = None
        self._failed_at = 0.0
        self._starting = asyncio.Lock()
        self._no_limits = NewestLimits()
        limit = rules.concurrency if rules else 0
        self._slots = asyncio.Semaphore(limit) if limit else None

    @property
    def has_started(self) -> bool:
        """Whether the actual agent was created and started."""
        return self._agent is not None

    # --- what it is -----------------------------------------------------------------------------

    @property
    def version(self) -> str:
        return "" if self._agent is None else self._agent.version

    @property
    def capabilities(self) -> frozenset[Capability]:
        return self._declared if self._agent is None else self._agent.capabilities

    @property
    def missing_features(self) -> Mapping[str, tuple[str, ...]]:
        return {} if self._agent is None else self._agent.missing_features

    @property
    def warning(self) -> str:
        return "" if self._agent is None else self._agent.warning

    @property
    def limits(self) -> NewestLimits:
        return self._no_limits if self._agent is None else self._agent.limits

    @property
    def any_model(self) -> bool:
        """Whether any model name is accepted. True as long as the agent has not started, because its models are not
        known then.
        """
        return self._agent is None or self._agent.any_model

    @property
    def breaker_state(self) -> BreakerState | None:
        """The current state of the circuit breaker; None if the agent is not an upstream."""
        return None if self.rules is None else self.breaker.state(self._clock.monotonic())

    def models(self) -> tuple[AgentModel, ...]:
        return () if self._agent is None else self._agent.models()

    async def ask_limits(self) -> None:
        if self._agent is not None:
            await self._agent.ask_limits()

    def processes(self) -> ProcessCounts:
        return ProcessCounts() if self._agent is None else self._agent.processes()

    def trouble(self) -> Failure | None:
        if self._agent is None:
            return self._failure
        if self.breaker_state == "open":
            return self._left_alone()
        return self._agent.trouble()

    # --- from its start to its end --------------------------------------------------------------

    async def start(self) -> None:
        """Creates and starts the actual agent. Raises no `Fault`: a failure is logged, and `trouble` returns it."""
        async with self._starting:
            if self._agent is not None:
                return
            agent: Agent | None = None
            try:
                agent = await self._make()
                await agent.start()
            except Fault as fault:
                self._failure = fault.failure
            except Exception as error:
                log.exception("agent_broke", agent=self.name)
                message = (
                    f"The agent {self.name} cannot start ({type(error).__name__}). The server's log "
                    "has the reason."
                )
                self._failure = Failure(kind=FaultKind.INTERNAL, message=message)
            else:
                self._agent, self._failure = agent, None
                return
            self._failed_at = self._clock.monotonic()
            log.warning("agent_not_started", agent=self.name, reason=self._failure.unquoted)
            if agent is not None:
                await agent.close()

    async def close(self) -> None:
        if self._agent is not None:
            await self._agent.close()

    def kill(self) -> None:
        if self._agent is not None:
            self._agent.kill()

    # --- turns ----------------------------------------------------------------------------------

    async def open(self, turn: Turn, *, may_wait: bool = True) -> AgentSession:
        """Opens a session of the actual agent for a turn. `turn.model` is the agent's own name for the model,
        without the prefix `NAME/`. If too many turns are running, waits for one to end for `queue_wait` seconds at
        most, or not at all if `may_wait` is False.

        Raises `UpstreamNotAskedError` if the agent has not started, its breaker is open, or too many turns are
        still running; and any `Fault` that the actual agent raises.
        """
        agent = await self._ensure_started()
        if not self.breaker.admits(self._clock.monotonic()):
            raise UpstreamNotAskedError(self._left_alone())
        try:
            await self._take_slot(may_wait=may_wait)
            try:
                return await agent.open(turn)
            except BaseException:
                self._give_slot_back()
                raise
        except BaseException:
            self.breaker.gave_up()
            raise

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        assert self._agent is not None
        try:
            await self._agent.release(session, finished=finished)
        finally:
            self._give_slot_back()

    def record(self, outcome: Outcome, failure: Failure | None = None) -> None:
        """Counts the outcome of an attempt for the metrics, and reports it to the breaker. `failure` is the reason
        if the attempt has failed, else None; only failures that are the upstream's fault count against it.
        """
        self.attempts[outcome] += 1
        if outcome == "left":
            self.breaker.gave_up()
        elif failure is not None and failure.kind in BLAMED:
            before = self.breaker_state
            self.breaker.failed(self._clock.monotonic())
            if self.breaker_state == "open" and before != "open":
                log.warning("upstream_left_alone", upstream=self.name, reason=failure.unquoted)
        else:
            if self.breaker_state != "closed":
                log.info("upstream_is_back", upstream=self.name)
            self.breaker.succeeded()

    async def _ensure_started(self) -> Agent:
        if self._agent is None and self._clock.monotonic() - self._failed_at >= RETRY_START_SECONDS:
            await self.start()
        if self._agent is not None:
            return self._agent
        why = "" if self._failure is None else f" {self._failure.message}"
        raise UpstreamNotAskedError(
            Failure(
                kind=FaultKind.UNAVAILABLE,
                message=f"The agent {self.name} could not be started.{why}",
                retry_after=RETRY_START_SECONDS,
                quoted="" if self._failure is None else self._failure.quoted,
            )
        )

    async def _take_slot(self, *, may_wait: bool) -> None:
        if self._slots is None or self.rules is None:
            return
        if not may_wait and self._slots.locked():
            raise UpstreamNotAskedError(self._has_enough())
        try:
            async with asyncio.timeout(self.rules.queue_wait):
                await self._slots.acquire()
        except TimeoutError:
            raise UpstreamNotAskedError(self._has_enough()) from None

    def _give_slot_back(self) -> None:
        if self._slots is not None:
            self._slots.release()

    def _has_enough(self) -> Failure:
        most = 0 if self.rules is None else self.rules.concurrency
        message = f"{self._title} has {most} turns of this server, which is its limit. Try again later."
        return Failure(kind=FaultKind.CONCURRENCY_EXCEEDED, message=message, retry_after=5)

    def _left_alone(self) -> Failure:
        return Failure(
            kind=FaultKind.UNAVAILABLE,
            message=f"{self._title} failed several times in a row, so no request is sent to it for a "
            "moment. Try again later.",
            retry_after=max(1.0, self.breaker.seconds_left(self._clock.monotonic())),
        )
