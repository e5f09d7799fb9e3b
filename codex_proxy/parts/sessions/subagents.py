"""The subagents of a session: what the agent's events say of them becomes their objects, turns and items, which are
kept beside those of the session's own turns. Readers of the session learn only that a subagent is there, or closed.
Nothing here does IO, reads a clock or makes ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, Final, Literal, NamedTuple, TypedDict

from msgspec.structs import replace

from codex_proxy.core.events import (
    OF_SUBAGENTS,
    Event,
    ItemEnded,
    ItemStarted,
    OfSubagent,
    StepCompleted,
    Stop,
    SubagentClosed,
    SubagentOpened,
    TaskGiven,
    TurnEnded,
    TurnStarted,
    Usage,
)
from codex_proxy.core.items import ActionDetails, Activity
from codex_proxy.parts.sessions.log import (
    LOGGED,
    Acted,
    Heard,
    Log,
    Logged,
    LogPage,
    ThreadOpened,
    ThreadRested,
    ThreadRunning,
    Told,
)
from codex_proxy.parts.sessions.render import EventObject, TurnRenderer
from codex_proxy.parts.sessions.sessions import (
    Content,
    Entry,
    SessionTurn,
    Subagent,
    UserMessage,
)
from codex_proxy.parts.sessions.turn_errors import is_refusal, outcome_of
from codex_proxy.surfaces.answers.renderer import Count

MAX_KEPT: Final = 100
"""Subagents that a session remembers, besides those in the store; of more the oldest closed ones are forgotten."""
MAX_TASK: Final = 4000
"""Characters of a subagent's task in its object; its first message has the whole."""


CONCERNS_SUBAGENTS: Final = OF_SUBAGENTS | {TurnStarted, ItemStarted, ItemEnded}
"""The events that `Subagents.feed` changes."""


class SubagentText(TypedDict):
    type: Literal["output_text"]
    text: str


class SubagentObject(TypedDict):
    """A subagent. `active` also while it waits for its next task."""

    id: str
    object: Literal["agent.session.subagent"]
    session_id: str
    parent_agent_id: str
    name: str | None
    instructions: list[SubagentText] | None
    status: Literal["active", "closed"]
    opened_at: Count
    closed_at: Count | None


def subagent_object(subagent: Subagent) -> SubagentObject:
    return {
        "id": subagent.id,
        "object": "agent.session.subagent",
        "session_id": subagent.session,
        "parent_agent_id": subagent.parent,
        "name": subagent.name or None,
        "instructions": [{"type": "output_text", "text": subagent.task}] if subagent.task else None,
        "status": "active" if subagent.closed_at is None else "closed",
        "opened_at": subagent.opened_at,
        "closed_at": subagent.closed_at,
    }


class SubagentEntry(NamedTuple):
    """An item of a subagent, or a page of its log."""

    subagent: str
    entry: Entry | LogPage


class OfThread(NamedTuple):
    """What readers of a subagent learn."""

    subagent: str
    told: EventObject | Logged


SubagentRecord = Subagent | SessionTurn | SubagentEntry


def subagent_id(session: str, own_id: str) -> str:
    """Returns the id of a subagent, which the agent calls `own_id`: two sessions may run on one thread of it."""
    return f"subagent_{hashlib.sha256(f'{session} {own_id}'.encode()).hexdigest()[:32]}"


