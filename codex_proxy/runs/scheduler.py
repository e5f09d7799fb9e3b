"""Starts turns, limits how many run at once, and does what has to be awaited for them. A turn has a slot before any
process is started, until its last event is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextvars import Context, copy_context
from functools import partial
from typing import Any

import msgspec
import structlog

from codex_proxy.agents.agent import Agent, agent_for
from codex_proxy.agents.processes.session import AgentSession
from codex_proxy.core.account import with_context_length, with_reset
from codex_proxy.core.events import Event, Stop, TurnEnded
from codex_proxy.core.faults import STOPPING, UNFORESEEN, Failure, Fault, FaultKind
from codex_proxy.core.items import HistoryItem, HistoryMessage, HistoryOutput
from codex_proxy.core.limits import MAX_TURN_CHARS, TurnLimits
from codex_proxy.core.own_errors import break_off_on_error, release_all
from codex_proxy.core.step_memory import RamStepMemory, StepMemory, StepMemorySettings
from codex_proxy.core.tasks import keep_until_done
from codex_proxy.core.turn import Turn
from codex_proxy.runs.call_ids import call_id_entry, with_call_ids
from codex_proxy.runs.deadlines import Deadlines
from codex_proxy.runs.idle_sessions import (
    ClosedSession,
    IdleLimits,
    IdleSessions,
    PendingOutputs,
    ReusedSession,
    item_digests,
    session_key,
)
from codex_proxy.runs.observers import REQUEST_RECORDER, TurnObserver, TurnRecorder, TurnWatcher
from codex_proxy.runs.run import Run
from codex_proxy.runs.server_calls import ServerCalls, ToolRunner, approved_calls, with_outputs
from codex_proxy.runs.turn_records import TurnRecord, TurnRecords, activity_of
from codex_proxy.tools.attempt import Attempt
from codex_proxy.tools.checks import TextCheck
from codex_proxy.tools.replay import assistant_messages, entries_of, recalled_history, visible_calls
from codex_proxy.workers.schema_checks import SchemaChecks
from codex_proxy.workers.slots import Slot, Slots

log = structlog.get_logger(__name__)


MEMORY_SECONDS = 10.0
"""Seconds for reading the step memory, and for writing to it."""


MAX_NAME = 100
"""Maximum characters of a model's name in the log."""

CANCELLED = Failure(
    FaultKind.CANCELLED, "The operator has cancelled this turn on the server's page.", repeatable=False
)
PROGRESS_SECONDS = 30.0
"""Seconds between a running turn's lines in the log."""


class RunLimits(msgspec.Struct, frozen=True):
    """The limits of runs. `max_running` turns run at once; of each owner (key) at most `max_waiting` turns wait,
    for at most `max_wait_seconds` (0: none waits). Others are refused with CONCURRENCY_EXCEEDED. A turn of
    `max_chars` ends with `Stop.LENGTH`.
    """

    max_running: int = 16
    max_waiting: int = 64
    max_wait_seconds: float = 30.0
    max_chars: int = MAX_TURN_CHARS


class _RunState(msgspec.Struct):
    """A run's slot, and arguments of `start`."""

    slot: Slot
    durable: bool
    remembers: bool
    replay: tuple[HistoryItem, ...] | None
    context: Context
    """The request's context variables: events arrive in another context."""
    progress: asyncio.TimerHandle | None = None
    """The timer of its next line in the log."""


