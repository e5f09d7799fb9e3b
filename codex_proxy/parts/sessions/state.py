"""The state of a session while a client or an agent acts on it. Each change says what is to be stored (`records`) and
what readers are then told (`events`); whoever makes a change stores the first before it sends the second. Nothing here
does IO, reads a clock or makes ids. Source: docs/agents-api.md#sessions.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec
from msgspec.structs import replace

from codex_proxy.core.events import (
    Event,
    InputTaken,
    RequestClosed,
    Stop,
    TurnElsewhere,
    TurnEnded,
    TurnStarted,
    Usage,
)
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import HistoryMessage, ItemStatus
from codex_proxy.parts.sessions.approvals import Approval, Ask, TurnAsks, TurnRules
from codex_proxy.parts.sessions.commands import WAITING, Result
from codex_proxy.parts.sessions.conversation import beginning_of, content_said
from codex_proxy.parts.sessions.items import call_entry, item_object
from codex_proxy.parts.sessions.log import (
    LOGGED,
    Asked,
    Decided,
    Failed,
    Interrupted,
    Log,
    Logged,
    LogPage,
    Rested,
    Running,
    Updated,
    Waits,
)
from codex_proxy.parts.sessions.render import EventObject, TurnRenderer, error_event, turn_event
from codex_proxy.parts.sessions.rules import with_rule, without_tools
from codex_proxy.parts.sessions.sessions import (
    AgentThread,
    Batch,
    Call,
    CallResult,
    Content,
    Entry,
    Session,
    SessionTurn,
    TurnError,
    TurnStatus,
    UserMessage,
    said_name,
    session_object,
    turn_object,
    usage_object,
)
from codex_proxy.parts.sessions.subagents import (
    CONCERNS_SUBAGENTS,
    OfThread,
    SubagentRecord,
    Subagents,
)
from codex_proxy.parts.sessions.turn_errors import is_refusal, outcome_of, turn_elsewhere

MAX_QUEUED: Final = 100
"""Maximum batches of messages that wait in a session."""

_NOT_ONLY_RENDERED: Final = CONCERNS_SUBAGENTS | {InputTaken, RequestClosed}

Stored: TypeAlias = Session | SessionTurn | Entry | Call | Ask | LogPage | SubagentRecord
"""What a change stores. A call is stored beside its session, so that a late result finds it; so is a question."""


class Changes(NamedTuple):
    records: list[Stored]
    """The session first, if it has changed."""
    told: list[EventObject | Logged | OfThread]
    """What readers learn: events of OpenAI's API, what is logged, and what is of a subagent, in their order."""
    pages: Mapping[str, LogPage]
    """What is logged: of subagents by their ids, and of the session by an empty one."""

    @property
    def events(self) -> list[EventObject]:
        """The events of OpenAI's API."""
        return [each for each in self.told if isinstance(each, dict)]


