"""The agent that sends turns as HTTP requests to a model server (the upstream). A failed request is repeated, there or
at its fallbacks, while no answer has begun.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

import msgspec
import structlog

from codex_proxy.agents.agent import Agent, AgentBase, BreakerState
from codex_proxy.agents.configured.router import LateStart
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.agents.shared.history_items import OriginMarks
from codex_proxy.core.account import AgentModel
from codex_proxy.core.beside_the_loop import beside_the_loop, is_long
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.interfaces import Clock
from codex_proxy.core.items import as_functions
from codex_proxy.core.passing import PassedRequest
from codex_proxy.core.turn import Turn
from codex_proxy.parts.upstream.attempts import (
    BLAMED_KINDS,
    AttemptedTurn,
    AttemptPlan,
    Breaker,
    Outcome,
    UpstreamTarget,
)
from codex_proxy.parts.upstream.config import UpstreamConfig
from codex_proxy.parts.upstream.server import ModelServer
from codex_proxy.parts.upstream.transport import (
    NotAskedError,
    OpenAttempt,
    UpstreamAnswer,
    UpstreamTransport,
    make_attempt,
)

log = structlog.get_logger(__name__)


class UpstreamAgent(AgentBase):
    def __init__(
        self,
        name: str,
        config: UpstreamConfig,
        make_server: Callable[[], Awaitable[ModelServer]],
        clock: Clock,
        *,
        peers: Mapping[str, Agent] | None,
        queue_wait: float,
    ) -> None:
        """`name`: the name of its table; empty for the only agent. `make_server` returns the started model server,
        or raises `Fault`. `peers`: the agents of a server that has several, by name. `queue_wait`: maximum seconds to
        wait while `concurrency` turns run.
        """
        super().__init__()
        self.name = name or config.api.agent
        self.capabilities = config.capabilities
        self.config = config
        self.breaker = Breaker(config.breaker_failures, config.breaker_seconds)
        self.attempts: dict[Outcome, int] = {"answered": 0, "failed": 0, "left": 0}
        self._table_name = name
        self._title = f"The model server '{name}'" if name else "The model server"
        self._late = LateStart(self.name, make_server, clock)
        self._clock = clock
        self._peers: Mapping[str, Agent] = {self.name: self} if peers is None else peers
        self._queue_wait = queue_wait
        self._places = asyncio.Semaphore(config.concurrency) if config.concurrency else None
        self._transports: set[UpstreamTransport] = set()

    # --- what it is -----------------------------------------------------------------------------

    @property
    def any_model(self) -> bool:  # type: ignore[override]
        """True if nobody has listed models, or the agent has not started."""
        server = self._late.value
        return server is None or server.any_model

    @property
    def breaker_state(self) -> BreakerState:
        return self.breaker.state(self._clock.monotonic())

    def models(self) -> tuple[AgentModel, ...]:
        return () if self._late.value is None else self._late.value.models

    def trouble(self) -> Failure | None:
        if self._late.value is None:
            return self._late.failure
        return self._breaker_failure() if self.breaker_state == "open" else self._late.value.trouble

    # --- from its start to its end --------------------------------------------------------------

    async def start(self) -> None:
        """Starts to watch the model server. Raises `Fault` if its address, key or files cannot be used; a turn may then
        try again.
        """
        await self._late.start()

    async def close(self) -> None:
        """Closes every connection, also those of running turns."""
        await asyncio.gather(*(transport.release(finished=False) for transport in list(self._transports)))
        if self._late.value is not None:
            await self._late.value.close()

    # --- turns ----------------------------------------------------------------------------------

    async def open(self, turn: Turn) -> AgentSession:
        """Opens a session with the first attempt that can be opened, here or at a fallback. `turn.model` is this
        upstream's name. Raises `Fault`.
        """

        async def open_attempt(target: UpstreamTarget, may_wait: bool) -> OpenAttempt:
            own = target.name == self.name
            peer = self._peer(target.name)
            return await peer.open_attempt(turn, target.model, may_wait=may_wait, containers=own)

        transport = UpstreamTransport(AttemptPlan(self._targets(turn), random.random), open_attempt)
        self._transports.add(transport)
        try:
            first = await transport.open_first()
            dialect = AttemptedTurn(first, transport.on_failure, transport.on_answer)
            return AgentSession(first.turn, dialect, transport)
        except BaseException:
            await self._release(transport)
            raise

    async def release(self, session: AgentSession, *, finished: bool) -> None:
        assert isinstance(session.transport, UpstreamTransport)
        await self._release(session.transport)

    async def _release(self, transport: UpstreamTransport) -> None:
        try:
            await transport.release(finished=False)
        finally:
            self._transports.discard(transport)

    def _targets(self, turn: Turn) -> list[UpstreamTarget]:
        """Returns this upstream, then its fallbacks that the client may use and that can pass on a request unchanged
        and run its hosted tools, each with its own name for the model.
        """
        targets = [self._target(turn, turn.model)]
        needed = {*(turn.hosted.tools if turn.hosted is not None else ())}
        needed |= {"forwarding"} if turn.forwarded is not None else set()
        for fallback in self.config.fallback:
            name, _, model = fallback.partition("/")
            peer = self._peer(name)
            is_allowed = turn.origin.agents is None or name in turn.origin.agents
            if is_allowed and needed <= peer.capabilities:
                targets.append(peer._target(turn, model or peer._same_model(turn.model)))
        return targets

    def _peer(self, name: str) -> UpstreamAgent:
        peer = self._peers[name]
        assert isinstance(peer, UpstreamAgent)
        return peer

    def _target(self, turn: Turn, model: str) -> UpstreamTarget:
        # Another codex-proxy that the turn comes from repeats it itself: attempts must not multiply along a chain.
        retries = 0 if turn.origin.hops else self.config.retries
        return UpstreamTarget(self.name, model, retries, self.config.retry_wait)

    def _same_model(self, model: str) -> str:
        if self.any_model or any(each.id == model for each in self.models()):
            return model
        return self.config.default_model or ""

    async def open_attempt(
        self, turn: Turn, model: str, *, may_wait: bool, containers: bool = True
    ) -> OpenAttempt:
        """Opens an attempt at this upstream. `may_wait`: whether to wait for another turn's end if too many are
        running. `containers`: whether those that the history names are this upstream's. Raises `NotAskedError` if it
        has not started, its breaker is open, or too many turns are running; `Fault` if it cannot be asked for this
        turn.
        """
        server = await self._enter(may_wait=may_wait)
        try:
            begin = partial(self._begin, server, turn, model, containers)
            return await beside_the_loop(begin, long=is_long(turn.history))
        except BaseException:
            self._give_up()
            raise

    def _begin(self, server: ModelServer, turn: Turn, model: str, containers: bool) -> OpenAttempt:
        """Returns the attempt, with its first request. Any thread may call it."""
        history = turn.history if containers else as_functions(turn.history)
        if self._table_name:
            history = OriginMarks(self._table_name).unmark(history)
        own, dialect, headers = server.prepare(msgspec.structs.replace(turn, model=model, history=history))
        begun = dialect.begin(own)
        return OpenAttempt(self._table_name, own, dialect, begun, self, server.client, headers)

    async def _enter(self, *, may_wait: bool) -> ModelServer:
        try:
            server = await self._late.for_turn()
        except Fault as fault:
            raise NotAskedError(fault.failure) from fault
        if not self.breaker.admits(self._clock.monotonic()):
            raise NotAskedError(self._breaker_failure())
        try:
            await self._take_place(may_wait=may_wait)
        except BaseException:
            self.breaker.note_no_result()
            raise
        return server

    def _give_up(self) -> None:
        self.leave()
        self.breaker.note_no_result()

    # --- requests that are no turns -------------------------------------------------------------

    @property
    def total_timeout(self) -> float | None:
        return self.config.total_timeout

    @property
    def passed_paths(self) -> tuple[str, ...] | None:
        return self.config.paths

    async def pass_on(self, request: PassedRequest) -> UpstreamAnswer:
        """Sends a request that is no turn, and returns its begun answer. Raises the `Fault` of the last attempt, or the
        error of reading the client's body.
        """
        turn = Turn(model=request.model, history=(), origin=request.origin)

        async def pass_on_to(target: UpstreamTarget, may_wait: bool) -> UpstreamAnswer:
            return await self._peer(target.name)._pass_on_once(request, target.model, may_wait=may_wait)

        plan = AttemptPlan(self._targets(turn), random.random)
        answer = await make_attempt(plan, pass_on_to, rest=request.rest)
        assert answer is not None
        answer.attempts = plan.attempts
        return answer

    async def _pass_on_once(self, request: PassedRequest, model: str, *, may_wait: bool) -> UpstreamAnswer:
        server = await self._enter(may_wait=may_wait)
        try:
            headers = {**server.headers_for(request.origin), "Accept": "*/*"}
            headers["Content-Type"] = request.content_type
            body = request.body_for(model)
            answer = UpstreamAnswer(server.client, self, request.path, body, headers, request.rest)
        except BaseException:
            self._give_up()
            raise
        answer.upstream = self._table_name
        try:
            await answer.begin(server.errors_at(request.path), self._clock.epoch())
        except BaseException:
            await answer.close()
            raise
        return answer

    def record(self, outcome: Outcome, failure: Failure | None = None) -> None:
        self.attempts[outcome] += 1
        if outcome == "left":
            self.breaker.note_no_result()
        elif failure is not None and failure.kind in BLAMED_KINDS:
            before = self.breaker_state
            self.breaker.note_failure(self._clock.monotonic())
            if self.breaker_state == "open" and before != "open":
                log.warning("upstream_breaker_open", upstream=self.name, reason=failure.unquoted)
        else:
            if self.breaker_state != "closed":
                log.info("upstream_is_back", upstream=self.name)
            self.breaker.note_success()

    def leave(self) -> None:
        if self._places is not None:
            self._places.release()

    async def _take_place(self, *, may_wait: bool) -> None:
        if self._places is None:
            return
        if not may_wait and self._places.locked():
            raise NotAskedError(self._concurrency_failure())
        try:
            async with asyncio.timeout(self._queue_wait):
                await self._places.acquire()
        except TimeoutError:
            raise NotAskedError(self._concurrency_failure()) from None

    def _concurrency_failure(self) -> Failure:
        most = self.config.concurrency
        message = (
            f"{self._title} already runs {most} turns of this server, which is its limit. Try again later."
        )
        return Failure(FaultKind.CONCURRENCY_EXCEEDED, message, retry_after=5)

    def _breaker_failure(self) -> Failure:
        return Failure(
            FaultKind.UNAVAILABLE,
            f"{self._title} failed several times in a row, so no request is sent to it for a "
            "moment. Try again later.",
            retry_after=max(1.0, self.breaker.seconds_left(self._clock.monotonic())),
        )