class Subagents:
    """The subagents of one session. `agent`: the id of the session's own agent."""

    def __init__(self, session: str, agent: str, known: Sequence[Subagent], log: Log) -> None:
        """`log`: the session's."""
        self._session = session
        self._agent = agent
        self._log = log
        self._logs: dict[str, Log] = {}
        self._logged: dict[str, list[Logged]] = {}
        """The logs of subagents, and what is not in a page yet; by the agent's ids of these."""
        self._known: dict[str, Subagent] = {each.own_id: each for each in known}
        self._renderers: dict[str, TurnRenderer] = {}
        self._changed: dict[str, Subagent] = {}
        self._turns: dict[str, SessionTurn] = {}
        self._entries: dict[str, SubagentEntry] = {}
        self.events: list[EventObject | Logged | OfThread] = []
        """What is to be sent, and what is logged; whoever sends it takes it away."""

    @property
    def known(self) -> tuple[Subagent, ...]:
        return tuple(self._known.values())

    def log_pages(self, now: float) -> dict[str, LogPage]:
        """Returns the pages of what was logged since the last call, by subagent. `now`: seconds since 1970."""
        pages = dict[str, LogPage]()
        for own_id, logged in self._logged.items():
            if own_id in self._known:
                subagent, log = self._known[own_id], self._logs[own_id]
                page = pages[subagent.id] = log.page(logged, now)
                self._set(replace(subagent, logged=log.next))
                self._entries[f"log {page.first}"] = SubagentEntry(subagent.id, page)
        self._logged.clear()
        return pages

    def take(self) -> list[SubagentRecord]:
        """Returns what has changed since the last call: each record behind the one that it is below."""
        found: list[SubagentRecord] = [
            *self._changed.values(),
            *self._turns.values(),
            *self._entries.values(),
        ]
        self._changed, self._turns, self._entries = {}, {}, {}
        return found

    def feed(self, event: Event, now: int) -> Event | None:
        """Takes an event of a run. Returns it for the session's own turn, with the ids of subagents that clients know;
        None if it is about a subagent alone.
        """
        match event:
            case TurnStarted(subagents=still_open):
                self.close_all(now, but=still_open)
            case SubagentOpened():
                self._open(event, now)
                return None
            case SubagentClosed(id):
                if id in self._known:
                    self._close(self._known[id], now)
                return None
            case OfSubagent(id, own):
                if id in self._known:
                    self._on_own(self._known[id], own, now)
                return None
        return self.with_known_ids(event)

    def close_all(self, now: int, *, but: Sequence[str] = ()) -> None:
        """Closes all subagents, or all but these: the agent's thread is gone, on which they were."""
        for subagent in self.known:
            if subagent.own_id not in but and subagent.closed_at is None:
                self._close(subagent, now)

    def show_asked(self, own_id: str, item_id: str) -> tuple[str, str]:
        """Logs a call of a subagent, about which the agent asks, also in the session's log: there clients look for what
        waits for them. Returns the id of its entry, empty if the call is not known, and that of the subagent.
        """
        subagent = self._known.get(own_id)
        if subagent is None:
            return "", ""
        renderer = self._renderers.get(own_id)
        call = None if renderer is None else renderer.open_call(item_id)
        if call is None:
            return "", subagent.id
        self.events.append(Acted(self._log.number(), *call, subagent.id))
        return call[0], subagent.id

    # --- a subagent -------------------------------------------------------------------------------

    def _open(self, event: SubagentOpened, now: int) -> None:
        before = self._known.get(event.id)
        if before is not None and before.closed_at is None:
            return
        if before is not None:
            self._set(replace(before, closed_at=None))
            self._tell("active", event.id)
            return
        parent = self._known.get(event.parent)
        made = Subagent(
            id=subagent_id(self._session, event.id),
            own_id=event.id,
            session=self._session,
            parent=self._agent if parent is None else parent.id,
            name=event.name,
            task=event.task if len(event.task) <= MAX_TASK else f"{event.task[:MAX_TASK]}…",
            opened_at=now,
        )
        closed = [each.own_id for each in self.known if each.closed_at is not None]
        free = [own_id for own_id in closed if own_id not in self._logged]  # others have a log to be stored
        for own_id in free[: max(0, len(self._known) + 1 - MAX_KEPT)]:
            del self._known[own_id]
            self._logs.pop(own_id, None)
        self._set(made)
        self._tell("created", event.id)
        self._note(made, ThreadOpened)

    def _close(self, subagent: Subagent, now: int) -> None:
        self._end_turn(subagent, TurnEnded(Stop.INTERRUPTED), now)
        self._set(replace(self._known[subagent.own_id], closed_at=now))
        self._tell("closed", subagent.own_id)

    def _set(self, subagent: Subagent) -> None:
        self._known[subagent.own_id] = self._changed[subagent.id] = subagent

    def _tell(self, kind: str, own_id: str) -> None:
        told = subagent_object(self._known[own_id])
        self.events.append({"type": f"agent.session.subagent.{kind}", "subagent": told})

    # --- its log ----------------------------------------------------------------------------------

    def _log_of(self, subagent: Subagent) -> Log:
        return self._logs.setdefault(subagent.own_id, Log(next=subagent.logged))

    def _note(
        self, subagent: Subagent, kind: type[ThreadOpened | ThreadRunning | ThreadRested], **more: Any
    ) -> None:
        """Logs a state of a subagent, in its own log and in the session's."""
        self._tell_own(subagent, kind(self._log_of(subagent).number(), subagent.id, subagent.name, **more))
        self.events.append(kind(self._log.number(), subagent.id, subagent.name, **more))

    def _tell_own(self, subagent: Subagent, told: EventObject | Logged) -> None:
        self.events.append(OfThread(subagent.id, told))
        if isinstance(told, LOGGED):
            self._logged.setdefault(subagent.own_id, []).append(told)

    def _note_message(self, subagent: Subagent, entry: str, *, to_parent: bool) -> None:
        """Logs a message between a subagent and its parent, in the logs of both."""
        parent = next((each for each in self._known.values() if each.id == subagent.parent), None)
        above, name = ("", "") if parent is None else (parent.id, parent.name)
        log, parent_log = self._log_of(subagent), self._log if parent is None else self._log_of(parent)
        own, other = (Told, Heard) if to_parent else (Heard, Told)
        self._tell_own(subagent, own(log.number(), above, entry, name))
        told = other(parent_log.number(), subagent.id, entry, subagent.name)
        if parent is None:
            self.events.append(told)
        else:
            self._tell_own(parent, told)

    # --- its turns --------------------------------------------------------------------------------

    def _on_own(self, subagent: Subagent, event: Event, now: int) -> None:
        if subagent.turn is None and not isinstance(event, TurnEnded):
            subagent = self._begin_turn(subagent, now)
        if isinstance(event, TurnEnded):
            self._end_turn(subagent, event, now)
            return
        renderer = self._renderer(subagent)
        if isinstance(event, TaskGiven):
            content: Content = ({"type": "input_text", "text": event.text},)
            entry = renderer.add_input(UserMessage(content), "msg")
            self._take_rendered(subagent.own_id, renderer)
            self._note_message(subagent, entry, to_parent=False)
            return
        if isinstance(event, StepCompleted):
            self._on_model_call(subagent, event.usage)
        renderer.feed([self.with_known_ids(event, subagent.id)])
        self._take_rendered(subagent.own_id, renderer)

    def _on_model_call(self, subagent: Subagent, usage: Usage | None) -> None:
        """Adds the tokens of a call."""
        turn = subagent.turn
        assert turn is not None, "a model call is of a turn"
        self._set_turn(subagent, runs=turn.runs + 1, usage=turn.usage_with(usage))

    def _begin_turn(self, subagent: Subagent, now: int) -> Subagent:
        number = subagent.turns + 1
        turn = SessionTurn(
            id=f"turn_{subagent.id.removeprefix('subagent_')}_{number}",
            session=self._session,
            agent_id=self._agent,
            subagent=subagent.id,
            status="in_progress",
            created_at=now,
            started_at=now,
            before=subagent.last_item,
        )
        subagent = replace(subagent, turns=number, turn=turn)
        self._turns[turn.id] = turn
        self._set(subagent)
        self._note(subagent, ThreadRunning)
        return subagent

    def _end_turn(self, subagent: Subagent, ended: TurnEnded, now: int) -> None:
        if subagent.turn is None:
            return
        renderer = self._renderer(subagent)
        status, error = outcome_of(ended)
        renderer.end(failed=error is not None)
        self._take_rendered(subagent.own_id, renderer)
        subagent = self._known[subagent.own_id]
        if renderer.said and status == "completed":
            said = renderer.said
            self._entries[said.id] = SubagentEntry(subagent.id, said)  # what is logged names it
            self._note_message(subagent, said.id, to_parent=True)
        refused = is_refusal(ended)
        self._note(subagent, ThreadRested, failed=error is not None, refused=refused)
        self._set_turn(subagent, status=status, error=error, refused=refused, completed_at=now)
        self._set(replace(self._known[subagent.own_id], turn=None))
        self._renderers.pop(subagent.own_id, None)

    def _set_turn(self, subagent: Subagent, **changes: Any) -> None:
        assert subagent.turn is not None, "a change of a turn has one"
        turn = self._turns[subagent.turn.id] = replace(subagent.turn, **changes)
        self._set(replace(subagent, turn=turn))

    def _renderer(self, subagent: Subagent) -> TurnRenderer:
        turn = subagent.turn
        assert turn is not None, "what is rendered is of a turn"
        found = self._renderers.get(subagent.own_id)
        if found is None:
            found = self._renderers[subagent.own_id] = TurnRenderer.of(turn, self._log_of(subagent))
        return found

    def _take_rendered(self, own_id: str, renderer: TurnRenderer) -> None:
        """Keeps items and what is told."""
        subagent = self._known[own_id]
        self._entries |= {entry.id: SubagentEntry(subagent.id, entry) for entry in renderer.entries}
        for each in renderer.events:
            self._tell_own(subagent, each)
        if renderer.entries:
            self._set(replace(subagent, last_item=renderer.last or subagent.last_item))
        if changes := renderer.take_changes():
            self._set_turn(self._known[own_id], **changes)
        renderer.events, renderer.entries, renderer.calls = [], [], []

    # --- ids --------------------------------------------------------------------------------------

    def with_known_ids(self, event: Event, sender: str = "") -> Event:
        """Returns an event of an agent in which subagents have the ids that clients know. `sender`: that of the
        subagent whose event it is; empty: it is the session's own agent's.
        """
        sender = sender or self._agent
        match event:
            case ItemStarted(item=Activity(details=ActionDetails(subagent=_) as details) as item):
                return ItemStarted(replace(item, details=self._named(details, sender)))
            case ItemEnded(details=ActionDetails(subagent=_) as details):
                return replace(event, details=self._named(details, sender))
        return event

    def _named(self, details: ActionDetails, sender: str) -> ActionDetails:
        action = details.subagent
        if action is None:
            return details
        by, to = sender, tuple(self._id_of(each) for each in action.recipients)
        if action.sender:
            by, to = self._id_of(action.sender), (sender,)
        return replace(details, subagent=replace(action, sender=by, recipients=to))

    def _id_of(self, own_id: str) -> str:
        found = self._known.get(own_id)
        return subagent_id(self._session, own_id) if found is None else found.id
