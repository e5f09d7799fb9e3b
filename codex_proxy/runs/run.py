"""A run is one turn of a client: it drives sessions with the agent, and appends their events to the log.

A batch of events passes all stages within one call, because a run has no task: the attempt (tool policy, then the check
of the answer against its schema), the repair, the run itself (which declines the agent's requests), and the limits.
A turn has at most two attempts; a session whose process had already ended does not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Literal, Protocol

import msgspec
import structlog

from codex_proxy.agents.dialect import Decision, ToolReply
from codex_proxy.agents.processes.session import AgentSession
from codex_proxy.core.events import (
    VISIBLE,
    AccountLimitsReported,
    ApprovalRequested,
    Event,
    ForwardedBytes,
    InputRequested,
    RawItem,
    Stop,
    TurnEnded,
    UsageReported,
)
from codex_proxy.core.faults import UNFORESEEN, Failure, FaultKind
from codex_proxy.core.interfaces import Timers
from codex_proxy.core.limits import MAX_TURN_CHARS, TurnLimits
from codex_proxy.core.turn import Turn
from codex_proxy.runs.deadlines import Deadlines, DeadlineWatch
from codex_proxy.runs.event_log import CUT_WATER, HIGH_WATER, LOW_WATER, EventLog
from codex_proxy.runs.idle_sessions import ReusedSession
from codex_proxy.runs.observers import TurnObserver
from codex_proxy.runs.recording import TurnTape
from codex_proxy.runs.server_calls import ServerCalls
from codex_proxy.runs.turn_output import TurnOutput
from codex_proxy.tools.attempt import Attempt
from codex_proxy.tools.checks import TextCheck, Verdict
from codex_proxy.tools.policy import PolicyResult, ToolOutput

log = structlog.get_logger(__name__)

DECLINED = Decision(approve=False)

HANDLED_EVENTS = frozenset({RawItem, UsageReported, ApprovalRequested, InputRequested, AccountLimitsReported})
"""The events that a run handles itself."""

SLOW_SCHEMA = "The schema in '{}' may take too long to compile: ask with a simpler one."
TOO_SLOW = Failure(
    kind=FaultKind.TIMED_OUT,
    message=f"The client left {CUT_WATER >> 20} MiB of the answer unread. Read faster, or ask for less.",
)


class RunHost(Protocol):
    """What a run asks of the scheduler: everything that must be awaited or is shared, because a run never awaits."""

    def open_session(self, run: Run, attempt: Attempt) -> None:
        """Opens a session in a task and passes it to `run.begin_session`, or fails the run."""
        ...

    def keep(self, run: Run, session: AgentSession) -> bool:
        """Keeps the session for the client's next request; returns whether it did."""
        ...

    def check(self, run: Run, attempt: Attempt, checks: Sequence[TextCheck]) -> Coroutine[Any, Any, None]:
        """Returns a coroutine that checks texts and calls `run.verdicts_received`, or fails the run. Raises nothing."""
        ...

    def remember(self, run: Run) -> asyncio.Future[None] | None:
        """Saves the turn's calls for the client, with the items that it does not get, in the step memory. Returns a
        future for the end of saving, or None if there is nothing to save.
        """
        ...

    def limits_reported(self, run: Run, json: bytes) -> None:
        """Stores the newest limits of the agent's account, in its own format."""
        ...

    def with_details(self, run: Run, failure: Failure) -> Failure:
        """Returns the failure with what the agent did not report: the context window, or the time of the next reset."""
        ...

    def run_ended(self, run: Run) -> None:
        """Forgets the run and frees its slot, once, after the last event."""
        ...


