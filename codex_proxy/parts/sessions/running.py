"""A session that clients read or act on, or whose turn goes on. Its turn is run as any request for a response: what the
session's agent and log say is a Responses request, which is parsed, admitted and started; it ends where the agent waits
for the client, and another run goes on when the results are there. Every change is stored before readers learn of it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator, Sequence
from functools import partial
from typing import Literal

import structlog

from codex_proxy.core.beside_the_loop import beside_the_loop
from codex_proxy.core.events import Stop, TurnElsewhere, TurnEnded
from codex_proxy.core.faults import UNFORESEEN, Failure, Fault, FaultKind
from codex_proxy.core.keys import NO_KEY_OWNER
from codex_proxy.core.own_errors import trace_of
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import Turn, fixed_by_session
from codex_proxy.parts.sessions.agent_threads import AgentThreads
from codex_proxy.parts.sessions.approvals import MAY_NOT_APPROVE, Approval, Ask
from codex_proxy.parts.sessions.commands import (
    Change,
    HeldMessages,
    Interrupt,
    Result,
    Submitted,
    conflict,
    is_new_answer,
    is_new_result,
    once,
    require_active,
)
from codex_proxy.parts.sessions.commits import Commits
from codex_proxy.parts.sessions.conversation import message_item
from codex_proxy.parts.sessions.records import (
    LEASE_LOST,
    SESSION,
    TURN,
    Input,
    input_record,
    not_found,
)
from codex_proxy.parts.sessions.run_tokens import RunTokens
from codex_proxy.parts.sessions.server import Server
from codex_proxy.parts.sessions.sessions import (
    Content,
    Session,
    TurnError,
)
from codex_proxy.parts.sessions.state import SessionState
from codex_proxy.parts.sessions.turn_errors import expired
from codex_proxy.parts.sessions.turn_requests import of_turn
from codex_proxy.responses.prepare import PreparedResponse, try_to_start
from codex_proxy.runs.event_log import have_an_end
from codex_proxy.runs.observers import note_session_turn
from codex_proxy.runs.run import Run
from codex_proxy.runs.steered_inputs import SteeredInputs, takes_input
from codex_proxy.store.record_leases import RecordLease
from codex_proxy.store.values import Record
from codex_proxy.surfaces.answers.usage import tokens_in
from codex_proxy.surfaces.models import billed_model
from codex_proxy.workers.slots import Slot

log = structlog.get_logger(__name__)


class LiveSession:
    """A session on this server. `state` changes under `lock` only."""

    def __init__(
        self,
        service: Server[LiveSession],
        owner: str,
        state: SessionState,
        lease: RecordLease | None = None,
    ) -> None:
        """`lease`: None for a session that is not stored yet."""
        self.owner = owner
        self.commits = Commits(service, owner, state.session, lease)
        if lease is not None:
            lease.on_lost = self.on_lease_lost
        self.state = state
        self.threads = AgentThreads(service.responses.runs.services, owner, state)
        self.lock = asyncio.Lock()
        self.gone = False
        """Whether the session was deleted, so that nothing of it may be stored again."""
        self._service = service
        self._holders = 0
        """How many use this object now, or are about to."""
        self._task: asyncio.Task[None] | None = None
        """The task of a turn that the agent works on."""
        self._starting: asyncio.Task[Run] | None = None
        self._run: Run | None = None
        self._inputs: SteeredInputs | None = None
        """The messages that the agent is given while it works, if it takes any."""
        self._steering = asyncio.Lock()
        """Held while messages are added to them, whose order must stay."""
        self._cancelled = False
        self._prepared: PreparedResponse | None = None
        """The first run of a new session, which is prepared before the session exists."""
        self._place: Slot | None = None
        """The run's place among what runs in the background."""
        self._expiry: asyncio.TimerHandle | None = None

    @property
    def session(self) -> Session:
        return self.state.session

    @property
    def is_idle(self) -> bool:
        """Whether nobody needs this object: the store has all of the session."""
        return self._task is None and not (self._holders or self.state.turn)

    @property
    def at_work(self) -> bool:
        return self._task is not None

    @property
    def waits(self) -> bool:
        """Whether the turn waits for the client."""
        return self.state.turn is not None and not self.at_work

    @property
    def asks(self) -> bool:
        """Whether the agent waits for an answer of the client, and takes no place of other turns."""
        return bool(self.session.open_asks)

    @contextlib.contextmanager
    def held(self) -> Iterator[LiveSession]:
        """Keeps this object the one that the server knows for the session: another one beside it, made from the store,
        would not know of a turn that begins here.
        """
        self._holders += 1
        try:
            yield self
        finally:
            self._holders -= 1
            self._service.let_go(self)

    @contextlib.asynccontextmanager
    async def _changing(self) -> AsyncIterator[None]:
        with self.held():
            async with self.lock:
                yield

    # --- what clients do ----------------------------------------------------------------------------

    async def create(
        self, messages: Sequence[Content], prepared: PreparedResponse, past: Sequence[Record] = ()
    ) -> None:
        """Stores a new session, and begins its first turn (`prepared`) if it has messages. `past`: what it has already.
        Raises `Fault`.
        """
        async with self._changing():
            self._prepared = prepared if messages else None
            self.state.create(messages, self._service.new_id("turn_"), self._service.now())
            await self._commit(past)
            self._go_on()

    async def submit(self, changes: Sequence[Submitted], key: tuple[str, str] | None) -> None:
        """Applies a client's events in their order: all, or none. `key`: an `Idempotency-Key` with the digest of the
        body; what was accepted under it before does nothing. Raises `Fault`.
        """
        async with self._changed_by_client():
            if key is not None and await self.has_taken(*key):
                return
            begins = any(isinstance(change, list | HeldMessages) for change in changes)
            elsewhere = await self.threads.turns_elsewhere() if begins else ()
            with self._all_or_none():
                long = await self._add_turns(elsewhere)
                accepted = [await self._apply(change) for change in changes]
                self._settle()
                epoch = self._service.epoch()
                known = [] if key is None else [input_record(self.session.id, *key, epoch)]
                await self._commit(known, long=long)
            if "cancel" in accepted:
                self._interrupt()
            for each in accepted:
                if isinstance(each, Ask) and each.asked:
                    self._pass_on(each)
            self._go_on()
            if self._inputs is not None:
                self._service.responses.background.tasks.spawn(self._steer())

    async def import_elsewhere(self) -> None:
        """Makes what other programs have done on the agent's own session turns of the session, if it is idle. Raises
        `Fault`.
        """
        async with self._changed_by_client():
            elsewhere = await self.threads.turns_elsewhere()
            with self._all_or_none():
                await self._commit(long=await self._add_turns(elsewhere))

    async def _add_turns(self, elsewhere: Sequence[TurnElsewhere]) -> bool:
        return await self.threads.add_turns(elsewhere, self._service.new_id, self._service.now)

    async def change(self, change: Change) -> None:
        """Changes the session (`SessionState.change`). Raises `Fault`: CONFLICT to archive it while a turn goes on."""
        async with self._changed_by_client(in_archive=change.fits_archived):
            changed = change.applied_to(self.session)
            if changed.archived_at is not None and (self.state.turn is not None or self.session.queued):
                raise conflict("The session is at work. Cancel its turn, and archive it when it is idle.")
            with self._all_or_none():
                now = self._service.now() if change.is_activity else changed.last_active_at
                self.state.change(changed, now, change.fields)
                await self._commit()

    async def delete(self) -> None:
        """Removes the session, and ends its streams. Raises `Fault` CONFLICT while a turn goes on."""
        async with self._changed_by_client(deletes=True):
            if self.state.turn is not None:
                raise conflict("The session is at work. Cancel its turn, and delete it when it is idle.")
            await self.threads.delete_all()
            await self.commits.delete()
            self.gone = True
        self._service.forget(self)

    async def rest(self) -> None:
        """Waits until the agent does not work here."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def note_follower(self) -> None:
        """Has another server told of every change from now on."""
        async with self._changing():  # what is being stored may not see it yet
            self.commits.followed = self._service.is_shared

    def on_lease_lost(self) -> None:
        """Ends what goes on here: another server goes on with the session."""
        log.info("session_lease_lost", session=self.session.id)
        if self._expiry is not None:
            self._expiry.cancel()
        self._service.streams.interrupt(self.owner, self.session.id)
        self._service.forget(self)
        if self._task is not None:
            self._on_right_lost(LEASE_LOST)

    @contextlib.asynccontextmanager
    async def _changed_by_client(
        self, *, deletes: bool = False, in_archive: bool = False
    ) -> AsyncIterator[None]:
        """Lets a client change the session. Raises `Fault` if it was deleted, or archived unless the client `deletes`
        it or the change may be made `in_archive`; also at once while the store takes nothing, for which the turn waits
        and holds the session.
        """
        if self.commits.trouble is not None:
            raise Fault(self.commits.trouble)
        async with self._changing():
            if self.gone:
                raise not_found(SESSION, self.session.id)
            if not (deletes or in_archive):
                require_active(self.session)
            yield

    @contextlib.contextmanager
    def _all_or_none(self) -> Iterator[None]:
        """Takes a change of the state back if not all of it can be made and stored."""
        undo = self.state.undo()
        try:
            yield
        except BaseException:
            undo()
            raise

    async def has_taken(self, key: str, digest: str) -> bool:
        """Whether events were accepted under this `Idempotency-Key`. Raises `Fault` CONFLICT if they were others."""
        found: Input | None = await self._service.store.input(self.owner, self.session.id, key)
        if found is not None and found.digest != digest:
            raise conflict("The Idempotency-Key was used for other events of this session.")
        return found is not None

    async def _apply(self, change: Submitted) -> Ask | Literal["cancel"] | None:
        """Applies an event to the state. Returns what the run has to be told: the question that is answered now, or its
        end.
        """
        now = self._service.now()
        match change:
            case Approval():
                return await self._apply_answer(change, now)
            case Result():
                await self._apply_result(change, now)
            case Interrupt(name):
                return "cancel" if self.state.cancel(now, name) else None
            case "cancel":
                return "cancel" if self.state.cancel(now) else None
            case HeldMessages(messages, turn):
                self.state.add_messages(messages, turn, now, steers=False)
            case _:
                self.state.add_messages(change, self._service.new_id("turn_"), now)
        return None

    async def _apply_result(self, given: Result, now: int) -> None:
        id = given.result.call_id
        call = self.state.call(id) or await self._service.store.call(self.owner, self.session.id, id)
        with once(given.once, id):
            if call is not None and call.turn != given.turn:
                await self._refuse_late(given)
            if is_new_result(given, call, self.session):
                self.state.add_result(given, now)
            elif given.once:
                raise conflict("The call has its result already.")

    async def _refuse_late(self, given: Result) -> None:
        """Raises `Fault` CONFLICT for a result of a turn that has ended: its call's id is that of a later one, too."""
        turn = await self._service.store.find(self.owner, TURN, given.turn)
        if turn is not None and turn.session == self.session.id and turn.completed_at is not None:
            raise conflict(f"The turn of the call '{excerpt(given.result.call_id)}' has ended.")

    async def _apply_answer(self, given: Approval, now: int) -> Ask | None:
        id = given.request_id
        ask = self.state.ask(id) or await self._service.store.ask(self.owner, self.session.id, id)
        if ask is not None and not self._may_approve(given):
            raise Fault(MAY_NOT_APPROVE)
        with once(given.once, id):
            if not is_new_answer(given, ask, self.session):
                if given.once:
                    raise conflict("The approval request has its answer already.")
                return None
            if self._cancelled:
                raise conflict("The turn of the approval request was cancelled.")
        assert ask is not None, "a new answer has a question"
        self.state.add_answer(given, ask, now)
        return self.state.ask(id)

    def _may_approve(self, given: Approval) -> bool:
        """Whether this answer is one of a client that may approve."""
        return self._has_approver() and (given.by_approver or self.owner != NO_KEY_OWNER)

    def _has_approver(self) -> bool:
        """Whether somebody may answer the session's questions now. Raises `Fault` if its key is no longer valid."""
        return self._service.responses.clients.by_name(self.owner).has_approver

    def _pass_on(self, ask: Ask) -> None:
        """Gives the agent the answer; the last one when the run has its place again."""
        if self.asks:
            self._decide(ask)
        else:
            self._service.responses.background.tasks.spawn(self._decide_in_place(ask))

    async def _decide_in_place(self, ask: Ask) -> None:
        await self._take_place()
        self._decide(ask)

    async def _take_place(self) -> None:
        """Takes the run's place again, if it was lent."""
        if self._place is not None:
            with contextlib.suppress(Fault):  # where the server stops: that ends the run, too
                await self._place.take_again()
            if self.asks:  # of something else, meanwhile
                self._place.lend()

    def _decide(self, ask: Ask) -> None:
        if self._run is not None:
            self._run.decide(ask.asked, ask.decision)

    def _interrupt(self) -> None:
        self._cancelled = True
        if self._run is not None:
            self._run.interrupt()
        elif self._starting is not None:
            self._starting.cancel()

    # --- the turn -----------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Begins the next turn, or tells that the session is idle, if the turn has ended just now."""
        may_begin = not self._service.responses.runs.draining
        self.state.settle(self._service.now(), may_begin=may_begin)

    async def _commit(self, more: Sequence[Record] = (), *, long: bool = False) -> None:
        await self.commits.commit(self.session, self.state.take(self._service.epoch()), more, long=long)

    def _go_on(self) -> None:
        """Has the agent go on with the turn, if there is something to do for it."""
        has_waited = self._expiry is not None
        self._limit_wait()
        if self.state.wants_run:
            if self._task is None:
                self._task = self._service.responses.background.tasks.spawn(self._work())
        elif self.state.turn is None:
            if has_waited:  # no result comes any more for which the agent's session is held open
                self._service.responses.runs.services.idle_sessions.close_stored(self.owner, self.session.id)
            self._service.let_go(self)

    def _limit_wait(self) -> None:
        """Has the turn end after `action_timeout`, if it waits for the client now."""
        if self._expiry is not None:
            self._expiry.cancel()
            self._expiry = None
        if self.asks or not (self.state.wants_run or self.state.turn is None):
            left = self.session.last_active_at + self._service.settings.action_timeout - self._service.epoch()
            self._expiry = asyncio.get_running_loop().call_later(max(0.0, left), self._expire)

    def _expire(self) -> None:
        error = expired(self._service.settings.action_timeout)
        if self._run is not None:
            self._run.fail(Failure(FaultKind.TIMED_OUT, error.message))
        else:
            self._service.responses.background.tasks.spawn(self.resume(error))

    async def resume(self, error: TurnError | None = None) -> None:
        """Goes on where a server has ended, or where a turn has waited too long: a turn ends with the `error`, and the
        messages that wait begin the next one.
        """
        async with self._changing():
            if self._task is None:
                if error is not None and self.state.turn is not None:
                    self.state.fail(error, self._service.now())
                self._settle()
                await self._commit_surely()
            self._go_on()

    async def _work(self) -> None:
        """Runs the agent until the turn, and those that wait, have ended, or one waits for results."""
        try:
            while self.state.wants_run:
                await self._run_once()
            async with self.lock:
                if not self.gone and await self.threads.delete_old():
                    await self._commit_surely()
        except Exception as error:  # noqa: BLE001 - the session goes on with what the store has of it
            if isinstance(error, Fault) and error.failure is LEASE_LOST:
                self.on_lease_lost()
                return
            log.error("internal_error", **trace_of(error))
            self._service.give_up(self)
            return
        finally:
            self._task = None
        if self._service.responses.runs.draining and (
            readers := self._service.streams.readers(self.owner, self.session.id)
        ):
            readers.end()
        self._go_on()

    async def _run_once(self) -> None:
        """Runs the agent once for the turn, and ends the turn where that was its last run."""
        tokens = RunTokens()
        try:
            ended = await self._answer(tokens)
        except Fault as fault:
            ended = TurnEnded.with_failure(fault.failure)
        except Exception as error:  # noqa: BLE001 - as above
            log.error("internal_error", **trace_of(error))
            ended = TurnEnded.with_failure(UNFORESEEN)
        finally:
            run, self._run, self._inputs = self._run, None, None
            if run is not None:
                run.interrupt()  # where reading it broke off
                await self._service.responses.runs.settle(self.session.turn)
        async with self.lock:
            if self._cancelled and ended.failure is None:
                ended = TurnEnded(Stop.INTERRUPTED)  # also where the agent has ended meanwhile
            self._cancelled = False
            self.state.on_run_ended(ended, tokens.known, self._service.now())
            self._settle()
            await self._commit_surely()

    async def _answer(self, tokens: RunTokens) -> TurnEnded:
        """Runs the agent, and tells what it does. Returns its end. Raises `Fault`."""
        responses = self._service.responses
        first, self._prepared = self._prepared, None  # also where this fails: it is no later turn's
        with contextlib.ExitStack() as held:
            client = responses.clients.by_name(self.owner)
            held.callback(responses.rights.hold(client, self._on_right_lost))
            requests = self._service.turn_requests
            prepared = first or await requests.next(self.owner, self.session, self._service.store)
            prepared = of_turn(prepared, self.session.turn)
            tokens.prompt = partial(_prompt_tokens, prepared.turn, self.session.context_used)
            held.enter_context(responses.usage.turn(self.owner, billed_model(prepared.turn), tokens))
            able = responses.runs.services.agent_of(prepared.turn).capabilities
            self._inputs = SteeredInputs() if takes_input(prepared.turn, able) else None
            await self._steer()
            return await self._read(await self._begin_run(prepared, held), tokens)

    async def _begin_run(self, prepared: PreparedResponse, held: contextlib.ExitStack) -> Run | None:
        """Starts a run, whose place among what runs in the background is `held`. Returns None if the turn was cancelled
        before. Raises `Fault`.
        """
        note_session_turn(self.session.turn)
        self._starting = asyncio.ensure_future(self._start(prepared, held))
        try:
            self._run = await self._starting
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
            return None
        finally:
            self._starting = None
        if self._cancelled:
            self._run.interrupt()
        return self._run

    async def _steer(self) -> None:
        """Gives the agent the messages that wait, if it takes any while it works."""
        inputs = self._inputs
        async with self._steering:
            for batch in self.session.queued:
                if inputs is None or not batch.steers:
                    return  # those behind it would overtake it
                if batch.id in inputs:
                    continue
                items = [message_item(content) for content in batch.messages]
                try:
                    prepared = await self._service.turn_requests.prepare(self.owner, self.session, items)
                except Fault:
                    return  # the turn that they begin tells why
                inputs.add(batch.id, prepared.turn.user_messages)

    async def _read(self, run: Run | None, tokens: RunTokens) -> TurnEnded:
        """Tells what the agent does in a run. Returns the run's end."""
        if run is None:
            return TurnEnded(Stop.INTERRUPTED)
        made_with = "" if run.turn.stored_session is None else fixed_by_session(run.turn)
        agent = self._service.responses.runs.services.agent_of(run.turn).name
        async with self.lock:
            self.state.on_run_began(self._service.now(), agent, made_with, run.turn.workdir)
            await self._commit_surely()
        cursor = run.log.cursor()
        try:
            while True:
                await cursor.wait()
                if self.commits.followed:  # for each message is a write
                    await cursor.wait_for_end_or_long_text(until=self.commits.next_message)
                events = cursor.take()
                tokens.add(events)
                ended = events[-1] if events and isinstance(events[-1], TurnEnded) else None
                long = cursor.has_long_answer and have_an_end(events)
                async with self.lock:
                    self.state.rules_apply = not self.session.rules or self._has_approver()
                    shown, waited = events if ended is None else events[:-1], self.asks
                    await beside_the_loop(partial(self.state.feed, shown, self._service.now()), long=long)
                    await self._commit_surely(long=long)
                    for ask in self.state.turn_asks.take_answered():
                        if ask.for_session and ask.rule is not None:
                            log.info("approved_by_rule", session=self.session.id, kind=ask.rule.kind)
                        self._pass_on(ask)
                    if self.asks:
                        self._wait_for_answers()
                    elif waited:  # for an answer that the agent no longer needs
                        self._service.responses.background.tasks.spawn(self._take_place())
                if ended is not None:
                    return ended
        finally:
            cursor.detach()

    def _wait_for_answers(self) -> None:
        if self._place is not None:
            self._place.lend()
        self._limit_wait()

    async def _start(self, prepared: PreparedResponse, held: contextlib.ExitStack) -> Run:
        """Waits for a place among what runs in the background, then for the scheduler. Raises `Fault`."""
        responses = self._service.responses
        self._place = await responses.background.slots.take(self.owner)
        held.callback(self._place.give_back)
        while True:
            run = await try_to_start(responses, prepared, self._inputs)
            if run is not None:
                return run

    async def _commit_surely(self, *, long: bool = False) -> None:
        await self.commits.commit_surely(self.session, self.state.take(self._service.epoch()), long=long)

    def _on_right_lost(self, failure: Failure) -> None:
        if self._run is not None:
            self._run.fail(failure)
        else:
            self._interrupt()


def _prompt_tokens(turn: Turn, context_used: int) -> int:
    """Returns an estimate of a run's input. `context_used`: the tokens that the agent's own session has already."""
    stored = turn.stored_session
    earlier = context_used if stored is not None and stored.before else 0
    return earlier + tokens_in(turn.history)