class SessionState:
    """A session, and its turn that has not ended. `last_item`: the id of the session's last item; `last_page`: the last
    page of its log.
    """

    def __init__(
        self,
        session: Session,
        turn: SessionTurn | None = None,
        last_item: str = "",
        last_page: LogPage | None = None,
    ) -> None:
        self.session = session
        self.turn = turn
        self.last_item = last_item
        self._log = Log(last_page)
        self._renderer = None if turn is None else TurnRenderer.of(turn, self._log)
        self._subagents = Subagents(session.id, session.agent_id, session.subagents, self._log)
        self._session_changed = False
        self._rest_told = turn is None and not session.queued
        """Whether readers know that no turn goes on."""
        self._failed = self._refused = False
        """Whether the last turn has failed, and whether its model has refused to go on."""
        self._agent = self._made_with = self._folder = ""
        self.rules_apply = True
        """Whether the session's rules answer questions: whose key lost the right to answer has none."""
        self._called = False
        """Whether the run has called functions of the client."""
        self._cancelled = False
        """Whether the client has cancelled the turn, which ends when its run has ended."""
        self._turns: dict[str, SessionTurn] = {}
        self._entries: dict[str, Entry] = {}
        self._calls: dict[str, Call] = {}
        self._asks: dict[str, Ask] = {}
        self.turn_asks = TurnAsks()
        self._told: list[EventObject | Logged | OfThread] = []

    def take(self, now: float) -> Changes:
        """Returns what has changed since the last call. `now`: seconds since 1970."""
        pages = self._subagents.log_pages(now)
        if pages:
            self._set(subagents=self._subagents.known)
        records: list[Stored] = [self.session] if self._session_changed else []
        records += self._subagents.take()
        records += [*self._turns.values(), *self._entries.values()]
        records += [*self._calls.values(), *self._asks.values()]
        told, self._told = self._told, []
        logged = [each for each in told if isinstance(each, LOGGED)]
        if logged:
            pages[""] = self._log.page(logged, now)
            records.append(pages[""])
        self._session_changed = False
        self._turns, self._entries, self._calls, self._asks = {}, {}, {}, {}
        return Changes(records, told, pages)

    def undo(self) -> Callable[[], None]:
        """Returns a function that takes back what clients change from now on, unless it was taken by `take`."""
        renderer, session, turn, last_item = self._renderer, self.session, self.turn, self.last_item
        restore_renderer, rest_told = None if renderer is None else renderer.undo(), self._rest_told
        restore_asks, cancelled = self.turn_asks.undo(), self._cancelled
        logged, subagents = self._log.next, self._subagents.known

        def restore() -> None:
            self._renderer, self.session, self.turn, self.last_item = renderer, session, turn, last_item
            self._rest_told, self._cancelled = rest_told, cancelled
            restore_asks()
            if self._subagents.known != subagents:  # else they have what is not stored yet
                self._subagents = Subagents(session.id, session.agent_id, session.subagents, self._log)
            if restore_renderer is not None:
                restore_renderer()
            self.take(0)
            self._log.next = logged

        return restore

    @property
    def wants_run(self) -> bool:
        """Whether the turn goes on by a run of the agent: it has begun, or every call has its result."""
        return self.turn is not None and not self.session.open_calls

    # --- what clients do --------------------------------------------------------------------------

    def create(self, messages: Sequence[Content], turn_id: str, now: int) -> None:
        """Begins the first turn of a new session, or leaves it idle without messages."""
        self._set()
        if messages:
            self._begin(messages, turn_id, now)
        created = {"type": "agent.session.created", "session": session_object(self.session)}
        self._told.insert(0, created)  # with the session as it is when its turn has begun
        if not messages:
            self._tell_session("idle")

    def change(self, session: Session, now: int, fields: Mapping[str, Any] | None = None) -> None:
        """Replaces the settings, metadata, title and files of the session by those of `session`, and whether it is
        archived. `fields`: what has changed, as the log is to tell it. With other tools, what is permitted of MCP
        servers no longer is: another server may have the label.
        """
        same = session.agent.tools == self.session.agent.tools
        self._set(
            rules=self.session.rules if same else without_tools(self.session.rules),
            agent=session.agent,
            metadata=session.metadata,
            title=session.title,
            archived_at=session.archived_at,
            resources=session.resources,
            last_active_at=now,
        )
        if fields:
            fields = {**fields, "metadata": session.metadata} if "metadata" in fields else fields
            self._told.append(Updated(self._log.number(), msgspec.Raw(msgspec.json.encode(fields))))

    def add_messages(
        self, messages: Sequence[Content], turn_id: str, now: int, *, steers: bool = True
    ) -> None:
        """Begins a turn with the id `turn_id`, or has the messages wait until the one that goes on takes them (if they
        steer), or has ended. Raises `Fault`, also for those that do not steer while the turn waits for the client.
        """
        if not steers and self.session.status == "requires_action" and not self._cancelled:
            message = "The session waits for results of calls, or for answers."
            raise Fault(Failure(FaultKind.INVALID_REQUEST, message, code=WAITING))
        if self.turn is None and not self.session.queued:
            self._begin(messages, turn_id, now)
            return
        if len(self.session.queued) >= MAX_QUEUED:
            message = f"{MAX_QUEUED} messages wait for the session's turn, which is the limit."
            raise Fault.of(FaultKind.CONCURRENCY_EXCEEDED, f"{message} Try again later.", retry_after=5)
        batch = Batch(turn_id, tuple(messages), steers)
        self._set(queued=(*self.session.queued, batch), last_active_at=now)

    def import_turn(self, found: TurnElsewhere, turn_id: str, now: int) -> None:
        """Adds a turn that another program has run on the agent's own session. Nothing is told: it was not here."""
        turn = turn_elsewhere(found, self.session, turn_id, self.last_item, now)
        renderer, said = TurnRenderer.of(turn, self._log), 0
        for part in found.parts:
            if isinstance(part, HistoryMessage):
                content = UserMessage(content_said(part.parts))
                self._note_beginning([content.content])
                renderer.add_input(content, "msg", name=said_name(turn_id, said))
                said += 1
            else:
                self._note_running(renderer.events)
                renderer.feed([*map(self._subagents.with_known_ids, part)])
        renderer.end()
        self._told += [each for each in renderer.events if isinstance(each, LOGGED)]
        self._note_rest(failed=turn.error is not None)
        self._turns[turn_id] = replace(turn, items=renderer.items, outputs=renderer.outputs)
        self._entries |= {entry.id: entry for entry in renderer.entries}
        self.last_item = renderer.last or self.last_item
        self._set_thread(turn=turn_id, imported=found.id, until=turn_id, item=self.last_item)
        self._set(usage_known=False, last_active_at=max(self.session.last_active_at, turn.completed_at or 0))

    def call(self, id: str) -> Call | None:
        """Returns the last call of the turn with this id: a model may repeat one."""
        found = (each for each in reversed(self.session.actions) if isinstance(each, Call))
        return next((call for call in found if call.call_id == id), None)

    def add_result(self, given: Result, now: int) -> None:
        """Adds a result that is new. With the last one that the turn waits for, the turn goes on."""
        asked = next(call for call in self.session.open_calls if call.call_id == given.result.call_id)
        answered = replace(asked, answered=given.digest)
        actions = tuple(answered if each is asked else each for each in self.session.actions)
        waited = self.session.status == "requires_action"
        self._calls[answered.call_id] = answered
        self._set(actions=actions, last_active_at=now)
        if waited and not (self.session.open_calls or self.session.open_asks):
            self._set(status="in_progress")
            self._set_turn(status="in_progress")
        if waited:
            self._tell_session(self.session.status)
        self._end_call(answered, "completed" if given.result.success else "failed")
        self._add_input(given.result, "fco", call=asked.item)
        if waited:
            self._note_status()

    def ask(self, id: str) -> Ask | None:
        """Returns the question with this id, if it is open, expected, or was answered just now."""
        open_now = (ask for ask in self.session.open_asks if ask.request_id == id)
        found = self._asks.get(id) or next(open_now, None)
        if found is not None or self._renderer is None or self.turn is None:
            return found
        return self.turn_asks.expected(id, self._renderer.calls_to_ask(), self.turn.id)

    def add_answer(self, given: Approval, ask: Ask, now: int) -> None:
        """Adds an answer that is new. With the last one that the turn waits for, the turn goes on. An answer to a
        question that the agent has not asked yet waits for that.
        """
        answered = self._asks[ask.request_id] = given.applied_to(ask)
        if answered.rule is not None and answered.for_session:
            self._set(rules=with_rule(self.session.rules, answered.rule))
        call, approve = ask.item or ask.request_id, given.choice == "approve"
        self._told.append(Decided(self._log.number(), call, approve, given.denial, ask.subagent))
        if ask.asked:
            self._leave_out(ask, now)
        else:
            self.turn_asks.add_early(answered)
            self._set(last_active_at=now)

    def _leave_out(self, ask: Ask, now: int) -> None:
        """Takes an open question away: it has its answer, or needs none."""
        self._set(actions=self._without(ask), last_active_at=now)
        if not self.session.open_asks:  # the run goes on, also where calls of the client are open
            self._set(status="in_progress")
            self._set_turn(status="in_progress")
        self._tell_session(self.session.status)
        self._note_status()

    def _close_ask(self, asked: str, now: int) -> None:
        """Takes away the question that the agent no longer asks under this name, if it is open."""
        for ask in self.session.open_asks:
            if ask.asked == asked:
                self._leave_out(ask, now)

    def cancel(self, now: int, name: str = "") -> bool:
        """Ends a turn that waits for results, as cancelled. Returns whether a run has to be ended for that. `name`: see
        `log.Interrupted`.
        """
        self._told.append(Interrupted(self._log.number(), name))
        if self.turn is None:
            return False
        if self.session.status != "requires_action" or self.session.open_asks:
            self._cancelled = True
            return True
        self._end_turn("cancelled", None, self.turn.usage, now)
        return False

    # --- what the agent does ------------------------------------------------------------------------

    def on_run_began(self, now: int, agent: str = "", made_with: str = "", folder: str = "") -> None:
        """Notes that the agent works on the turn. `agent`, `made_with`: see `AgentThread`. `folder`: where it works,
        without links.
        """
        assert self.turn is not None, "a run has a turn"
        self._agent, self._made_with, self._folder = agent, made_with, folder
        if self.turn.started_at is None:
            self._set_turn(status="in_progress", started_at=now)
            self._tell_turn("in_progress")

    def feed(self, events: Sequence[Event], now: int) -> None:
        """Takes the next events of the run, but for its end. Messages that the agent has taken become items."""
        assert self._renderer is not None, "a run has a turn"
        if _NOT_ONLY_RENDERED.isdisjoint(map(type, events)):  # as most are pieces of text
            self._renderer.feed(events)
        else:
            for event in events:
                self._feed_one(event, now)
        self._take_rendered()
        self._take_asks(now)

    def _feed_one(self, event: Event, now: int) -> None:
        assert self._renderer is not None, "a run has a turn"
        if type(event) is InputTaken:
            self._take_input(event.id)
        elif type(event) is RequestClosed:
            self._take_asks(now)
            self._close_ask(event.request_id, now)
        elif type(event) is TurnStarted and event.stored and self._made_with:
            self._note_thread(event.thread_id)
        own = self._subagents.feed(event, now)
        if own is not None:
            self._renderer.feed([own])
        self._take_subagents()

    def _note_thread(self, id: str) -> None:
        """Notes that the agent's own session has taken the turn."""
        assert self.turn is not None, "a run has a turn"
        last = self.session.thread
        if last is not None and (last.agent, last.id) == (self._agent, id):
            self._set_thread(turn=self.turn.id)
        else:
            own: dict[str, Any] = {"agent": self._agent, "made_with": self._made_with, "turn": self.turn.id}
            if (
                last is not None and last.agent == self._agent
            ):  # in whose place it was given all before the turn
                own |= {"until": last.until, "item": last.item}
            thread = AgentThread(id=id, **own)
            self._set(threads=(*self.session.threads, thread))

    def _set_thread(self, **changes: Any) -> None:
        *before, last = self.session.threads
        self._set(threads=(*before, replace(last, **changes)))

    def forget_threads(self, gone: Collection[AgentThread]) -> None:
        """Forgets those of the agent's own sessions that it no longer has."""
        self._set(threads=tuple(each for each in self.session.threads if each not in gone))

    def on_run_ended(self, ended: TurnEnded, usage: Usage | None, now: int) -> None:
        """Ends the run, whose tokens are `usage` if they are known: the turn ends, waits for results, or goes on if it
        has them.
        """
        assert self.turn is not None, "a run has a turn"
        self._end_open_items(usage, failed=ended.failure is not None)
        self.turn_asks = TurnAsks()
        self._set(actions=self._without(*self.session.open_asks))
        usage = self.turn.usage_with(usage)
        called, self._called = self._called, False
        self._set_turn(runs=self.turn.runs + 1, usage=usage, refused=is_refusal(ended))
        status, error = outcome_of(ended)
        if status != "completed" or ended.stop not in (Stop.TOOL_CALLS, Stop.FUNCTION_CALL) or not called:
            self._end_turn(status, error, usage, now)
        elif self.session.open_calls:
            self._set_turn(status="waiting")
            self._set(status="requires_action", last_active_at=now)
            self._tell_session("requires_action")
            self._note_status()

    def fail(self, error: TurnError, now: int) -> None:
        """Ends the turn as failed, for a reason of this server."""
        self._end_open_items(failed=True)
        self._end_turn("failed", error, None, now)

    def settle(self, now: int, *, may_begin: bool = True) -> None:
        """Behind a turn's end, once: begins the next one, with the messages that wait longest, or tells that the
        session is idle. `may_begin`: whether turns may begin.
        """
        if self.turn is not None or self._rest_told:
            return
        self._rest_told = True
        if may_begin and self.session.queued:
            batch, *later = self.session.queued
            self._set(queued=tuple(later))
            self._begin(batch.messages, batch.id, now)
        else:
            self._tell_session("idle")
            self._note_rest(failed=self._failed, refused=self._refused)

    # --- the parts of a change ----------------------------------------------------------------------

    def _begin(self, messages: Sequence[Content], turn_id: str, now: int) -> None:
        session = self.session
        self.turn = SessionTurn(
            id=turn_id, session=session.id, agent_id=session.agent_id, created_at=now, before=self.last_item
        )
        self._renderer = TurnRenderer.of(self.turn, self._log)
        self._rest_told = False
        self._set(turn=turn_id, actions=(), status="in_progress", last_active_at=now)
        self._set_turn()
        self._tell_turn("created")
        self._add_messages(messages, turn_id)
        self._tell_session("in_progress")
        self._note_status()

    def _end_turn(self, status: TurnStatus, error: TurnError | None, usage: Usage | None, now: int) -> None:
        session = self.session
        for call in session.open_calls:
            self._end_call(call, "incomplete")
        if status != "completed":  # the agent's thread has ended, and they with it
            self._subagents.close_all(now)
            self._take_subagents()
        if session.thread is not None and session.thread.turn == session.turn:
            self._set_thread(until=session.turn, item=self.last_item)
        self._set_turn(status=status, error=error, usage=usage, completed_at=now)
        self._set(
            turn="",
            actions=(),
            status="idle",
            last_active_at=now,
            usage=session.usage if usage is None else session.usage + usage,
            usage_known=session.usage_known and usage is not None,
        )
        self._tell_turn(status, usage=usage_object(usage))
        self._failed, self._refused = error is not None, self.turn is not None and self.turn.refused
        if error is not None:
            self._told.append(error_event(session.id, error.code, error.message))
            self._told.append(Failed(self._log.number(), error.code, error.message))
        self.turn = self._renderer = None
        self._cancelled = False

    def _end_open_items(self, usage: Usage | None = None, *, failed: bool = False) -> None:
        assert self._renderer is not None, "a run has a turn"
        self._renderer.end(usage, failed=failed)
        self._take_rendered()

    def _add_messages(self, messages: Sequence[Content], batch: str) -> None:
        self._note_beginning(messages)
        for index, content in enumerate(messages):
            self._add_input(UserMessage(content), "msg", name=said_name(batch, index))

    def _add_input(
        self, item: UserMessage | CallResult, prefix: str, *, name: str = "", call: str = ""
    ) -> None:
        assert self._renderer is not None, "an input has a turn, and that a renderer"
        self._renderer.add_input(item, prefix, name=name, call=call)
        self._take_rendered()

    def _take_input(self, id: str) -> None:
        """Makes the messages of a batch items of the turn, if they still wait."""
        batches = {batch.id: batch for batch in self.session.queued}
        taken = batches.pop(id, None)
        if taken is not None:
            self._set(queued=tuple(batches.values()))
            self._add_messages(taken.messages, id)

    def _note_beginning(self, messages: Sequence[Content]) -> None:
        if not self.session.beginning:
            self._set(beginning=beginning_of(messages))

    def _end_call(self, call: Call, status: ItemStatus) -> None:
        entry = self._entries[call.item] = call_entry(call, status)
        done = {"item": item_object(entry), "output_index": call.index}
        self._told.append(turn_event(self.session.id, call.turn, "item.done", **done))

    def _take_rendered(self) -> None:
        renderer = self._renderer
        assert renderer is not None, "a turn has a renderer"
        self._told += renderer.events
        self._entries |= {entry.id: entry for entry in renderer.entries}
        self._calls |= {call.call_id: call for call in renderer.calls}
        if renderer.calls:
            self._called = True
            self._set(actions=(*self.session.actions, *renderer.calls))
        if renderer.entries:
            self.last_item = renderer.last or self.last_item
        self._note_told(renderer)
        if changes := renderer.take_changes():
            self._set_turn(**changes)
        renderer.events, renderer.entries, renderer.calls = [], [], []

    def _note_told(self, renderer: TurnRenderer) -> None:
        """Keeps the newest plan, how full the model's window is, and what the agent says of costs."""
        old, cost = self.session, self.session.cost
        plan, used = renderer.plan or old.plan, renderer.context_used or old.context_used
        window = renderer.context_window or old.context_window
        for each in renderer.costs:
            cost = each.added_to(cost)
        renderer.costs = []
        if (plan, used, window, cost) != (old.plan, old.context_used, old.context_window, old.cost):
            self._set(plan=plan, context_used=used, context_window=window, cost=cost)

    def _take_subagents(self) -> None:
        if self._renderer is not None:
            self._take_rendered()  # is told first
        if self._subagents.known != self.session.subagents:
            self._set(subagents=self._subagents.known)
        self._told += self._subagents.events
        self._subagents.events.clear()

    def _take_asks(self, now: int) -> None:
        renderer, turn = self._renderer, self.turn
        assert renderer is not None, "a turn has a renderer"
        assert turn is not None, "a run has a turn"
        asks = list[Ask]()
        for event in renderer.asks:
            call = renderer.entry_id(event.item_id), ""
            if event.subagent:
                call = self._subagents.show_asked(event.subagent, event.item_id)
                self._take_subagents()
            rules = TurnRules(self._folder, self.session.rules if self.rules_apply else ())
            ask = self.turn_asks.ask(event, call, turn.id, partial(renderer.new_id, "mcpr"), rules)
            self._asks[ask.request_id] = ask
            if not ask.answered:
                asks.append(ask)
            elif ask.for_session:
                id = ask.item or ask.request_id
                self._told.append(Decided(self._log.number(), id, approve=True, subagent=ask.subagent))
        renderer.asks = []
        if asks:
            self._set_turn(status="waiting", items=renderer.items)  # whose ids were counted, too
            actions = (*self.session.actions, *asks)
            self._set(actions=actions, status="requires_action", last_active_at=now)
            self._tell_session("requires_action")
            renderer.end_step()
            self._take_rendered()
            for ask in (each for each in asks if not each.item):
                given = msgspec.Raw(msgspec.json.encode(ask.arguments))
                self._told.append(Asked(self._log.number(), ask.request_id, ask.name, given))
            self._note_status()

    def _without(self, *asks: Ask) -> tuple[Call | Ask, ...]:
        return tuple(each for each in self.session.actions if each not in asks)

    def _set(self, **changes: Any) -> None:
        self.session = replace(self.session, **changes)
        self._session_changed = True

    def _set_turn(self, **changes: Any) -> None:
        assert self.turn is not None, "a change of a turn has one"
        self.turn = self._turns[self.turn.id] = replace(self.turn, **changes)

    def _note_status(self) -> None:
        """Logs that the turn waits, or that it runs if the log does not say so."""
        if self.session.status == "requires_action":
            calls = (call.item for call in self.session.open_calls)
            asks = (ask.item or ask.request_id for ask in self.session.open_asks)
            self._told.append(Waits(self._log.number(), (*calls, *asks)))
            self._set(running=False)
        elif self.session.status == "in_progress":
            self._note_running(self._told)

    def _note_running(self, told: list[Any]) -> None:
        if not self.session.running:
            told.append(Running(self._log.number()))
            self._set(running=True)

    def _note_rest(self, *, failed: bool, refused: bool = False) -> None:
        self._told.append(Rested(self._log.number(), failed, refused))
        self._set(running=False)

    def _tell_session(self, kind: str) -> None:
        self._told.append({"type": f"agent.session.{kind}", "session": session_object(self.session)})

    def _tell_turn(self, kind: str, **more: Any) -> None:
        assert self.turn is not None, "an event of a turn has one"
        event = turn_event(self.session.id, self.turn.id, kind, turn=turn_object(self.turn), **more)
        self._told.append(event)
