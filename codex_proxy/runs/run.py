"""A run is one turn of a client: it finds sessions with the agent, and appends their events to the log. A batch passes
all stages within one call: the attempt (tool policy, check of the answer), the repair, the run itself (which declines
the agent's requests), and the limits. A turn has at most two attempts; a session whose process had already ended does
not count.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextvars import copy_context
from functools import partial, wraps
from typing import Concatenate, Literal, ParamSpec

import msgspec
import structlog

from codex_proxy.agents.dialect import Decision, ToolReply
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.events import (
    VISIBLE,
    AccountLimitsReported,
    ApprovalRequested,
    Event,
    ForwardedBytes,
    InputRequested,
    InputTaken,
    RawItem,
    RequestClosed,
    ServedBy,
    Stop,
    TurnEnded,
    UsageReported,
)
from codex_proxy.core.faults import UNFORESEEN, Failure, Fault
from codex_proxy.core.items import HistoryMessage, HistoryOutput
from codex_proxy.core.limits import TurnLimits
from codex_proxy.core.own_errors import break_off_on_error, release_all, task_of_turn
from codex_proxy.core.repair import TurnRepair
from codex_proxy.core.turn import Turn, with_items
from codex_proxy.runs.asks import OpenAsks
from codex_proxy.runs.event_log import CUT_WATER, HIGH_WATER, LOW_WATER, TOO_SLOW, EventLog, TurnObserver
from codex_proxy.runs.idle_sessions import HistoryDigests, ReusedSession
from codex_proxy.runs.observers import ProgressLines, TurnRecorder, TurnWatcher, model_asked, observe
from codex_proxy.runs.server_calls import ServerCalls, ToolRunner, approved_calls, with_outputs
from codex_proxy.runs.services import RunServices, call_id_entry
from codex_proxy.runs.steered_inputs import SteeredInputs
from codex_proxy.runs.time_and_tokens import Deadlines, DeadlineWatch, TurnUsage, deadline_failure
from codex_proxy.runs.whole_history import Replay, followed_by
from codex_proxy.tools.attempt import Attempt
from codex_proxy.tools.policy import PolicyResult, ToolOutput
from codex_proxy.tools.replay import assistant_messages, entries_of, output_id, raw_history, visible_calls
from codex_proxy.tools.schemas import TextCheck, Verdict
from codex_proxy.workers.slots import Slot

log = structlog.get_logger(__name__)

P = ParamSpec("P")

QUESTIONS = (ApprovalRequested, InputRequested, RequestClosed)
SLOW_SCHEMA = "The schema in '{}' may take too long to compile: ask with a simpler one."
HANDLED_EVENTS = frozenset({RawItem, ServedBy, UsageReported, InputTaken, AccountLimitsReported, *QUESTIONS})


def _fails_turn_on_error(method: Callable[Concatenate[Run, P], None]) -> Callable[Concatenate[Run, P], None]:
    """Wraps a method that others call: an exception breaks the turn off, and the turn's end releases its session."""

    @wraps(method)
    def guarded(run: Run, /, *args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(run, *args, **kwargs)
            if run._repair.ended and not run._watch.stopped:
                run._release_session()
        except Exception:  # noqa: BLE001 - logged
            break_off_on_error(run)

    return guarded


class Run:
    """One turn, which has a slot until its last event is logged."""

    _asks: OpenAsks | None = None

    def __init__(
        self,
        turn: Turn,
        services: RunServices,
        slot: Slot,
        running: set[Run],
        max_chars: int,
        deadlines: Deadlines,
        *,
        runner: ToolRunner | None = None,
        replay: Replay | None = None,
        inputs: SteeredInputs | None = None,
        remembers: bool = True,
        durable: bool = True,
    ) -> None:
        """The run is in `running` until it has ended. An answer of `max_chars` is cut. The others: see
        `RunScheduler.start`.
        """
        self.turn = turn
        """The turn as the client asked for it, with its owner; the history grows by the input that the agent takes."""
        self.attempt: Attempt
        """Set when `start` returns."""
        self._digests: HistoryDigests | None = None
        """The digests of the history, if a kept session was looked for."""
        self.log = EventLog(self._on_backlog)
        self.observers: Sequence[TurnObserver] = ()
        self.raw_items: list[bytes] = []
        """The current attempt's raw items."""
        self.upstream = ""  # the one that answers, of several
        self.continued = False
        """Whether the agent's session has seen the conversation so far."""
        self._services, self._slot, self._running, self._inputs = services, slot, running, inputs
        self._runner, self._replay, self._remembers, self._durable = runner, replay, remembers, durable
        self._context = copy_context()
        """The request's context variables: events arrive in another context."""
        self._awaited_events: frozenset[type[Event]] | None = None
        """The types of events that the attempt needs now; None: all."""
        self._repair = TurnRepair()
        self._progress = ProgressLines(self._repair, self._context)
        self._agent = services.agent_of(turn)
        max_tokens = None if "max_tokens" in self._agent.capabilities else turn.max_tokens
        self._limits = TurnLimits(chars=max_chars, stop=turn.stop, max_tokens=max_tokens)
        self._usage = TurnUsage(turn, self._agent.name, services.added_tokens)
        self._recorder: TurnRecorder | None = None
        self._calls: ServerCalls | None = None
        self._calls_running = 0
        self._checking = False
        """Whether a worker checks texts; events wait in the policy."""
        self._acted = False
        """Whether this server ran calls, which may have changed something."""
        self._session: AgentSession | None = None
        self._began = False
        """Whether the agent has begun the turn."""
        self._restartable: Literal["", "until_output", "until_visible"] = ""
        """When another session may take over because the process ended. `until_visible`: while the client has seen
        nothing (kept sessions); `until_output`: while the process has sent nothing (new ones).
        """
        self._restarted = self._paused = False
        self._watch = DeadlineWatch(deadlines, asyncio.get_running_loop(), self._on_deadline)
        running.add(self)

    @property
    def ended(self) -> bool:
        """Whether the turn has ended; the log may still get the last events."""
        return self._repair.ended

    # --- the begin ------------------------------------------------------------------------------

    async def start(self, watchers: Sequence[TurnWatcher], first: Sequence[Event]) -> None:
        """Finds a session and begins the turn on it. `first`: events before the agent's. Raises `Fault` if that fails;
        the caller calls `end_unbegun` then.
        """
        session: ReusedSession | AgentSession | None = None
        try:
            if self.turn.calls_without_ids:
                self.turn = await self._services.with_call_ids(self.turn)
            self.observers, self._recorder = observe(self.turn, self._agent, watchers, first)
            self.log.observe(self.observers)
            if self._recorder is not None:
                self._runner = await self._recorder.prepare(self._runner)
            if len(self.turn.history) > 1 and approved_calls(self.turn):  # a first message approves nothing
                self.attempt = await self._services.first_attempt(self.turn, self._agent)
            else:
                session = await self._first_session()
            # No await between here and the turn's begin, whose end gives the session back.
            if not self._repair.ended:
                self._watch.start()
                if first:
                    self._append(self._repair.feed(first), 0)
            model, mode = model_asked(self.turn), self.turn.mode
            line = partial(log.info, agent=self._agent.name, model=model, mode=mode)
        except BaseException:
            if session is not None:
                self._services.give_up(session)
            raise
        self._begin(session)
        # After the agent has the turn, since a line costs a twentieth of the wait for the first token.
        asyncio.get_running_loop().call_soon(line, "turn_started", context=self._context)

    @_fails_turn_on_error
    def end_unbegun(self, error: BaseException) -> None:
        """Ends the turn for which `start` has raised `error`."""
        self._recorder = None
        if isinstance(error, Fault):
            self._end(TurnEnded.with_failure(error.failure))
        elif isinstance(error, Exception):
            self._end(TurnEnded.with_failure(UNFORESEEN))
        else:
            self._end(TurnEnded(Stop.INTERRUPTED))

    @_fails_turn_on_error
    def _begin(self, session: ReusedSession | AgentSession | None) -> None:
        """Begins on the session; without one, runs the approved calls first."""
        if session is not None:
            self._begin_session(session)
        elif not self._repair.ended:
            self._acted = True
            self._watch.pause()
            self._server_calls().begin_work(self._run_approved_calls())
        if not self._repair.ended:
            self._progress.start()

    @task_of_turn
    async def _run_approved_calls(self) -> None:
        self.turn = await self._server_calls().run_approved(self, self.turn)
        if self._repair.ended:
            return
        outputs = [item for item in self.turn.history if isinstance(item, HistoryOutput)]
        if isinstance(self._replay, tuple):
            self._replay = with_outputs(self._replay, outputs)
        self._begin_session(await self._first_session())

    async def _first_session(self) -> ReusedSession | AgentSession:
        """Makes the first attempt, and returns its session. Raises `Fault`."""
        first = await self._services.first_attempt(self.turn, self._agent)
        found = await self._services.first_session(first, self.turn, self._replay)
        self.attempt, session, self._digests = found
        return session

    def _server_calls(self) -> ServerCalls:
        if self._calls is None:
            self._calls = ServerCalls(self._runner, partial(self._services.spawn, context=self._context))
        return self._calls

    def _open_asks(self) -> OpenAsks:
        if self._asks is None:
            spawn = partial(self._services.spawn, context=self._context)
            self._asks = OpenAsks(self.turn, self._slot, self._watch, spawn, self._answer)
        return self._asks

    @task_of_turn
    async def _open_session(self, attempt: Attempt) -> None:
        opened = await self._services.further_session(attempt, self.turn, self._replay)
        self._begin_session(opened)

    @_fails_turn_on_error
    def _begin_session(self, opened: ReusedSession | AgentSession) -> None:
        """Begins the turn on a new or kept session; closes it if the turn is over."""
        reused, session = (opened, opened.session) if isinstance(opened, ReusedSession) else (None, opened)
        try:
            if reused is None:
                self._services.claim(session, self, self._agent.name)
        except BaseException:  # of this server's own code
            self._services.give_up(opened)
            raise
        if self._repair.ended:
            session.close()
            return
        self._session, self._began = session, True
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
        else:
            session.listener = self
            if self._inputs is not None:
                self._inputs.on_resuming(session, reused.new_items)
            session.resume(self.attempt.turn, reused.new_items)
            for answered in reused.hidden:
                session.answer(answered.request_id, ToolReply(answered.output.parts))
        if self._inputs is not None:
            self._inputs.on_begun(session)

    # --- what clients and this server's calls do ------------------------------------------------

    @_fails_turn_on_error
    def add_events(self, events: Sequence[Event]) -> None:
        """Adds this server's events, unless the turn is over."""
        if not self._repair.ended:
            self._log_events(list(events), 0)

    @_fails_turn_on_error
    def decide(self, request_id: str, decision: Decision) -> None:
        """Answers a question for permission of which the client was asked, if it is still open."""
        if self._asks is not None:
            self._asks.decide(request_id, decision)

    @_fails_turn_on_error
    def _answer(self, request_id: str, decision: Decision) -> None:
        if self._session is None or self._repair.ended:
            return
        if self._calls is None or not self._calls.decide(self, request_id, decision):
            self._session.answer(request_id, decision)

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
        if self.turn.forwarded is not None and len(events) == 1 and type(events[0]) is ForwardedBytes:
            self._watch.note_event(visible=True)
            self.log.append(events, size)  # no stage has anything to do with it
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
            self._server_calls().begin_work(self._check(self.attempt, result.checks))
        if result.again:
            self._begin_again(self.attempt.retry(self._turn_so_far()), begun=True)
        if result.calls and not self._repair.ended:
            self._acted = True
            self._calls_running += len(result.calls)
            self._watch.pause()
            self._server_calls().begin(self, result.calls)
        for answered in result.answers:
            session.answer(answered.request_id, ToolReply(answered.output.parts))

    @task_of_turn
    async def _check(self, attempt: Attempt, checks: Sequence[TextCheck]) -> None:
        self.on_verdicts(attempt, await self._services.checks.check_texts(checks))

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
        """Keeps raw items and input, sums usage, takes questions, reports account limits. The events stay."""
        for index, event in enumerate(events):
            kind = type(event)
            if kind not in HANDLED_EVENTS:
                continue  # most are pieces of text
            if kind is RawItem:
                self.raw_items.append(event.json)  # type: ignore[union-attr]
            elif kind is ServedBy:
                self.upstream = event.upstream  # type: ignore[union-attr]
            elif kind is UsageReported:
                events[index] = self._usage.add(event)  # type: ignore[arg-type]
            elif isinstance(event, QUESTIONS):
                events[index] = self._open_asks().take(event)
            elif kind is InputTaken:
                self._take_input(event.id)  # type: ignore[union-attr]
            elif kind is AccountLimitsReported:
                self._agent.limits.update(event.json)  # type: ignore[union-attr]

    def _take_input(self, id: str) -> None:
        """Adds an input, behind the answer so far, to the history from which a further attempt, or request, goes on."""
        self._digests = self._digests or HistoryDigests(self.turn.history)
        messages = () if self._inputs is None else self._inputs.on_taken(id, self._shown_messages())
        added = (*raw_history(self.raw_items), *messages)
        self.turn = with_items(self.turn, added)
        self._replay = followed_by(self._replay, added)
        self.raw_items.clear()

    def _append(self, events: list[Event], size: int, *, of_agent: bool = True) -> None:
        """Logs the events within the limits. `of_agent`: whether an end among them is the agent's, to be explained."""
        given, (events, stop) = events, self._limits.feed(events)
        if stop is not None:
            self._repair.feed([TurnEnded(stop)])
            met, empty = self._limits.stop_sequence, self._limits.empty
            events = [*events, TurnEnded(stop, "provider", cut=True, stop_sequence=met, empty=empty)]
        if not events:
            return
        last = events[-1]
        if type(last) is not TurnEnded:
            self.log.append(events, size)
            return
        if of_agent and not (last.cut or self.turn.forwarded is not None):
            last = self._repair.with_reason(last)
        if last.failure is not None:
            failure = self._services.with_details(self.turn, last.failure)
            if self._acted:
                failure = msgspec.structs.replace(failure, repeatable=False)
            last = msgspec.structs.replace(last, failure=failure)
        estimate = self._usage.at_end(last, given, events, self._repair) if self._began else ()
        self._log_end([*events[:-1], *estimate], last, size)

    def _log_end(self, before: list[Event], ended: TurnEnded, size: int) -> None:
        """Logs the last events, when the recorder, and the step memory for the next request, have what they need."""
        works = [] if self._recorder is None else [*self._recorder.settle(ended)]
        if self._remembers and self._began and self.attempt.policy.visible:
            works.append(self._services.remember(self.turn.owner, self._entries, durable=self._durable))
        if not works:
            self._close_log([*before, ended], size)
            return
        if before:
            self.log.append(before, size)
        self._services.spawn_in_turn(works, self._context, lambda: self._close_log([ended], 0))

    def _entries(self) -> dict[bytes, bytes]:
        """Returns the turn's calls, with items that the client does not get, for the step memory."""
        policy, identity = self.attempt.policy, self._services.agent_and_model(self.turn)
        entries = entries_of(self.raw_items, policy, identity, plain=self.turn.mode == "model")
        if self.turn.calls_without_ids:
            entries |= call_id_entry(self.turn, self._shown_messages(), visible_calls(policy))
        return entries

    def _shown_messages(self) -> tuple[HistoryMessage, ...]:
        """Returns the answer's messages as the client will send them back."""
        said, check = assistant_messages(self.raw_items), self.attempt.check
        return said if check is None else check.as_shown(said)

    @_fails_turn_on_error
    def _close_log(self, events: list[Event], size: int) -> None:
        if self._recorder is not None:
            self._recorder.on_end(events[-1])  # type: ignore[arg-type]
            self._recorder = None
        self.log.append(events, size, ended=True)
        self._release()

    def _release(self) -> None:
        """Gives the slot back, once."""
        self._running.discard(self)
        self._progress.stop()
        self._slot.give_back()

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
        self._services.spawn(self._open_session(attempt), self._context)

    def _turn_so_far(self) -> Turn:
        """Returns the turn with the model's items up to the last output of calls that ran here, which must not be
        repeated.
        """
        ran = self.attempt.policy.ran_calls
        last = max((index for index, raw in enumerate(self.raw_items) if output_id(raw) in ran), default=-1)
        return with_items(self.turn, raw_history(self.raw_items[: last + 1]))

    # --- the end --------------------------------------------------------------------------------

    def _end(self, ended: TurnEnded) -> None:
        if not self._repair.ended:
            self._append(self._repair.feed([ended]), 0, of_agent=False)

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

        def end_recording() -> None:
            if recorder is not None:
                recorder.on_failure(failure)
                recorder.on_end(ended)

        release_all(
            lambda: events.extend(self._repair.feed([ended])),
            end_log,
            self._release,
            self._watch.stop,
            *(() if self._calls is None else (self._calls.cancel,)),
            *(() if session is None else (session.close,)),
            end_recording,
        )

    def _release_session(self) -> None:
        self._watch.stop()
        if self._calls is not None:
            self._calls.cancel()
        if self._inputs is not None:
            self._inputs.on_ended()
        session = self._session
        if session is None:
            return
        if self._paused:
            self._resume(session)
        keeps = session.can_resume and self.attempt.as_asked
        if keeps:
            said = (*(() if self._inputs is None else self._inputs.said), *self._shown_messages())
            keeps = self._services.keep(session, self.turn, self.attempt, self._digests, said)
        if not keeps:
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
