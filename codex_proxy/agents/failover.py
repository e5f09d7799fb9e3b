"""A session with an upstream (a model server) that repeats a failed attempt, at the same upstream or another one,
as long as no answer has begun.

The events of an attempt are held back until its answer begins. If it fails before that, the next attempt replaces
it, with another dialect and transport in the same session; if there is none, the turn fails. Once a part of an
answer was passed on, no further attempt is made, since the client has read that part.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import msgspec
import structlog

from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.member import Member
from codex_proxy.agents.origin_marks import OriginMarks
from codex_proxy.agents.session import AgentSession
from codex_proxy.core.events import (
    AccountLimitsReported,
    Event,
    Notice,
    RawItem,
    ServedBy,
    Stop,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.faults import Failure, Fault
from codex_proxy.core.turn import without_content

log = structlog.get_logger(__name__)

HELD: Final = frozenset({TurnStarted, Notice, RawItem, AccountLimitsReported})
"""Types of events that are not part of an answer. After such events another attempt may still be made."""


class UpstreamAttempt(msgspec.Struct, frozen=True):
    """An attempt to answer a turn: the upstream that is asked (`member`), and the session for it."""

    member: Member
    session: AgentSession
    """The session that the upstream's agent has opened. Only its dialect and transport are used; its `begin` is
    never called.
    """


class FailoverSession(AgentSession):
    """A session with an upstream that makes further attempts until an answer begins. Its agent, `SeveralAgents` or
    `OneUpstream`, releases it with `release_last`.
    """

    def __init__(
        self,
        first: UpstreamAttempt,
        count: Callable[[], int],
        next_attempt: Callable[[Failure], Awaitable[UpstreamAttempt | None]],
    ) -> None:
        """`first` is the first attempt. `count` returns the number of attempts so far, which is reported with the
        answer. `next_attempt` takes the failure of an attempt, waits as long as necessary, and opens the next
        attempt; it returns None if there is none, and raises `Fault` if the last possible one could not be opened.
        """
        super().__init__(first.session.turn, first.session._dialect, first.session.transport)
        self.origin = _marks_of(first.member)
        self._attempt: UpstreamAttempt | None = first
        self._count = count
        self._next_attempt: Callable[[Failure], Awaitable[UpstreamAttempt | None]] | None = next_attempt
        self._held: list[Event] = []
        self._answering = False
        """Whether a part of the answer was passed on, so that no further attempt is made."""
        self._outcome_recorded = False
        """Whether the outcome of the current attempt was reported to its upstream."""
        self._next_attempt_task: asyncio.Task[None] | None = None
        self._releases: set[asyncio.Task[None]] = set()

    def begin(self) -> None:
        assert self._attempt is not None
        self._begin(self._attempt)

    def close(self) -> None:
        self._record_outcome(None)
        super().close()

    async def release_last(self, *, finished: bool) -> None:
        """Releases the current attempt, and returns when earlier attempts are released, too. An attempt that is
        about to begin is cancelled. `finished`: whether the agent has reported the end of the turn.
        """
        if self._next_attempt_task is not None:
            self._next_attempt_task.cancel()
            await asyncio.gather(self._next_attempt_task, return_exceptions=True)
        self._record_outcome(None)
        attempt, self._attempt = self._attempt, None
        if attempt is not None:
            await attempt.member.release(attempt.session, finished=finished)
        if self._releases:
            await asyncio.gather(*self._releases, return_exceptions=True)

    # --- an attempt -----------------------------------------------------------------------------

    def _begin(self, attempt: UpstreamAttempt) -> None:
        session = attempt.session
        self._dialect, self.transport, self.origin = (
            session._dialect,
            session.transport,
            _marks_of(attempt.member),
        )
        turn, self.turn = session.turn, without_content(session.turn)
        session.turn = self.turn
        self._outcome_recorded = False
        self.transport.attach(_AttemptReader(self, attempt))
        self._do(self._dialect.begin, turn)

    def _emit(self, events: list[Event], size: int) -> None:
        if self._answering:
            super()._emit(events, size)
            return
        self._held += self.origin.mark(events) if self.origin is not None else events
        last = events[-1] if events else None
        if isinstance(last, TurnEnded) and last.failure is not None and self._next_attempt_task is None:
            self._record_outcome(last.failure)
            self._next_attempt_task = asyncio.get_running_loop().create_task(self._attempt_next(last.failure))
        elif not HELD.issuperset(map(type, events)):
            self._pass_on(size)
        elif self.listener is not None and size:
            self.listener.session_received(self, [], size)  # a sign of life

    def _pass_on(self, size: int) -> None:
        """Passes the held events on to the listener. `size` is the number of bytes of output that caused the call.
        From now on no further attempt is made.
        """
        self._answering = True
        self._next_attempt = None  # it has the whole turn
        self._record_outcome(None, answered=True)
        events, self._held = self._held, []
        if self._attempt is not None:
            starts = [event for event in events if type(event) is TurnStarted]
            rest = [event for event in events if type(event) is not TurnStarted]
            member = self._attempt.member
            served_by = ServedBy("" if member.is_only_agent else member.name, self._count())
            events = [*starts[:1], served_by, *rest]
        if self.listener is not None:
            self.listener.session_received(self, events, size)

    async def _attempt_next(self, failure: Failure) -> None:
        """Begins the next attempt after a `failure`. If there is none, passes on the held events of the current
        attempt, so that the turn fails: with `failure`, or with the `Fault` that opening the next attempt has
        raised.
        """
        assert self._next_attempt is not None
        try:
            following = await self._next_attempt(failure)
        except Fault as fault:
            following = None
            self._held[-1] = TurnEnded(Stop.FAILED, "provider", fault.failure)
        except Exception:
            log.exception("turn_broke")
            if self.listener is not None:
                self.listener.session_broke(self)
            return
        self._next_attempt_task = None
        if following is None:
            self._pass_on(0)
            return
        if self._closing:
            await following.member.release(following.session, finished=True)
            return
        failed, self._attempt = self._attempt, following
        self._held.clear()
        if failed is not None:
            task = asyncio.get_running_loop().create_task(
                failed.member.release(failed.session, finished=True)
            )
            self._releases.add(task)
        self._begin(following)

    def _record_outcome(self, failure: Failure | None, *, answered: bool = False) -> None:
        if self._outcome_recorded or self._attempt is None:
            return
        self._outcome_recorded = True
        if failure is not None:
            self._attempt.member.record("failed", failure)
        else:
            self._attempt.member.record("answered" if answered else "left")

    def is_current(self, attempt: UpstreamAttempt) -> bool:
        """Returns whether this attempt is the current one and has not failed."""
        return attempt is self._attempt and self._next_attempt_task is None


def _marks_of(member: Member) -> OriginMarks | None:
    """Returns the marks with which encrypted content of this upstream is labelled, so that no other upstream gets
    it; None if the server has only this one.
    """
    return None if member.is_only_agent else OriginMarks(member.name)


class _AttemptReader:
    """The `TransportReader` of one attempt, which passes output on to the session. Output that arrives after the
    attempt has failed or was replaced is ignored.
    """

    def __init__(self, session: FailoverSession, attempt: UpstreamAttempt) -> None:
        self._session = session
        self._attempt = attempt

    def received(self, messages: Sequence[Any], size: int) -> None:
        if self._session.is_current(self._attempt):
            self._session.received(messages, size)

    def ended(self, ended: Ended) -> None:
        if self._session.is_current(self._attempt):
            self._session.ended(ended)

    def fail(self, failure: Failure) -> None:
        if self._session.is_current(self._attempt):
            self._session.fail(failure)