class RunScheduler:
    """Starts the runs. `drain` and `close` end them."""

    def __init__(
        self,
        agent: Agent,
        limits: RunLimits,
        deadlines: Deadlines | Callable[[Turn], Deadlines],
        *,
        idle_limits: IdleLimits | None = None,
        owners: Callable[[], int] = lambda: 1,
        records: TurnRecords | None = None,
    ) -> None:
        """`owners` returns how many keys there may be; of several none gets all slots. `records` remembers the turns
        for the page.
        """
        self.agent = agent
        self.records = records
        self.watchers: list[TurnWatcher] = [] if records is None else [records]
        self.memory: StepMemory = RamStepMemory(StepMemorySettings(), time.time)
        self.idle_sessions = IdleSessions(idle_limits or IdleLimits(), asyncio.get_running_loop)
        self.checks = SchemaChecks()
        self._limits = limits
        self._deadlines_of = (lambda _: deadlines) if isinstance(deadlines, Deadlines) else deadlines
        self._slots = Slots(limits.max_running, owners)
        self._runs: dict[Run, _RunState] = {}
        self._cancelled: set[TurnObserver] = set()
        """Records of turns that were cancelled before they had a run."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._drain_begun = asyncio.Event()
        self._stopped = False
        """Whether running turns must end at once."""

    @property
    def running(self) -> int:
        """How many turns have a slot."""
        return self._slots.running

    @property
    def queued(self) -> int:
        return self._slots.waiting

    @property
    def draining(self) -> bool:
        """Whether the server stops, and takes no new turns."""
        return self._drain_begun.is_set()

    def cancel(self, record: TurnRecord) -> bool:
        """Ends a turn with an error, perhaps only when its session has started. Returns False if it has ended."""
        if record.has_ended:
            return False
        self._cancelled.add(record)
        for run in list(self._runs):
            self._fail_if_too_late(run)
        return True

    def _fail_if_too_late(self, run: Run) -> None:
        """Fails a run that was cancelled, perhaps before it began, and any once the server must stop."""
        if not self._cancelled.isdisjoint(run.observers):
            self._cancelled.difference_update(run.observers)
            run.fail(CANCELLED)
        elif self._stopped:
            run.fail(STOPPING)

    async def until_draining(self) -> None:
        """Waits until the server begins to stop."""
        await self._drain_begun.wait()

    async def start(
        self,
        turn: Turn,
        owner: str = "",
        *,
        durable: bool = True,
        remembers: bool = True,
        replay: tuple[HistoryItem, ...] | None = None,
        runner: ToolRunner | None = None,
        first: Sequence[Event] = (),
    ) -> Run:
        """Starts a run. Raises `Fault`: STOPPING, CONCURRENCY_EXCEEDED without a slot in time, or the agent's.
        `remembers`: whether calls go to the step memory, and if `durable` to disk. `replay`: the history as the
        model generated it, if stored. `runner` runs this server's tools; `first` are events before the agent's.
        """
        turn = msgspec.structs.replace(turn, owner=owner)
        slot = await self._slot(owner)
        context = copy_context()
        observers: list[TurnObserver] = []
        session: ReusedSession | AgentSession | None = None
        try:
            turn = await self._with_call_ids(turn)
            agent = self.agent_of(turn)
            observers += [watcher.begin(turn, agent.name) for watcher in self.watchers]
            recorder = _recorder_of(turn, agent, first, observers)
            if approved_calls(turn):
                attempt = await self._first_attempt(turn)
            else:
                attempt, session = await self._first_session(turn, replay)
            # No await between here and the run's begin: it owns the session from now on, and its end gives it back.
            runner = runner if recorder is None else recorder.runner(runner)
            calls = ServerCalls(runner, lambda work: self._spawn(work, context))
            run = self._make_run(turn, attempt, calls, recorder, observers)
        except BaseException as error:
            self._cancelled.difference_update(observers)
            ended = _end_of(error)
            release_all(
                slot.give_back,
                partial(self._give_up, session),
                *(partial(observer.add, [ended]) for observer in observers),
            )
            raise
        state = self._runs[run] = _RunState(slot, durable, remembers, replay, context)
        if first:
            run.add_first_events(first)
        with self._fail_on_error(run):
            if session is not None:
                self._begin_session(run, session)
            elif not run.ended:
                run.start_preparing(self._begin_with_approved_calls(run, calls))
        self._fail_if_too_late(run)
        loop = asyncio.get_running_loop()
        if not run.ended:
            progress = partial(self._log_progress, run, PROGRESS_SECONDS)
            state.progress = loop.call_later(PROGRESS_SECONDS, progress, context=context)
        # After the agent has the turn, since a line costs a twentieth of the wait for the first token.
        line = partial(log.info, agent=agent.name, model=turn.model[:MAX_NAME], mode=turn.mode)
        loop.call_soon(line, "turn_started", context=context)
        return run

    def _make_run(
        self,
        turn: Turn,
        attempt: Attempt,
        calls: ServerCalls,
        recorder: TurnRecorder | None,
        observers: Sequence[TurnObserver],
    ) -> Run:
        max_tokens = None if "max_tokens" in self.agent_of(turn).capabilities else turn.max_tokens
        limits = TurnLimits(chars=self._limits.max_chars, stop=turn.stop, max_tokens=max_tokens)
        loop, deadlines = asyncio.get_running_loop(), self._deadlines_of(turn)
        return Run(
            turn, attempt, loop, deadlines, self,
            limits=limits, calls=calls, recorder=recorder, observers=observers,
        )  # fmt: skip

    async def _begin_with_approved_calls(self, run: Run, calls: ServerCalls) -> None:
        with self._fail_on_error(run):
            run.turn = await calls.run_approved(run, run.turn)
            if run.ended:
                return
            state = self._runs[run]
            outputs = [item for item in run.turn.history if isinstance(item, HistoryOutput)]
            if state.replay is not None:
                state.replay = with_outputs(state.replay, outputs)
            run.attempt, session = await self._first_session(run.turn, state.replay)
            self._begin_session(run, session)

    @contextlib.contextmanager
    def _fail_on_error(self, run: Run) -> Iterator[None]:
        try:
            yield
        except Fault as fault:
            run.fail(fault.failure)
        except Exception:  # noqa: BLE001 - logged
            break_off_on_error(run)

    async def _first_session(
        self, turn: Turn, replay: tuple[HistoryItem, ...] | None
    ) -> tuple[Attempt, ReusedSession | AgentSession]:
        """Returns the first attempt, and its session: a kept one, else a reopened or a new one, whose history has the
        model's items from `replay` and the step memory. Raises `Fault`.
        """
        attempt = await self._first_attempt(turn)
        closed: ClosedSession | None = None
        # A first message continues nothing.
        if attempt.as_asked and self.idle_sessions and len(turn.history) > 1:
            key = session_key(turn.owner, attempt.turn)
            reused = self.idle_sessions.take(key, turn)
            if reused is not None:
                return attempt, reused
            closed = self.idle_sessions.take_closed(key, turn)
        given = await self._with_memory(_with_replay(turn, turn, replay))
        if given is not turn:
            attempt = attempt.restart(given)
        opened = await self._open(attempt.turn)
        if closed is not None:
            opened.reopen(closed.reopen_id, closed.new_items)
        return attempt, opened

    async def _open(self, turn: Turn) -> AgentSession:
        """Opens a session. Raises `Fault`: UNAVAILABLE if the system has no room for its files."""
        try:
            return await self.agent.open(turn)
        except OSError as error:
            reason = error.strerror or type(error).__name__
            log.error("session_not_opened", agent=self.agent_of(turn).name, reason=reason)
            message = f"The server cannot prepare the agent's turn: {reason}. The operator must correct that."
            raise Fault.of(FaultKind.UNAVAILABLE, message) from error

    async def _first_attempt(self, turn: Turn) -> Attempt:
        able, form = self.agent_of(turn).capabilities, None
        if turn.output_schema is not None and "structured_output" in able:
            form = await self.checks.strict_form(bytes(turn.output_schema))
        return Attempt(turn, form, keeps_choice="tool_choice" in able)

    async def _with_memory(self, turn: Turn) -> Turn:
        history = turn.history
        async with _logged_failure_of_memory():
            history = await recalled_history(turn, self.memory, self.agent_and_model(turn))
        return turn if history is turn.history else msgspec.structs.replace(turn, history=history)

    async def _with_call_ids(self, turn: Turn) -> Turn:
        if turn.calls_without_ids:
            async with _logged_failure_of_memory():
                return await with_call_ids(turn, self.memory)
        return turn

    def agent_and_model(self, turn: Turn) -> str:
        """Returns `AGENT/MODEL`, under which raw items are stored: no other model can read encrypted reasoning."""
        return f"{self.agent_of(turn).name}/{turn.model}"

    def agent_of(self, turn: Turn) -> Agent:
        return agent_for(self.agent, turn.model)

    # --- what runs ask of their host ------------------------------------------------------------

    def open_session(self, run: Run, attempt: Attempt) -> None:
        """Opens a session for `run.begin_session`, or fails the run."""
        self._spawn(self._open_session(run, attempt), self._context_of(run))

    async def _open_session(self, run: Run, attempt: Attempt) -> None:
        with self._fail_on_error(run):
            state = self._runs.get(run)
            given = _with_replay(attempt.turn, run.turn, state.replay if state else None)
            opened = await self._open(await self._with_memory(given))
            self._begin_session(run, opened)

    async def check(self, run: Run, attempt: Attempt, checks: Sequence[TextCheck]) -> None:
        """Checks texts for `run.on_verdicts`, or fails the run."""

        with self._fail_on_error(run):
            run.on_verdicts(attempt, await self.checks.check_texts(checks))

    def keep(self, run: Run, session: AgentSession) -> bool:
        """Keeps the session for the client's next request, if possible; returns whether."""
        if self.draining:
            return False
        policy = run.attempt.policy
        calls = visible_calls(policy)
        seen, _ = item_digests((*run.turn.history, *_shown_messages(run), *calls))
        pending = PendingOutputs(frozenset(call.call_id for call in calls), tuple(policy.hidden))
        owner = run.turn.owner
        self.idle_sessions.put(owner, session_key(owner, run.attempt.turn), session, seen, pending)
        return True

    def remember(self, run: Run) -> asyncio.Future[None] | None:
        """Saves the turn's calls, with items that the client does not get. Returns a future for its end, if there are
        any.
        """
        if not run.attempt.policy.visible or not self._runs[run].remembers:
            return None
        return self._spawn(self._remember(run), self._context_of(run))

    async def _remember(self, run: Run) -> None:
        plain = run.turn.mode == "model"
        entries = entries_of(run.raw_items, run.attempt.policy, self.agent_and_model(run.turn), plain=plain)
        if run.turn.calls_without_ids:
            calls = visible_calls(run.attempt.policy)
            entries |= call_id_entry(run.turn, _shown_messages(run), calls)
        async with _logged_failure_of_memory():
            await self.memory.remember(run.turn.owner, entries, durable=self._runs[run].durable)

    def report_limits(self, run: Run, json: bytes) -> None:
        self.agent_of(run.turn).limits.update(json)

    def with_details(self, run: Run, failure: Failure) -> Failure:
        """Adds what the agent did not report: the context window, or the next reset."""
        known, age = self.agent_of(run.turn).limits.newest()
        now = time.time()
        failure = with_reset(failure, known, reported_at=now - age, now=now)
        return with_context_length(failure, run.turn.model, self.agent.models())

    def release_run(self, run: Run) -> None:
        """Forgets the run and frees its slot, once."""
        state = self._runs.pop(run, None)
        if state is not None:
            if state.progress is not None:
                state.progress.cancel()
            state.slot.give_back()

    def _log_progress(self, run: Run, seconds: float) -> None:
        state = self._runs[run]
        log.info("turn_still_running", seconds=round(seconds), doing=activity_of(run.open_item))
        state.progress = asyncio.get_running_loop().call_later(
            PROGRESS_SECONDS, self._log_progress, run, seconds + PROGRESS_SECONDS, context=state.context
        )

    def _begin_session(self, run: Run, session: ReusedSession | AgentSession) -> None:
        try:
            if not isinstance(session, ReusedSession):
                on_released = partial(self._on_released, agent=self.agent_of(run.turn).name)
                session.claim(run, asyncio.get_running_loop(), on_released)
            run.begin_session(session)
        except BaseException:  # of this server's own code
            self._give_up(session)
            raise

    def _give_up(self, session: ReusedSession | AgentSession | None) -> None:
        if isinstance(session, ReusedSession):
            session.session.close()
        elif session is not None:
            self._spawn(self.agent.release(session, finished=False))

    def _on_released(self, session: AgentSession, finished: bool, agent: str) -> None:
        self._spawn(self.agent.release(session, finished=finished))
        if not finished:
            log.warning("agent_did_not_finish", agent=agent)

    # --- slots ----------------------------------------------------------------------------------

    async def _slot(self, owner: str) -> Slot:
        if self.draining:
            raise Fault(STOPPING)
        slots = self._slots
        slot = slots.take_now(owner)
        if slot is not None:
            return slot
        waiting = slots.waiting_of(owner)
        if waiting >= self._limits.max_waiting or not self._limits.max_wait_seconds:
            raise _no_room(f"{slots.running} requests are running and {waiting} are waiting before this one.")
        try:
            return await slots.take(owner, self._limits.max_wait_seconds)
        except TimeoutError:
            raise _no_room(f"No slot became free within {self._limits.max_wait_seconds:g} s.") from None

    # --- the end of a run -----------------------------------------------------------------------

    def _context_of(self, run: Run) -> Context | None:
        return self._runs[run].context if run in self._runs else None

    def _spawn(self, work: Coroutine[Any, Any, None], context: Context | None = None) -> asyncio.Task[None]:
        return keep_until_done(self._tasks, asyncio.get_running_loop().create_task(work, context=context))

    async def drain(self, within: float) -> None:
        """Takes no new turns, waits up to `within` seconds for running ones, then fails them with STOPPING."""
        self.begin_drain()
        await self.checks.close()  # the end waits for turns, and for no check
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                await self._slots.wait_until_idle()
        # They fail instead of being interrupted, because their clients must see that the answer is incomplete.
        self._end_runs()

    def begin_drain(self) -> None:
        """Takes no new turns; waiting ones fail with STOPPING."""
        self._drain_begun.set()
        self._slots.stop(Fault(STOPPING))

    def _end_runs(self) -> None:
        self._drain_begun.set()
        self._stopped = True
        for run in list(self._runs):
            run.fail(STOPPING)

    async def close(self) -> None:
        """Ends all runs and the agent; returns when all sessions are released."""
        self._end_runs()
        self.idle_sessions.close()
        await self.checks.close()
        await self.agent.close()
        if self._tasks:
            await asyncio.gather(*self._tasks, return_exceptions=True)


