"""Renders the core events of a turn as events of the Agents API, and collects the whole items for the session's log.
Nothing here is stored: items are rendered again from their entries. Source: docs/agents-api.md#streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from codex_proxy.core.events import (
    ApprovalRequested,
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from codex_proxy.core.items import Activity, McpCall, Message, Reasoning, ToolCall, ToolUse
from codex_proxy.parts.sessions.sessions import (
    AgentItem,
    Call,
    Entry,
    EntryItem,
    SessionTurn,
    WholeItem,
    call_entry,
    item_object,
)

EventObject: TypeAlias = dict[str, Any]
"""An event without `event_id` and `obfuscation`, which whoever sends it adds."""


def turn_event(session: str, turn: str, kind: str, /, **fields: Any) -> EventObject:
    """Returns the event `agent.session.turn.` + `kind` of a turn."""
    return {"type": f"agent.session.turn.{kind}", "session_id": session, "turn_id": turn, **fields}


def error_event(session: str, code: str, message: str) -> EventObject:
    """Returns the event that says why a turn, or the stream itself, has failed."""
    error = {"type": "server_error", "code": code, "message": message, "param": None}
    return {"type": "error", "session_id": session, "error": error}


WEBHOOKS: Final[Mapping[str, str]] = {
    "agent.session.created": "agent.session.created",
    "agent.session.in_progress": "agent.session.in_progress",
    "agent.session.requires_action": "agent.session.action_required",
    "agent.session.idle": "agent.session.idle",
}
"""The types of events of which webhooks tell, each with the webhook's type."""


def webhook_of(event: EventObject) -> tuple[str, dict[str, Any]]:
    """Returns the type and the data of the webhook about an event of `WEBHOOKS`. It has no contents of the session."""
    session = event["session"]
    data = {"id": session["id"]}
    if event["type"] == "agent.session.requires_action":
        data["required_action"] = {"type": session["required_actions"][-1]["type"]}
    return WEBHOOKS[event["type"]], data


_PREFIXES: Final[Mapping[type, str]] = {
    Message: "msg",
    Reasoning: "rs",
    ToolCall: "fc",
    McpCall: "mcp",
    Activity: "act",
}
_WITH_ARGUMENTS: Final = (ToolCall, McpCall)
"""Items whose `item.added` has all of their arguments."""


class _Open(NamedTuple):
    """An item that has begun: its id, its place in the turn's output, and what it has so far."""

    id: str
    place: int
    whole: WholeItem
    shown: bool = True
    """Whether this API shows it."""


