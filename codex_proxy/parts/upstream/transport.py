"""The `Transport` of a turn: sends requests to the current attempt's upstream, and opens the next after a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

import msgspec

from codex_proxy.agents.dialect import NOTHING
from codex_proxy.agents.sessions.session import TransportReader
from codex_proxy.core.faults import UNFORESEEN, Failure, Fault
from codex_proxy.core.own_errors import breaks_off
from codex_proxy.core.passing import RestOfBody
from codex_proxy.core.turn import without_content
from codex_proxy.parts.upstream.attempts import (
    AttemptMessage,
    AttemptOwner,
    AttemptPlan,
    NoAttempt,
    Outcome,
    UpstreamAttempt,
    UpstreamTarget,
)
from codex_proxy.parts.upstream.exchange import Exchange
from codex_proxy.parts.upstream.server import UpstreamClient

T = TypeVar("T")


class NotAskedError(Fault):
    """This server made no attempt: the upstream has not started or its breaker is open (UNAVAILABLE), or too many turns
    are running (CONCURRENCY_EXCEEDED).
    """


class OpenAttempt(UpstreamAttempt, frozen=True):
    """An attempt, and how its requests are sent."""

    agent: AttemptOwner
    client: UpstreamClient
    headers: Mapping[str, str]


async def make_attempt(
    plan: AttemptPlan,
    make: Callable[[UpstreamTarget, bool], Awaitable[T]],
    *,
    wait: float | None = 0.0,
    failure: Failure | None = None,
    rest: RestOfBody | None = None,
) -> T | None:
    """Makes the plan's attempt after `wait` seconds, then later ones until one succeeds, and returns its result.
    `make`'s second argument: whether it waits if too many turns are running. `failure`: that of the attempt before,
    if there was one. If no attempt is left, returns None after such a `failure`, and else raises the last `Fault`,
    as it does if `rest`, which can be sent once only, has begun.
    """
    while wait is not None:
        if wait:
            await asyncio.sleep(wait)
        try:
            return await make(plan.target, plan.is_last)
        except Fault as fault:
            refused = isinstance(fault, NotAskedError)
            wait = plan.choose_next(fault.failure, not_asked=refused)
            # What an upstream has said tells more than that this server did not ask another one.
            is_final = wait is None and (failure is None or not refused)
            if is_final or (rest is not None and rest.begun):
                raise
    return None


class UpstreamTransport:
    """A turn's transport. Its reader gets each answer's messages and, after a failed attempt, an `UpstreamAttempt` or
    `NoAttempt`.
    """

    exclusive = True

    def __init__(
        self, plan: AttemptPlan, open_attempt: Callable[[UpstreamTarget, bool], Awaitable[OpenAttempt]]
    ) -> None:
        """`open_attempt` is the `make` of `make_attempt`. It raises `Fault` or `NotAskedError`."""
        self._plan = plan
        self._open_attempt = open_attempt
        self._current: OpenAttempt | None = None
        self._is_recorded = False
        """Whether the current attempt's outcome was reported."""
        self._next_attempt: asyncio.Task[None] | None = None
        self._reader: TransportReader | None = None
        self._exchanges: list[Exchange] = []
        """The current exchange, last, and those before it that have not ended."""
        self._is_paused = False

    async def open_first(self) -> UpstreamAttempt:
        """Opens the first attempt that can be opened. Raises `Fault`."""
        opened = await make_attempt(self._plan, self._open_attempt)
        assert opened is not None
        return self._make_current(opened)

    # --- what the dialect reports ---------------------------------------------------------------

    def on_failure(self, failure: Failure) -> bool:
        """Ends the current attempt. Starts to open the next one, and returns True, if there is one."""
        self.close_stdin()
        self._record("failed", failure)
        self._leave()
        wait = self._plan.choose_next(failure)
        if wait is None:
            return False
        loop = asyncio.get_running_loop()
        self._next_attempt = loop.create_task(self._make_next_attempt(wait, failure))
        return True

    def on_answer(self) -> int:
        """Records that the current attempt was answered. Returns how many attempts there were."""
        self._record("answered")
        return self._plan.attempts

    @breaks_off
    async def _make_next_attempt(self, wait: float, failure: Failure) -> None:
        message: AttemptMessage
        try:
            opened = await make_attempt(self._plan, self._open_attempt, wait=wait, failure=failure)
            message = NoAttempt() if opened is None else self._make_current(opened)
        except Fault as fault:
            message = NoAttempt(fault.failure)
        self._deliver([message], 0)

    def break_off(self) -> None:
        """Fails the turn without a further attempt."""
        self._deliver([NoAttempt(UNFORESEEN)], 0)

    def _make_current(self, opened: OpenAttempt) -> UpstreamAttempt:
        # Its conversation and first request are not kept for as long as it runs.
        turn = without_content(opened.turn)
        self._current = msgspec.structs.replace(opened, turn=turn, begun=NOTHING)
        self._is_recorded = False
        return opened

    def _record(self, outcome: Outcome, failure: Failure | None = None) -> None:
        if self._current is not None and not self._is_recorded:
            self._is_recorded = True
            self._current.agent.record(outcome, failure)

    def _leave(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            current.agent.leave()

    # --- what a session calls -------------------------------------------------------------------

    def attach(self, reader: TransportReader) -> None:
        self._reader = reader

    def send(self, writes: bytes) -> None:
        """Sends a request, and drops the rest of the previous answer."""
        assert self._current is not None
        self.close_stdin()
        exchange = self._current.client.post(writes, self._current.headers, self._deliver)
        if self._is_paused:
            exchange.pause()
        self._exchanges = [each for each in self._exchanges if not each.has_ended] + [exchange]

    def close_stdin(self) -> None:
        """Stops passing on the current answer."""
        if self._exchanges:
            self._exchanges[-1].finish()

    def pause_reading(self) -> None:
        self._is_paused = True
        if self._exchanges:
            self._exchanges[-1].pause()

    def resume_reading(self) -> None:
        self._is_paused = False
        if self._exchanges:
            self._exchanges[-1].resume()

    def set_idle(self, idle: bool) -> None:
        """Does nothing: the session ends with its turn."""

    async def release(self, *, finished: bool) -> None:
        """Closes the current connection unless the answer has ended, so that the upstream notices that the client has
        left.
        """
        self._reader = None
        try:
            if self._next_attempt is not None:
                self._next_attempt.cancel()
                await asyncio.gather(self._next_attempt, return_exceptions=True)
            self._record("left")
            for exchange in self._exchanges:
                await exchange.close()
        finally:
            self._leave()

    def _deliver(self, messages: Sequence[AttemptMessage], size: int) -> None:
        if self._reader is not None:
            self._reader.on_messages(messages, size)