def _shown_messages(run: Run) -> tuple[HistoryMessage, ...]:
    """Returns the answer's messages as the client will send them back."""
    said, check = assistant_messages(run.raw_items), run.attempt.check
    return said if check is None else check.as_shown(said)


def _with_replay(turn: Turn, requested: Turn, replay: tuple[HistoryItem, ...] | None) -> Turn:
    if replay is None:
        return turn
    return msgspec.structs.replace(turn, history=(*replay, *turn.history[len(requested.history) :]))


def _recorder_of(
    turn: Turn, agent: Agent, first: Sequence[Event], observers: Sequence[TurnObserver]
) -> TurnRecorder | None:
    """Returns the turn's recorder, if any, which tells the page's record its file."""
    request = REQUEST_RECORDER.get()
    recorder = None if request is None else request.turn(turn, agent, first)
    record = next((each for each in observers if isinstance(each, TurnRecord)), None)
    if recorder is not None and record is not None:
        recorder.on_written = record.on_written
    return recorder


def _end_of(error: BaseException) -> TurnEnded:
    if isinstance(error, Fault):
        return TurnEnded.with_failure(error.failure)
    if isinstance(error, Exception):
        return TurnEnded.with_failure(UNFORESEEN)
    return TurnEnded(Stop.INTERRUPTED)


def _no_room(message: str) -> Fault:
    return Fault.of(FaultKind.CONCURRENCY_EXCEEDED, f"{message} Try again later.", retry_after=5)


@contextlib.asynccontextmanager
async def _logged_failure_of_memory() -> AsyncIterator[None]:
    """Logs what the block raises, and ends it after `MEMORY_SECONDS`: without the step memory an answer is still right,
    and Chat Completions and Messages work while the store does not.
    """
    try:
        async with asyncio.timeout(MEMORY_SECONDS):
            yield
    except Exception:
        log.exception("step_memory_failed")