class Run:
    """One turn of a client. `max_chars`: characters after which it ends with `Stop.LENGTH`; `keeps_max_tokens`: the
    agent enforces `max_tokens` itself; `observers` get all events of the turn.
    """

    def __init__(
        self,
        turn: Turn,
        attempt: Attempt,
        timers: Timers,
        deadlines: Deadlines,
        host: RunHost,
        *,
        calls: ServerCalls,
        max_chars: int = MAX_TURN_CHARS,
        keeps_max_tokens: bool = False,
        tape: TurnTape | None = None,
        observers: Sequence[TurnObserver] = (),
    ) -> None:
        self.turn = turn
        """The turn as the client asked for it, with its owner."""
        self.attempt = attempt
        self._awaited_events: frozenset[type[Event]] | None = None
        """The kinds of events that the attempt has to see at present; None: all."""
        self._forwards = turn.forwarded is not None
        max_tokens = None if keeps_max_tokens else turn.max_tokens
        limits = TurnLimits(chars=max_chars, stop=turn.stop, max_tokens=max_tokens)
        self.output = TurnOutput(limits, self._backlog, forwards=self._forwards, observers=observers)
        self._host = host
        self._tape = tape
        """Records the turn; None if it is not recorded."""
        self._calls = calls
        self._calls_running = 0
        self._checking = False
        """Whether a worker checks texts; events wait in the policy meanwhile."""
        self._acted = False
        """Whether this server ran calls for the turn, which may have changed something."""
        self._session: AgentSession | None = None
        self.continued = False
        """Whether the run continues a session that has seen the conversation so far."""
        self._restartable: Literal["", "until_output", "until_visible"] = ""
        """When another session may take over because the process ended. `until_visible`: while the client has seen
        nothing (kept sessions); `until_output`: while the process has sent nothing for the turn (new sessions).
        """
        self._restarted = False
        self._paused = False
        self._watch = DeadlineWatch(deadlines, timers, self._deadline_passed)

    # --- what the host does ---------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the turn is over. The log may still get the last events."""
        return self.output.ended

    @property
    def log(self) -> EventLog:
        """The log of the turn."""
        return self.output.log

    def add_first_events(self, events: Sequence[Event]) -> None:
        """Adds events that the client sees before the agent's, such as lists of MCP tools."""
        self._append(self.output.repair(events), 0)

    def add_events(self, events: Sequence[Event]) -> None:
        """Adds this server's events, such as of its tool calls, unless the turn is over."""
        if not self.output.ended:
            self._log_events(list(events), 0)
            if self.output.ended:  # it was all that the turn may say
                self._release_session()

    def begin_after(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts `work`, which ends with `begin_session`, `resume_session` or a failure. Meanwhile the idle deadline is
        stopped.
        """
        self._acted = True
        self._watch.pause()
        self._calls.begin_work(work)

    def begin_session(self, session: AgentSession) -> None:
        """Begins the turn on a session that was opened; closes it if the turn is over."""
        if self.output.ended:
            session.close()
            return
        self._agent_begins()
        self._session = session
        self.continued = session.reopens
        if session.reopens:
            self._restartable = "until_visible"
        else:
            self._restartable = "until_output" if session.ran_before and not self._restarted else ""
        if self._tape is not None:
            self._tape.session(session)
        session.begin()

    def resume_session(self, reused: ReusedSession) -> None:
        """Begins the turn on a kept session; closes it if the turn is over."""
        if self.output.ended:
            reused.session.close()
            return
        self._agent_begins()
        self._session = reused.session
        self.continued = True
        self._restartable = "until_visible"
        if self._tape is not None:
            self._tape.session(reused.session)
        reused.session.listener = self
        reused.session.resume(self.attempt.turn, reused.new_items)
        for answered in reused.hidden:
            reused.session.answer(answered.request_id, ToolReply(answered.output.parts))

    def _agent_begins(self) -> None:
        self._awaited_events = self.attempt.awaited_events
        if self._watch.paused:
            self._watch.resume()

    def interrupt(self) -> None:
        """Ends the turn as interrupted by its client, and stops the agent."""
        self._end(TurnEnded(Stop.INTERRUPTED))

    def fail(self, failure: Failure) -> None:
        """Ends the turn with this server's failure, and stops the agent."""
        if self._tape is not None and not self.output.ended:
            self._tape.failed(failure)
        self._end(TurnEnded(Stop.FAILED, "provider", failure))

    def _deadline_passed(self, failure: Failure) -> None:
        hint = self._session.silence_hint if self._session is not None else ""
        if self.turn.schema_field and not self._watch.visible:
            failure = msgspec.structs.replace(failure, param=self.turn.schema_field)
            hint = f"{SLOW_SCHEMA.format(self.turn.schema_field)} {hint}".rstrip()
        self.fail(self.output.deadline_failure(failure, hint))

    # --- what the session calls ---------------------------------------------------------------------

    def session_received(self, session: AgentSession, events: list[Event], size: int) -> None:
        if session is not self._session or self.output.ended:
            return  # an earlier try that winds down
        if (session.gone or session.lost) and self._restartable and not self._checking:
            self._restart()
            return
        if size and self._restartable == "until_output":
            self._restartable = ""
        if self._forwards and len(events) == 1 and type(events[0]) is ForwardedBytes:
            self._watch.alive(visible=True)
            self.output.append(events, size)  # no stage has anything to do with it
            return
        if self._awaited_events is None or not self._awaited_events.isdisjoint(map(type, events)):
            if not VISIBLE.isdisjoint(map(type, events)):
                # The agent has begun, also where its answer is held to be checked.
                self._watch.alive(visible=True)
            self._apply(self.attempt.feed(events), session, size)
        else:  # most batches are text alone
            self._log_events(events, size)
            if self.output.ended:
                self._release_session()

    def tool_finished(self, request_id: str, output: ToolOutput) -> None:
        """Continues with the output of this server's call for the agent's `request_id`, unless the turn is over."""
        self._calls_running -= 1
        self._resume_idle_deadline()
        if self._session is not None and not self.output.ended:
            self._apply(self.attempt.tool_finished(request_id, output), self._session, 0)

    def verdicts_received(self, attempt: Attempt, verdicts: Sequence[Verdict]) -> None:
        """Continues with the results of an attempt's schema checks, unless it is over."""
        session = self._session
        if attempt is not self.attempt or self.output.ended or session is None:
            return
        self._checking = False
        self._resume_idle_deadline()
        self._apply(attempt.with_verdicts(verdicts), session, 0)

    def _apply(self, result: PolicyResult, session: AgentSession, size: int) -> None:
        """Does what the tool policy says: logs events, answers the agent, runs calls and checks, or begins a second
        attempt. `size`: bytes of agent output.
        """
        self._awaited_events = self.attempt.awaited_events
        self._log_events(result.events, size)
        if result.checks and not self.output.ended:
            self._checking = True
            self._watch.pause()
            self._calls.begin_work(self._host.check(self, self.attempt, result.checks))
        if result.again:
            self.output.lose_count()
            self._begin_again(self.attempt.retry(self._turn_so_far()))
        if result.calls and not self.output.ended:
            self._acted = True
            self._calls_running += len(result.calls)
            self._watch.pause()
            self._calls.begin(self, result.calls)
        for answered in result.answers:
            session.answer(answered.request_id, ToolReply(answered.output.parts))
        if self.output.ended:
            self._release_session()

    def session_failed(self, session: AgentSession, failure: Failure) -> None:
        if session is not self._session:
            return
        if self._restartable:
            self._restart()
        else:
            self.fail(failure)

    def session_broke(self, session: AgentSession) -> None:
        if session is self._session:
            self._session = None
            self.fail(UNFORESEEN)

    # --- the stages behind the attempt ----------------------------------------------------------

    def _log_events(self, batch: list[Event], size: int) -> None:
        events = self.output.repair(batch)
        visible = not VISIBLE.isdisjoint(map(type, events))
        if visible:
            self._restartable = ""
        self._watch.alive(visible=visible)
        if not HANDLED_EVENTS.isdisjoint(map(type, events)):
            self._handle_own_events(events)
        self._append(events, size)

    def _handle_own_events(self, events: list[Event]) -> None:
        """Handles the events of `HANDLED_EVENTS`: keeps raw items, replaces usage by the sum, declines requests, passes
        account limits on. They stay in the list.
        """
        for index, event in enumerate(events):
            kind = type(event)
            if kind not in HANDLED_EVENTS:
                continue  # most are pieces of text
            if kind is RawItem:
                self.output.raw.append(event.json)  # type: ignore[union-attr]
            elif kind is UsageReported:
                events[index] = self.output.add_usage(event)  # type: ignore[arg-type]
            elif kind is ApprovalRequested or kind is InputRequested:
                self._decline(event)  # type: ignore[arg-type]
            elif kind is AccountLimitsReported:
                self._host.limits_reported(self, event.json)  # type: ignore[union-attr]

    def _append(self, events: list[Event], size: int) -> None:
        """Logs the events within the limits; at a limit, the end of the turn. `size`: bytes of agent output."""
        events = self.output.within_limits(events)
        if not events:
            return
        last = events[-1]
        if type(last) is not TurnEnded:
            self.output.append(events, size)
            return
        if last.failure is not None:
            failure = self._host.with_details(self, last.failure)
            if self._acted:
                failure = msgspec.structs.replace(failure, repeatable=False)
            events[-1] = msgspec.structs.replace(last, failure=failure)
        self._log_end(events, size)

    def _log_end(self, events: list[Event], size: int) -> None:
        """Logs the last events, once the turn's calls are in the step memory."""
        remembering = self._host.remember(self)
        if remembering is None:
            self._close_log(events, size)
            return
        *before, ended = events
        if before:
            self.output.append(before, size)
        # The client's next request reads them.
        remembering.add_done_callback(lambda _: self._close_log([ended], 0))

    def _close_log(self, events: list[Event], size: int) -> None:
        if self._tape is not None:
            self._tape.ended(events[-1])  # type: ignore[arg-type]
            self._tape = None
        self.output.append(events, size, ended=True)
        self._host.run_ended(self)

    def _decline(self, request: ApprovalRequested | InputRequested) -> None:
        """Declines an approval or question at once; the agent continues."""
        if self._session is not None:
            self._session.answer(request.request_id, DECLINED)

    def _restart(self) -> None:
        """Starts the turn again on another session, because its own was lost. Only while `_restartable` is set, so
        once, with nothing sent.
        """
        self._restarted = True
        self._begin_again(self.attempt.restarted(self.turn))

    def _begin_again(self, attempt: Attempt) -> None:
        """Discards this attempt but for its usage, and begins `attempt` on a new session."""
        self._append(self.output.begin_attempt(), 0)  # the usage of what is discarded
        self._restartable = ""
        self.attempt = attempt
        self._checking = False
        session, self._session = self._session, None
        self.continued = False
        if session is not None:
            session.close()
        self._host.open_session(self, attempt)

    def _turn_so_far(self) -> Turn:
        """Returns the turn for a second attempt, with the calls that this server has run, so that they are not
        repeated.
        """
        items = self.output.ran_items(self.attempt.policy.ran_calls)
        return msgspec.structs.replace(self.turn, history=(*self.turn.history, *items))

    # --- the end --------------------------------------------------------------------------------

    def _end(self, ended: TurnEnded) -> None:
        """Ends the turn for another reason than the agent's end: logs it, then keeps or closes the session."""
        if self.output.ended:
            return
        self._append(self.output.repair([ended]), 0)
        self._release_session()

    def _release_session(self) -> None:
        """Stops deadlines and calls. Keeps the session if it can be resumed; else closes it, which stops the agent."""
        self._watch.stop()
        self._calls.cancel()
        session, self._session = self._session, None
        if session is None:
            return
        if self._paused:
            self._resume(session)
        if not (session.can_resume and self.attempt.as_asked and self._host.keep(self, session)):
            session.close()

    # --- readers that are slow ------------------------------------------------------------------

    def _backlog(self, size: int) -> None:
        session = self._session
        if self.output.ended or session is None:
            return
        if size > HIGH_WATER and not self._paused:
            if session.pause_reading():
                self._paused = True
                self._watch.pause()
            elif size > CUT_WATER:
                self.fail(TOO_SLOW)
        elif size < LOW_WATER and self._paused:
            self._resume(session)

    def _resume(self, session: AgentSession) -> None:
        self._paused = False
        self._resume_idle_deadline()
        session.resume_reading()

    def _resume_idle_deadline(self) -> None:
        """Starts the idle deadline again, unless a call, a schema check or a slow client is still waited for."""
        if not (self._calls_running or self._checking or self._paused):
            self._watch.resume()
