"""A run is one turn of a client: it drives sessions with the agent, and appends their events to the log. A batch passes
all stages within one call, because a run has no task: the attempt (tool policy, check of the answer), the repair, the
run itself (which declines the agent's requests), and the limits. A turn has at most two attempts; a session whose
process had already ended does not count.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec

import msgspec

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
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import UNFORESEEN, Failure, FaultKind
from codex_proxy.core.interfaces import Timers
from codex_proxy.core.items import Item, RawHistoryItem
from codex_proxy.core.limits import TurnLimits
from codex_proxy.core.own_errors import breaks_off, release_all
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn
from codex_proxy.runs.deadlines import Deadlines, DeadlineWatch, deadline_failure
from codex_proxy.runs.event_log import CUT_WATER, HIGH_WATER, LOW_WATER, EventLog
from codex_proxy.runs.idle_sessions import ReusedSession
from codex_proxy.runs.observers import TurnObserver, TurnRecorder
from codex_proxy.runs.server_calls import ServerCalls
from codex_proxy.tools.attempt import Attempt
from codex_proxy.tools.checks import Verdict
from codex_proxy.tools.policy import PolicyResult, ToolOutput
from codex_proxy.tools.replay import clean_item, output_id

if TYPE_CHECKING:
    from codex_proxy.runs.scheduler import RunScheduler

P = ParamSpec("P")

DECLINED = Decision(approve=False)

HANDLED_EVENTS = frozenset({RawItem, UsageReported, ApprovalRequested, InputRequested, AccountLimitsReported})

SLOW_SCHEMA = "The schema in '{}' may take too long to compile: ask with a simpler one."
TOO_SLOW = Failure(
    FaultKind.TIMED_OUT,
    f"The client left {CUT_WATER >> 20} MiB of the answer unread. Read faster, or ask for less.",
)


def _fails_turn_on_error(method: Callable[Concatenate[Run, P], None]) -> Callable[Concatenate[Run, P], None]:
    """Wraps a method that others call: an exception breaks the turn off, and the turn's end releases its session."""

    @breaks_off
    @wraps(method)
    def guarded(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> None:
        method(run, *args, **kwargs)
        if run._repair.ended:
            run._release_session()

    return guarded


class _AttemptsUsage:
    """The tokens of all attempts: the client pays for a discarded one too."""

    def __init__(self) -> None:
        self._before = Usage()
        """The tokens of a discarded first attempt."""
        self._newest: UsageReported | None = None
        self._uncounted = False
        """Whether an attempt was discarded whose tokens were not reported."""

    def add(self, reported: UsageReported) -> UsageReported:
        """Returns the report plus the discarded attempt's usage."""
        self._newest = reported
        partial = self._uncounted or reported.partial
        return UsageReported(self._before + reported.usage, reported.trigger, partial=partial)

    def begin_attempt(self, *, begun: bool) -> list[Event]:
        """Discards the current attempt, and returns its usage. `begun`: whether the attempt may have used tokens
        that were not reported.
        """
        newest, self._newest = self._newest, None
        if newest is None:
            self._uncounted = self._uncounted or begun
            return []
        self._before += newest.usage
        # Until the new attempt's tokens are reported, if they ever are.
        return [UsageReported(self._before, newest.trigger, partial=True)]


class Run:
    """One turn. `limits`: the limits that the agent cannot enforce."""

    def __init__(
        self,
        turn: Turn,
        attempt: Attempt,
        timers: Timers,
        deadlines: Deadlines,
        host: RunScheduler,
        *,
        limits: TurnLimits,
        calls: ServerCalls,
        recorder: TurnRecorder | None,
        observers: Sequence[TurnObserver],
    ) -> None:
        self.turn = turn
        """The turn as the client asked for it, with its owner."""
        self.attempt = attempt
        self.log = EventLog(self._on_backlog)
        self.observers = observers
        self.raw_items: list[bytes] = []
        """The current attempt's raw items."""
        self._awaited_events: frozenset[type[Event]] | None = None
        """The types of events that the attempt needs now; None: all."""
        self._forwards = turn.forwarded is not None
        self._repair = TurnRepair()
        self._limits = limits
        self._usage = _AttemptsUsage()
        self._host = host
        self._recorder = recorder
        self._calls = calls
        self._calls_running = 0
        self._checking = False
        """Whether a worker checks texts; events wait in the policy."""
        self._acted = False
        """Whether this server ran calls, which may have changed something."""
        self._session: AgentSession | None = None
        self.continued = False
        """Whether the agent's session has seen the conversation so far."""
        self._restartable: Literal["", "until_output", "until_visible"] = ""
        """When another session may take over because the process ended. `until_visible`: while the client has seen
        nothing (kept sessions); `until_output`: while the process has sent nothing (new ones).
        """
        self._restarted = False
        self._paused = False
        self._watch = DeadlineWatch(deadlines, timers, self._on_deadline)

    # --- what the host does ---------------------------------------------------------------------

    @property
    def ended(self) -> bool:
        """Whether the turn has ended; the log may still get the last events."""
        return self._repair.ended

    @property
    def open_item(self) -> Item | None:
        """The item on which the agent works, if any."""
        return self._repair.open_item

    @_fails_turn_on_error
    def add_first_events(self, events: Sequence[Event]) -> None:
        """Adds events before the agent's, such as lists of MCP tools."""
        self._append(self._repair.feed(events), 0)

    @_fails_turn_on_error
    def add_events(self, events: Sequence[Event]) -> None:
        """Adds this server's events, unless the turn is over."""
        if not self._repair.ended:
            self._log_events(list(events), 0)

    def start_preparing(self, work: Coroutine[Any, Any, None]) -> None:
        """Starts `work`, which ends with `begin_session` or a failure."""
        self._acted = True
        self._watch.pause()
        self._calls.begin_work(work)

    @_fails_turn_on_error
    def begin_session(self, opened: AgentSession | ReusedSession) -> None:
        """Begins the turn on a new or kept session; closes it if the turn is over."""
        reused = opened if isinstance(opened, ReusedSession) else None
        session = opened.session if isinstance(opened, ReusedSession) else opened
        if self._repair.ended:
            session.close()
            return
        self._session = session
        self._awaited_events = self.attempt.awaited_events
        if self._watch.paused:
            self._watch.resume()
        self.continued = reused is not None or session.reopens
        if self.continued:
            self._restartable = "until_visible"
        else:
            self._restartable = "until_output" if session.ran_before and not self._restarted else ""
        if self._recorder is not None:
            self._recorder.on_session(session)
        if reused is None:
            session.begin()
            return
        session.listener = self
        session.resume(self.attempt.turn, reused.new_items)
        for answered in reused.hidden:
            session.answer(answered.request_id, ToolReply(answered.output.parts))

    @_fails_turn_on_error
    def interrupt(self) -> None:
        """Ends the turn as interrupted by its client."""
        self._end(TurnEnded(Stop.INTERRUPTED))

    @_fails_turn_on_error
    def fail(self, failure: Failure) -> None:
        """Ends the turn with this server's failure."""
        if self._recorder is not None and not self._repair.ended:
            self._recorder.on_failure(failure)
        self._end(TurnEnded.with_failure(failure))

    @_fails_turn_on_error
    def _on_deadline(self, failure: Failure) -> None:
        hint = self._session.silence_hint if self._session is not None else ""
        if self.turn.schema_field and not self._watch.visible:
            failure = msgspec.structs.replace(failure, param=self.turn.schema_field)
            hint = f"{SLOW_SCHEMA.format(self.turn.schema_field)} {hint}".rstrip()
        self.fail(deadline_failure(failure, self._repair.retrying, self._repair.retries, hint))

    # --- what the session calls ---------------------------------------------------------------------

    @_fails_turn_on_error
    def on_session_output(self, session: AgentSession, events: list[Event], size: int) -> None:
        if session is not self._session or self._repair.ended:
            return  # an earlier try that winds down
        if self._restartable and (session.gone or session.lost) and not self._checking:
            self._restart()
            return
        if size and self._restartable == "until_output":
            self._restartable = ""
        if self._forwards and len(events) == 1 and type(events[0]) is ForwardedBytes:
            self._watch.note_event(visible=True)
            self._log(events, size)  # no stage has anything to do with it
            return
        if self._awaited_events is None or not self._awaited_events.isdisjoint(map(type, events)):
            if not VISIBLE.isdisjoint(map(type, events)):
                # The agent has begun, also where its answer is held to be checked.
                self._watch.note_event(visible=True)
            self._apply(self.attempt.feed(events), session, size)
        else:  # most batches are text alone
            self._log_events(events, size)

    @_fails_turn_on_error
    def on_tool_output(self, request_id: str, output: ToolOutput) -> None:
        """Continues the turn with the output of this server's call."""
        self._calls_running -= 1
        self._resume_idle_deadline()
        if self._session is not None and not self._repair.ended:
            self._apply(self.attempt.on_tool_output(request_id, output), self._session, 0)

    @_fails_turn_on_error
    def on_verdicts(self, attempt: Attempt, verdicts: Sequence[Verdict]) -> None:
        """Continues the attempt with the results of its checks."""
        session = self._session
        if attempt is not self.attempt or self._repair.ended or session is None:
            return
        self._checking = False
        self._resume_idle_deadline()
        self._apply(attempt.with_verdicts(verdicts), session, 0)

    def _apply(self, result: PolicyResult, session: AgentSession, size: int) -> None:
        """Does what the policy says: logs events, answers the agent, runs calls and checks, or begins a second
        attempt. `size`: the bytes of the agent's output that led to it.
        """
        self._awaited_events = self.attempt.awaited_events
        self._log_events(result.events, size)
        if result.checks and not self._repair.ended:
            self._checking = True
            self._watch.pause()
            self._calls.begin_work(self._host.check(self, self.attempt, result.checks))
        if result.again:
            self._begin_again(self.attempt.retry(self._turn_so_far()), begun=True)
        if result.calls and not self._repair.ended:
            self._acted = True
            self._calls_running += len(result.calls)
            self._watch.pause()
            self._calls.begin(self, result.calls)
        for answered in result.answers:
            session.answer(answered.request_id, ToolReply(answered.output.parts))

    def on_session_failure(self, session: AgentSession, failure: Failure) -> None:
        if session is not self._session:
            return
        if self._restartable:
            self._restart()
        else:
            self.fail(failure)

    def on_session_error(self, session: AgentSession) -> None:
        if session is self._session:
            self._session = None
            self.break_off()

    # --- the stages behind the attempt ----------------------------------------------------------

    def _log_events(self, batch: list[Event], size: int) -> None:
        events = self._repair.feed(batch)
        visible = not VISIBLE.isdisjoint(map(type, events))
        if visible:
            self._restartable = ""
        self._watch.note_event(visible=visible)
        if not HANDLED_EVENTS.isdisjoint(map(type, events)):
            self._handle_own_events(events)
        self._append(events, size)

    def _handle_own_events(self, events: list[Event]) -> None:
        """Keeps raw items, sums usage, declines requests, reports account limits. The events stay in the list."""
        for index, event in enumerate(events):
            kind = type(event)
            if kind not in HANDLED_EVENTS:
                continue  # most are pieces of text
            if kind is RawItem:
                self.raw_items.append(event.json)  # type: ignore[union-attr]
            elif kind is UsageReported:
                events[index] = self._usage.add(event)  # type: ignore[arg-type]
            elif kind is ApprovalRequested or kind is InputRequested:
                if self._session is not None:  # at once; the agent continues
                    self._session.answer(event.request_id, DECLINED)  # type: ignore[union-attr]
            elif kind is AccountLimitsReported:
                self._host.report_limits(self, event.json)  # type: ignore[union-attr]

    def _append(self, events: list[Event], size: int) -> None:
        events, stop = self._limits.feed(events)
        if stop is not None:
            self._repair.feed([TurnEnded(stop)])
            met, empty = self._limits.stop_sequence, self._limits.empty
            events = [*events, TurnEnded(stop, "provider", cut=True, stop_sequence=met, empty=empty)]
        if not events:
            return
        last = events[-1]
        if type(last) is not TurnEnded:
            self._log(events, size)
            return
        if not (last.cut or self._forwards):
            last = self._repair.with_reason_if_empty(last)
        if last.failure is not None:
            failure = self._host.with_details(self, last.failure)
            if self._acted:
                failure = msgspec.structs.replace(failure, repeatable=False)
            last = msgspec.structs.replace(last, failure=failure)
        self._log_end(events[:-1], last, size)

    def _log(self, events: list[Event], size: int, *, ended: bool = False) -> None:
        for observer in self.observers:
            observer.add(events)
        self.log.append(events, size, ended=ended)

    def _log_end(self, before: list[Event], ended: TurnEnded, size: int) -> None:
        """Logs the last events, when the step memory has the turn's calls."""
        remembering = self._host.remember(self)
        if remembering is None:
            self._close_log([*before, ended], size)
            return
        if before:
            self._log(before, size)
        # The client's next request reads them.
        remembering.add_done_callback(lambda _: self._close_log([ended], 0))

    @_fails_turn_on_error
    def _close_log(self, events: list[Event], size: int) -> None:
        if self._recorder is not None:
            self._recorder.on_end(events[-1])  # type: ignore[arg-type]
            self._recorder = None
        self._log(events, size, ended=True)
        self._host.release_run(self)

    def _restart(self) -> None:
        """Starts on another session, because the own one was lost. Only while `_restartable`, so once, with nothing
        sent.
        """
        self._restarted = True
        self._begin_again(self.attempt.restart(self.turn))

    def _begin_again(self, attempt: Attempt, *, begun: bool = False) -> None:
        """Discards the current attempt except its usage, and begins `attempt`."""
        self.raw_items.clear()
        self._append(self._usage.begin_attempt(begun=begun), 0)
        self._restartable = ""
        self.attempt = attempt
        self._checking = self._paused = False
        session, self._session = self._session, None
        self.continued = False
        if session is not None:
            session.close()
        self._host.open_session(self, attempt)

    def _turn_so_far(self) -> Turn:
        """Returns the turn with the model's items up to the last output of calls that ran here, which must not be
        repeated.
        """
        ran = self.attempt.policy.ran_calls
        last = max((index for index, raw in enumerate(self.raw_items) if output_id(raw) in ran), default=-1)
        items = [RawHistoryItem(clean_item(raw)) for raw in self.raw_items[: last + 1]]
        return msgspec.structs.replace(self.turn, history=(*self.turn.history, *items))

    # --- the end --------------------------------------------------------------------------------

    def _end(self, ended: TurnEnded) -> None:
        if not self._repair.ended:
            self._append(self._repair.feed([ended]), 0)

    def break_off(self) -> None:
        """Fails the turn at once, so that clients and the slot do not wait for a time limit."""
        recorder, self._recorder = self._recorder, None
        session, self._session = self._session, None
        failure = msgspec.structs.replace(UNFORESEEN, repeatable=not self._acted)
        ended = TurnEnded.with_failure(failure)
        events: list[Event] = []

        def end_log() -> None:
            if not (events or self.log.ended):
                events.append(ended)  # renderers add the ends of items that are lost
            self.log.append(events, 0, ended=True)  # wakes readers, which may not know of the end yet

        def tell_observers() -> None:
            if events:
                release_all(*(partial(observer.add, events) for observer in self.observers))
            if recorder is not None:
                recorder.on_failure(failure)
                recorder.on_end(ended)

        release_all(
            lambda: events.extend(self._repair.feed([ended])),
            end_log,
            partial(self._host.release_run, self),
            self._watch.stop,
            self._calls.cancel,
            *(() if session is None else (session.close,)),
            tell_observers,
        )

    def _release_session(self) -> None:
        self._watch.stop()
        self._calls.cancel()
        session = self._session
        if session is None:
            return
        if self._paused:
            self._resume(session)
        if not (session.can_resume and self.attempt.as_asked and self._host.keep(self, session)):
            session.close()
        self._session = None

    # --- readers that are slow ------------------------------------------------------------------

    def _on_backlog(self, size: int) -> None:
        session = self._session
        if self._repair.ended or session is None:
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
        if not (self._calls_running or self._checking or self._paused):
            self._watch.resume()
