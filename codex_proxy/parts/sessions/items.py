"""The items of a session: an item of the agent with its texts so far, and the objects of all items as clients see them.
Source: docs/agents-api.md.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, TypeAlias

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from codex_proxy.core.items import (
    ActionDetails,
    Activity,
    FileDiff,
    Item,
    ItemStatus,
    McpCall,
    Message,
    Reasoning,
    ToolCall,
)
from codex_proxy.parts.sessions.approvals import json_value
from codex_proxy.parts.sessions.sessions import AgentItem, Call, CallResult, Entry, UserMessage
from codex_proxy.parts.sessions.subagent_calls import call_fields

MAX_OUTPUT: Final = 1 << 20
"""Characters of an output that are kept if it is longer: the first and the last half of them."""
_HALF: Final = MAX_OUTPUT // 2
_MARK_ROOM: Final = 100
"""By how much an output may be longer: one that was cut has a mark, and is not cut again when it is read."""


def call_entry(call: Call, status: ItemStatus | None = None) -> Entry:
    """Returns the entry of a call: without a `status` of one that waits for its result."""
    whole = WholeItem(ToolCall(call.item, call.call_id, call.name))
    whole.text.append(call.arguments)
    whole.status = status or "in_progress"
    return Entry(call.item, call.turn, AgentItem.of(whole.events()))


ItemObject: TypeAlias = dict[str, Any]


def item_object(entry: Entry) -> ItemObject:
    item = entry.item
    if isinstance(item, UserMessage):
        return {
            "type": "message",
            "id": entry.id,
            "turn_id": entry.turn,
            "role": "user",
            "status": "completed",
            "phase": None,
            "content": list(item.content),
        }
    if isinstance(item, CallResult):
        return {
            "type": "function_call_output",
            "id": entry.id,
            "turn_id": entry.turn,
            "call_id": item.call_id,
            "status": "completed" if item.success else "failed",
            "output": item.output,
            "error": item.error,
        }
    return WholeItem.of(item.events()).object(entry.id, entry.turn)


class _Output:
    """An output that comes in pieces, of which so much is kept as is shown of it at its end."""

    def __init__(self) -> None:
        self._first: list[str] = []
        self._room = _HALF
        self._last: deque[str] = deque()
        self._size = 0
        """Characters in `_last`."""
        self._left_out = 0

    def add(self, text: str) -> None:
        first, rest = text[: self._room], text[self._room :]
        if first:
            self._first.append(first)
            self._room -= len(first)
        if not rest:
            return
        kept = rest[-(_HALF + _MARK_ROOM) :]
        self._last.append(kept)
        self._size += len(kept)
        self._left_out += len(rest) - len(kept)
        while self._size - len(self._last[0]) >= _HALF + _MARK_ROOM:
            gone = len(self._last.popleft())
            self._size -= gone
            self._left_out += gone

    def pieces(self) -> list[str]:
        """Returns what is kept, with a mark where something is left out."""
        if self._left_out + self._size <= _HALF + _MARK_ROOM:
            return [*self._first, *self._last]
        last = "".join(self._last)[-_HALF:]
        left_out = self._left_out + self._size - len(last)
        return [*self._first, f"\n[cut: {left_out} characters]\n", last]


class WholeItem:
    """An item of the agent, with the texts so far."""

    def __init__(self, item: Item) -> None:
        self.item = item
        self.status: ItemStatus | Literal["in_progress"] = "in_progress"
        self.text: list[str] = []
        """Pieces of its text or arguments."""
        self.parts: dict[int, list[str]] = {}
        """Pieces of each part of the summary of reasoning."""
        self._output = _Output()
        self.details = (isinstance(item, Activity) and item.details) or ActionDetails()

    @classmethod
    def of(cls, events: Sequence[Event]) -> WholeItem:
        """Returns the item of an entry's events, which begin with its `ItemStarted`."""
        first = events[0]
        assert isinstance(first, ItemStarted)
        whole = cls(first.item)
        for event in events[1:]:
            whole.add(event)
        return whole

    def add(self, event: Event) -> None:
        """Adds a piece, or the end."""
        if isinstance(event, TextDelta | RefusalDelta | ArgumentsDelta):
            self.text.append(event.text)
        elif isinstance(event, ReasoningDelta):
            if event.kind == "summary":
                self.parts.setdefault(event.part, []).append(event.text)
        elif isinstance(event, OutputDelta):
            self._output.add(event.text)
        elif isinstance(event, ItemEnded):
            self.status = event.status
            self.details = event.details or self.details

    @property
    def output(self) -> list[str]:
        """The pieces of its output; a long one is cut."""
        return self._output.pieces()

    @property
    def is_command(self) -> bool:
        """Whether the item is shown as a command."""
        return isinstance(self.item, Activity) and self.item.kind in ("command", "file_change")

    @property
    def is_call_of_server(self) -> bool:
        """Whether the item is a call of one of the agent's own tools, or of an MCP server."""
        return isinstance(self.item, McpCall) or (
            isinstance(self.item, Activity) and self.details.subagent is None
        )

    @property
    def is_mcp_call(self) -> bool:
        return isinstance(self.item, McpCall) or (
            isinstance(self.item, Activity) and self.item.kind == "mcp_call"
        )

    @property
    def is_message_of_agent(self) -> bool:
        """Whether the item is shown as a message between agents."""
        return self.details.subagent is not None and self.details.subagent.kind == "message"

    def events(self) -> list[Event]:
        """Returns the whole item as few events."""
        id = self.item.id
        found: list[Event] = [ItemStarted(self.item)]
        if self.text:
            text = "".join(self.text)
            found.append(TextDelta(id, text) if isinstance(self.item, Message) else ArgumentsDelta(id, text))
        found += [ReasoningDelta(id, "".join(texts), part) for part, texts in self.parts.items()]
        if output := "".join(self.output):
            found.append(OutputDelta(id, output))
        if self.status != "in_progress":
            found.append(
                ItemEnded(id, self.status, self.details if isinstance(self.item, Activity) else None)
            )
        return found

    def object(self, id: str, turn: str) -> ItemObject:
        """Returns the item's object; empty for one that this API does not show."""
        shown = self._fields()
        if not shown:
            return {}
        status = self.status
        if status == "failed" and shown["type"] in ("message", "reasoning", "web_search_call"):
            status = "incomplete"
        if self.is_message_of_agent:  # is there at once
            return {"id": id, "turn_id": turn, **shown}
        return {"type": shown["type"], "id": id, "turn_id": turn, "status": status, **shown}

    def _fields(self) -> dict[str, Any]:
        item, text = self.item, "".join(self.text)
        match item:
            case Message():
                content = [{"type": "output_text", "text": text}] if text else []
                phase = item.phase if item.phase in ("commentary", "final_answer") else None
                return {"type": "message", "role": "assistant", "phase": phase, "content": content}
            case Reasoning():
                summary = [{"type": "summary_text", "text": "".join(texts)} for texts in self.parts.values()]
                return {"type": "reasoning", "summary": summary}
            case ToolCall():
                arguments = json_value(text)
                return {
                    "type": "function_call",
                    "call_id": item.call_id,
                    "name": item.name,
                    "arguments": arguments,
                }
            case McpCall():
                output, failed = "".join(self.output), self.status == "failed"
                return {
                    "type": "mcp_call",
                    "server_label": item.server_label,
                    "name": item.name,
                    "arguments": json_value(text),
                    "output": None if failed or self.status == "in_progress" else output,
                    "error": output if failed else None,
                }
            case Activity():
                return self._activity(item)
        return {}

    def _activity(self, item: Activity) -> dict[str, Any]:
        if item.kind == "web_search":
            query = item.text or None
            return {
                "type": "web_search_call",
                "action": {"type": "search", "query": query, "queries": None},
            }
        details, output = self.details, "".join(self.output)
        if details.subagent is not None:
            return dict(call_fields(details.subagent))
        if item.kind == "mcp_call":
            label, _, name = item.text.partition(".")
            failed = self.status == "failed"
            return {
                "type": "mcp_call",
                "server_label": details.server or label,
                "name": details.tool or name,
                "arguments": json_value(details.arguments) if details.arguments else None,
                "output": json_value(details.result) if details.result else output or None,
                "error": (details.error or output or None) if failed else None,
            }
        if item.kind == "file_change":  # the API has no item for it
            paths = " ".join(change.path for change in details.changes) or item.text
            command, output = f"apply_patch {paths}", _diff_of(details.changes) or output
        elif item.kind == "command":
            command = details.command or item.text
        else:
            return {}
        if details.error:  # which only what was declined has
            output = "\n".join(filter(None, (output.rstrip("\n"), f"[declined: {details.error}]\n")))
        return {
            "type": "command_execution",
            "command": command,
            "cwd": details.cwd,
            "output": output if self.status != "in_progress" else None,
            "exit_code": details.exit_code,
            "duration_ms": details.duration_ms,
        }


def _diff_of(changes: Iterable[FileDiff]) -> str:
    return "\n".join(f"{change.kind or 'update'} {change.path}\n{change.diff}".rstrip() for change in changes)
