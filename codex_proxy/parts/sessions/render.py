"""Renders the core events of a turn as events of the Agents API, and collects the whole items for the session's log.
Nothing here is stored: items are rendered again from their entries. Source: docs/agents-api.md#streams.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

import msgspec

from codex_proxy.core.events import (
    ApprovalRequested,
    ArgumentsDelta,
    ContextReported,
    Event,
    HistoryCompacted,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    Retrying,
    StepCompleted,
    TextDelta,
    Usage,
)
from codex_proxy.core.items import (
    ActionDetails,
    Activity,
    McpCall,
    Message,
    PlanStep,
    Reasoning,
    ToolCall,
    ToolUse,
)
from codex_proxy.parts.sessions.items import WholeItem, call_entry, item_object
from codex_proxy.parts.sessions.log import (
    Acted,
    Answered,
    Compacted,
    Ended,
    Failed,
    Log,
    Logged,
    Said,
    Shown,
    StepBegan,
    StepEnded,
)
from codex_proxy.parts.sessions.sessions import AgentItem, Call, Cost, Entry, EntryItem, SessionTurn
from codex_proxy.parts.sessions.turn_errors import code_of

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

    @property
    def row(self) -> msgspec.Raw:
        """The item as it is now, as a row of core events."""
        return AgentItem.of(self.whole.events()).row


class _Steps:
    """The calls of the model of one run."""

    def __init__(self) -> None:
        self.expected = True
        """Whether the next item, whatever it is, is of a call that has begun since the last one ended."""
        self.cut = False
        """Whether the log tells the end of the last call before the agent did."""
        self.counted = self.owed = Usage()
        """The tokens so far, and those of calls whose ends are told without."""


class TurnRenderer:
    """Renders one turn, which may have several runs. `items` and `outputs` count its items so far, those of the client
    too, and the agent's.
    """

    def __init__(self, session: str, turn: str, log: Log, *, items: int = 0, outputs: int = 0) -> None:
        self.items = items
        self.outputs = outputs
        self.log = log
        self.step: int | None = None
        self.acting: dict[str, bool] = {}
        """See `SessionTurn`."""
        self.events: list[EventObject | Logged] = []
        """What is to be sent, and what is logged; whoever sends it takes it away."""
        self.entries: list[Entry] = []
        """Whole items, to be stored before their events are sent; in the order in which they began."""
        self.plan: tuple[PlanStep, ...] = ()
        """The newest plan; empty before there is one."""
        self.context_used = 0
        """The tokens of the last call of the model, if it was told; else 0."""
        self.context_window = 0
        """The model's window, if the agent tells it; else 0."""
        self.costs: list[Cost] = []
        """New costs."""
        self.said: Entry | None = None
        """The agent's last message, if it has said any."""
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
        self._declined: dict[str, str] = {}
        """Why this server has declined what was asked about items, by their ids."""
        self._steps = _Steps()
        self._counts: tuple[int, int, int | None, Mapping[str, bool]] = items, outputs, None, {}

    @classmethod
    def of(cls, turn: SessionTurn, log: Log) -> TurnRenderer:
        """Returns the renderer of a turn as it is stored, which writes to a log."""
        found = cls(turn.session, turn.id, log, items=turn.items, outputs=turn.outputs)
        found.step, found.acting = turn.step, dict(turn.acting)
        found._counts = turn.items, turn.outputs, turn.step, turn.acting
        return found

    def take_changes(self) -> Mapping[str, Any]:
        """Returns the fields of the `SessionTurn` that have changed since the last call."""
        counts = self.items, self.outputs, self.step, dict(self.acting)
        if counts == self._counts:
            return {}
        self._counts = counts
        return dict(zip(("items", "outputs", "step", "acting"), counts, strict=True))

    def feed(self, events: Sequence[Event]) -> None:
        """Takes the next events of a run, but for its end."""
        for event in events:
            handler = _HANDLERS.get(type(event))
            if handler is not None:
                handler(self, event)

    def end(self, usage: Usage | None = None, *, failed: bool = False) -> None:
        """Ends what is open, as incomplete. `usage`: the tokens of the whole run, if they are known."""
        for id in [*self._unshown, *self._open]:
            self._on_ended(ItemEnded(id, "incomplete"))
        for id, mcp in self.acting.items():  # of a process that is gone
            self.events.append(Ended(self.log.number(), id, failed=True, mcp=mcp))
        self.acting.clear()
        self.end_step(None if usage is None else usage.since(self._steps.counted), failed=failed)
        self._steps = _Steps()

    # --- calls of the model -----------------------------------------------------------------------

    def _begin_step(self) -> None:
        if self.step is None:
            self.step = self.log.number()
            self.events.append(StepBegan(self.step))

    def end_step(self, usage: Usage | None = None, *, failed: bool = False) -> None:
        """Ends the call of the model in the log, if one has begun: it may go on, but the client is to act now."""
        if self.step is not None:
            self.events.append(StepEnded(self.log.number(), self.step, usage, failed))
            self.step = None
            self._steps.cut = usage is None

    def _on_step_completed(self, event: StepCompleted) -> None:
        steps, usage = self._steps, event.usage
        steps.expected = False
        if usage is not None:
            self.context_used = usage.input + usage.output
            steps.counted += usage
            steps.owed += usage
        if self.step is None and steps.cut:
            steps.cut = False  # its tokens are told with the next
            return
        self._begin_step()
        self.end_step(None if usage is None else steps.owed)
        steps.owed, steps.cut = Usage(), False

    def _on_retrying(self, event: Retrying) -> None:
        self.end_step(failed=True)
        self._steps.cut, self._steps.expected = False, True
        code = "internal_error" if event.failure is None else code_of(event.failure.kind)
        self.events.append(Failed(self.log.number(), code, event.message, retries=True))

    def _on_compacted(self, _: HistoryCompacted) -> None:
        self.events.append(Compacted(self.log.number()))

    def new_id(self, prefix: str) -> str:
        """Returns the id of the turn's next item."""
        self.items += 1
        return f"{prefix}_{self.turn.removeprefix('turn_')}_{self.items}"

    def add_input(self, item: EntryItem, prefix: str, *, name: str = "", call: str = "") -> str:
        """Adds an item that is none of the agent's output. Returns its id, which begins with `prefix`. `name`: the name
        in the log of a message of the client; `call`: the item of the call whose result it is.
        """
        entry = Entry(self.new_id(prefix), self.turn, item)
        self._keep(entry, self.outputs)
        self._tell("item.added", item=item_object(entry), output_index=None)
        if name:
            self.events.append(Said(self.log.number(), entry.id, name))
        elif call:
            self.events.append(Answered(self.log.number(), entry.id, call))
        return entry.id

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

    def open_call(self, own_id: str) -> tuple[str, msgspec.Raw] | None:
        """Returns an open item by its id among the events, as `Acted` has it; None if there is none."""
        opened = self._open.get(own_id)
        return None if opened is None else (opened.id, opened.row)

    def calls_to_ask(self) -> Iterator[tuple[str, ToolUse]]:
        """Yields the open calls of which the client is asked, each with the id of its entry."""
        for opened in self._open.values():
            use = opened.whole.details.use
            if use is not None and use.permission == "always_ask":
                yield opened.id, use

    def undo(self) -> Callable[[], None]:
        """Returns a function that takes back what inputs change from now on."""
        items, last, kept, counts = self.items, self.last, set(self._kept), self._counts

        def restore() -> None:
            self.items, self.last, self._kept, self._counts = items, last, kept, counts

        return restore

    # --- core events ------------------------------------------------------------------------------

    def _on_started(self, event: ItemStarted) -> None:
        item = event.item
        if type(item) not in _PREFIXES or item.choice:
            return
        if isinstance(item, Activity):
            self._note_plan(item.details)
        if not isinstance(item, Activity | McpCall | ToolCall) or self._steps.expected:
            self._begin_step()
        whole = WholeItem(item)
        if isinstance(item, _WITH_ARGUMENTS):
            self._unshown[item.id] = whole
        elif whole.is_message_of_agent:
            self._add_message(whole)
        elif whole.details.use is not None:
            self._add_call(whole)
        elif whole.object("", ""):
            self._show(whole)

    def _note_plan(self, details: ActionDetails | None) -> None:
        if details is not None and details.plan:
            self.plan = details.plan

    def _log_call(self, opened: _Open) -> None:
        """Logs a call of one of the agent's own tools, or of an MCP server."""
        self.acting[opened.id] = opened.whole.is_mcp_call
        self.events.append(Acted(self.log.number(), opened.id, opened.row))

    def _add_call(self, whole: WholeItem) -> None:
        """Adds a call of a toolset, which has its entry from its beginning: clients may be asked about it. This API
        does not show calls that only read.
        """
        if whole.object("", ""):
            self._show(whole)
        else:
            id = self.new_id(_PREFIXES[Activity])
            self._open[whole.item.id] = opened = _Open(id, self.outputs, whole, shown=False)
            self._log_call(opened)
        self._keep_open(self.outputs + 1)

    def _show(self, whole: WholeItem) -> _Open:
        item = whole.item
        opened = _Open(self.new_id(_PREFIXES[type(item)]), self.outputs, whole)
        self.outputs += 1
        self._open[item.id] = opened
        self._tell("item.added", item=whole.object(opened.id, self.turn), output_index=opened.place)
        if isinstance(item, Message):
            self._tell_part(opened, "content_part.added", part={"type": "output_text", "text": ""})
        elif whole.is_call_of_server:
            self._log_call(opened)
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
        self._note_plan(event.details)
        whole = self._unshown.pop(event.id, None)
        if whole is not None:
            if event.status == "incomplete":
                return  # nobody was told of the call
            self._show(whole)
        opened = self._open.pop(event.id, None)
        if opened is None:
            return
        whole, item = opened.whole, opened.whole.item
        event = self._with_reason(event, whole)
        if isinstance(item, ToolCall):  # its item ends with its result
            arguments = "".join(whole.text)
            call = Call(item.call_id, item.name, arguments, self.turn, opened.id, opened.place)
            self.calls.append(call)
            self._keep(call_entry(call), opened.place)
            self.events.append(Shown(self.log.number(), opened.id))
            return
        if isinstance(item, Message) and event.status == "completed":
            text = "".join(whole.text)
            self._tell_part(opened, "output_text.done", text=text)
            self._tell_part(opened, "content_part.done", part={"type": "output_text", "text": text})
        self._end_summary(opened, interrupted=event.status != "completed")
        whole.add(event)
        if opened.shown:
            self._tell("item.done", item=whole.object(opened.id, self.turn), output_index=opened.place)
        entry = Entry(opened.id, self.turn, AgentItem.of(whole.events()))
        self._keep(entry, opened.place)
        if opened.id in self.acting:
            self._steps.expected = True
            mcp, failed = self.acting.pop(opened.id), event.status != "completed"
            self.events.append(Ended(self.log.number(), opened.id, opened.id, failed=failed, mcp=mcp))
        elif isinstance(item, Reasoning) or (isinstance(item, Message) and whole.text):
            self.events.append(Shown(self.log.number(), opened.id))
            self.said = entry if isinstance(item, Message) else self.said

    def _end_summary(self, opened: _Open, *, interrupted: bool = False) -> None:
        id = opened.whole.item.id
        if id not in self._part:
            return
        text = "".join(opened.whole.parts[self._part[id]])
        status = {"status": "incomplete"} if interrupted else {}
        self._tell_summary(opened, "text.done", text=text)
        self._tell_summary(opened, "part.done", part={"type": "summary_text", "text": text}, **status)
        del self._part[id]

    def _on_context(self, event: ContextReported) -> None:
        self.context_used, self.context_window = event.used, event.window
        if event.cost:
            self.costs.append(Cost(event.cost, event.currency))

    def _on_approval(self, event: ApprovalRequested) -> None:
        if event.declined:
            self._decline(event)
        if not event.asked:
            return
        whole = self._unshown.pop(event.item_id, None)
        if whole is not None:  # a call of an MCP server, whose arguments are complete
            self._show(whole)
            self._keep_open(self.outputs)
        self.asks.append(event)

    def _decline(self, event: ApprovalRequested) -> None:
        """Has the item of what was declined say why. Some agents tell no item of what did not run."""
        self._declined[event.item_id or event.request_id] = event.declined
        if not event.item_id and (event.kind == "command" or event.kind == "file_change"):
            self._on_started(
                ItemStarted(Activity(event.request_id, event.kind, event.text, details=event.details))
            )
            self._on_ended(ItemEnded(event.request_id, "failed", event.details))

    def _with_reason(self, event: ItemEnded, whole: WholeItem) -> ItemEnded:
        """Returns the end of an item, with the reason if this server has declined it."""
        why = self._declined.pop(event.id, "")
        if not why or event.status != "failed" or not isinstance(whole.item, Activity):
            return event
        details = msgspec.structs.replace(event.details or whole.details, error=why)
        return msgspec.structs.replace(event, details=details)

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
    StepCompleted: TurnRenderer._on_step_completed,
    Retrying: TurnRenderer._on_retrying,
    HistoryCompacted: TurnRenderer._on_compacted,
    ContextReported: TurnRenderer._on_context,
}