class TurnRenderer:
    """Renders one turn, which may have several runs. `items` and `outputs` count its items so far, those of the client
    too, and the agent's.
    """

    def __init__(self, session: str, turn: str, *, items: int = 0, outputs: int = 0) -> None:
        self.items = items
        self.outputs = outputs
        self.events: list[EventObject] = []
        """What is to be sent; whoever sends it takes it away."""
        self.entries: list[Entry] = []
        """Whole items, to be stored before their events are sent; in the order in which they began."""
        self.last = ""
        """The id of the last item in `entries` so far; empty without one."""
        self.calls: list[Call] = []
        """New calls of the client's functions."""
        self.asks: list[ApprovalRequested] = []
        """New questions of which the client is asked."""
        self._session = session
        self.turn = turn
        self._open: dict[str, _Open] = {}
        self._kept: set[str] = set()
        """Items that have an entry already, although they are open."""
        self._unshown: dict[str, WholeItem] = {}
        """Calls whose arguments are not complete."""
        self._part: dict[str, int] = {}
        """The open part of each summary, by the item's id."""

    @classmethod
    def of(cls, turn: SessionTurn) -> TurnRenderer:
        """Returns the renderer of a turn as it is stored."""
        return cls(turn.session, turn.id, items=turn.items, outputs=turn.outputs)

    def feed(self, events: Sequence[Event]) -> None:
        """Takes the next events of a run, but for its end."""
        for event in events:
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event)

    def end(self) -> None:
        """Ends what is open, as incomplete."""
        for id in [*self._unshown, *self._open]:
            self._on_ended(ItemEnded(id, "incomplete"))

    def new_id(self, prefix: str) -> str:
        """Returns the id of the turn's next item."""
        self.items += 1
        return f"{prefix}_{self.turn.removeprefix('turn_')}_{self.items}"

    def add_input(self, item: EntryItem, prefix: str) -> None:
        """Adds an item that is none of the agent's output; its id begins with `prefix`."""
        entry = Entry(self.new_id(prefix), self.turn, item)
        self._keep(entry, self.outputs)
        self._tell("item.added", item=item_object(entry), output_index=None)

    def _keep(self, entry: Entry, place: int) -> None:
        """Adds an entry behind those of the items with a place before `place`."""
        self._keep_open(place)
        self.entries.append(entry)
        if entry.id in self._kept:
            self._kept.remove(entry.id)
        else:
            self.last = entry.id

    def _keep_open(self, place: int) -> None:
        """Adds the entries of open items with a place before `place`: each is kept as incomplete, until it ends."""
        for opened in self._open.values():
            if opened.place < place and opened.id not in self._kept:
                self._kept.add(opened.id)
                whole = [*opened.whole.events(), ItemEnded(opened.whole.item.id, "incomplete")]
                self.entries.append(Entry(opened.id, self.turn, AgentItem.of(whole)))
                self.last = opened.id

    def entry_id(self, own_id: str) -> str:
        """Returns the id of the entry of an open item, by its id among the events; empty if there is none."""
        opened = self._open.get(own_id)
        return "" if opened is None else opened.id

    def calls_to_ask(self) -> Iterator[tuple[str, ToolUse]]:
        """Yields the open calls of which the client is asked, each with the id of its entry."""
        for opened in self._open.values():
            use = opened.whole.details.use
            if use is not None and use.permission == "always_ask":
                yield opened.id, use

    def undo(self) -> Callable[[], None]:
        """Returns a function that takes back what inputs change from now on."""
        items, last, kept = self.items, self.last, set(self._kept)

        def restore() -> None:
            self.items, self.last, self._kept = items, last, kept

        return restore

    # --- core events ------------------------------------------------------------------------------

    def _on_started(self, event: ItemStarted) -> None:
        item = event.item
        if type(item) not in _PREFIXES or item.choice:
            return
        whole = WholeItem(item)
        if isinstance(item, _WITH_ARGUMENTS):
            self._unshown[item.id] = whole
        elif whole.is_message_of_agent:
            self._add_message(whole)
        elif whole.details.use is not None:
            self._add_call(whole)
        elif whole.object("", ""):
            self._show(whole)

    def _add_call(self, whole: WholeItem) -> None:
        """Adds a call of a toolset, which has its entry from its beginning: clients may be asked about it. This API
        does not show calls that only read.
        """
        if whole.object("", ""):
            self._show(whole)
        else:
            id = self.new_id(_PREFIXES[Activity])
            self._open[whole.item.id] = _Open(id, self.outputs, whole, shown=False)
        self._keep_open(self.outputs + 1)

    def _show(self, whole: WholeItem) -> _Open:
        item = whole.item
        opened = _Open(self.new_id(_PREFIXES[type(item)]), self.outputs, whole)
        self.outputs += 1
        self._open[item.id] = opened
        self._tell("item.added", item=whole.object(opened.id, self.turn), output_index=opened.place)
        if isinstance(item, Message):
            self._tell_part(opened, "content_part.added", part={"type": "output_text", "text": ""})
        return opened

    def _add_message(self, whole: WholeItem) -> None:
        """Adds a message of a subagent, which the agent has got as a whole: it is none of its own output."""
        whole.status = "completed"
        self.add_input(AgentItem.of(whole.events()), "amsg")

    def _on_text(self, event: TextDelta | RefusalDelta) -> None:
        opened = self._open.get(event.id)
        if opened is not None:
            opened.whole.add(event)
            self._tell_part(opened, "output_text.delta", delta=event.text)

    def _on_reasoning(self, event: ReasoningDelta) -> None:
        opened = self._open.get(event.id)
        if opened is None or event.kind != "summary":
            return
        if self._part.get(event.id) != event.part:
            self._end_summary(opened)
            opened.whole.parts.setdefault(event.part, [])
            self._part[event.id] = event.part
            self._tell_summary(opened, "part.added", part={"type": "summary_text", "text": ""})
        opened.whole.add(event)
        self._tell_summary(opened, "text.delta", delta=event.text)

    def _on_arguments(self, event: ArgumentsDelta) -> None:
        whole = self._unshown.get(event.id)
        if whole is not None:
            whole.add(event)

    def _on_output(self, event: OutputDelta) -> None:
        whole = self._unshown.pop(event.id, None)
        opened = self._open.get(event.id) if whole is None else self._show(whole)
        if opened is None:
            return
        opened.whole.add(event)
        if opened.whole.is_command:  # its object is not made for that: it would join the output so far
            self.events.append(
                {
                    "type": "agent.output.command_execution_output.delta",
                    "session_id": self._session,
                    "turn_id": self.turn,
                    "item_id": opened.id,
                    "output_index": opened.place,
                    "delta": event.text,
                }
            )

    def _on_ended(self, event: ItemEnded) -> None:
        whole = self._unshown.pop(event.id, None)
        if whole is not None:
            if event.status == "incomplete":
                return  # nobody was told of the call
            self._show(whole)
        opened = self._open.pop(event.id, None)
        if opened is None:
            return
        whole, item = opened.whole, opened.whole.item
        if isinstance(item, ToolCall):  # its item ends with its result
            arguments = "".join(whole.text)
            call = Call(item.call_id, item.name, arguments, self.turn, opened.id, opened.place)
            self.calls.append(call)
            self._keep(call_entry(call), opened.place)
            return
        if isinstance(item, Message) and event.status == "completed":
            text = "".join(whole.text)
            self._tell_part(opened, "output_text.done", text=text)
            self._tell_part(opened, "content_part.done", part={"type": "output_text", "text": text})
        self._end_summary(opened, interrupted=event.status != "completed")
        whole.add(event)
        if opened.shown:
            self._tell("item.done", item=whole.object(opened.id, self.turn), output_index=opened.place)
        self._keep(Entry(opened.id, self.turn, AgentItem.of(whole.events())), opened.place)

    def _end_summary(self, opened: _Open, *, interrupted: bool = False) -> None:
        id = opened.whole.item.id
        if id not in self._part:
            return
        text = "".join(opened.whole.parts[self._part[id]])
        status = {"status": "incomplete"} if interrupted else {}
        self._tell_summary(opened, "text.done", text=text)
        self._tell_summary(opened, "part.done", part={"type": "summary_text", "text": text}, **status)
        del self._part[id]

    def _on_approval(self, event: ApprovalRequested) -> None:
        if event.asked:
            self.asks.append(event)

    # --- events -----------------------------------------------------------------------------------

    def _tell(self, kind: str, **fields: Any) -> None:
        self.events.append(turn_event(self._session, self.turn, kind, **fields))

    def _tell_part(self, opened: _Open, kind: str, **fields: Any) -> None:
        self._tell(kind, item_id=opened.id, output_index=opened.place, content_index=0, **fields)

    def _tell_summary(self, opened: _Open, kind: str, **fields: Any) -> None:
        index = list(opened.whole.parts).index(self._part[opened.whole.item.id])
        self._tell(
            f"reasoning_summary_{kind}",
            item_id=opened.id,
            output_index=opened.place,
            summary_index=index,
            **fields,
        )


_HANDLERS: Final[Mapping[type, Callable[[TurnRenderer, Any], None]]] = {
    ItemStarted: TurnRenderer._on_started,
    TextDelta: TurnRenderer._on_text,
    RefusalDelta: TurnRenderer._on_text,
    ReasoningDelta: TurnRenderer._on_reasoning,
    ArgumentsDelta: TurnRenderer._on_arguments,
    OutputDelta: TurnRenderer._on_output,
    ItemEnded: TurnRenderer._on_ended,
    ApprovalRequested: TurnRenderer._on_approval,
}
