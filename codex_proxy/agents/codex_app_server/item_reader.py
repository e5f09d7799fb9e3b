"""Converts notifications about a thread's items to events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from codex_proxy.agents.codex_app_server.wire import TEXT_DELTA, Message, Params
from codex_proxy.agents.dialects.json_lines import decode_loosely, decode_part
from codex_proxy.core import items
from codex_proxy.core.events import (
    Event,
    FullReasoning,
    FullText,
    ItemEnded,
    ItemStarted,
    Notice,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
)
from codex_proxy.core.items import Activity, ActivityKind
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.limits import DELTA_SIZE

REFUSED = "The model refused to answer. The agent does not report the text of the refusal."


MAX_OUTPUT_CHARS = 8 << 20
"""Maximum characters of all running commands' outputs; Codex keeps 1 MiB of each."""


class FileChange(msgspec.Struct, frozen=True, gc=False):
    path: str = ""


class ThreadItem(msgspec.Struct, frozen=True, gc=False):
    type: str
    id: str = ""
    text: str | None = None
    phase: str | None = None
    """`commentary`, `final_answer`, or None."""
    summary: list[str] | None = None
    content: msgspec.Raw = msgspec.Raw()
    """The parts of raw reasoning, as a JSON list."""
    command: str | None = None
    changes: list[FileChange] | None = None
    server: str | None = None
    tool: str | None = None
    query: str | None = None
    path: str | None = None
    status: str | None = None
    output: str | None = msgspec.field(default=None, name="aggregatedOutput")


class _Item(msgspec.Struct, frozen=True, gc=False):
    """What can be read of an item that breaks off."""

    type: str = ""
    id: str = ""


class PlanStep(msgspec.Struct, frozen=True, gc=False):
    step: str = ""
    status: str = ""


def _files(item: ThreadItem) -> str:
    return ", ".join(change.path for change in item.changes or ())


ACTIVITIES: Final[Mapping[str, tuple[ActivityKind, Callable[[ThreadItem], str]]]] = {
    "commandExecution": ("command", lambda item: item.command or ""),
    "fileChange": ("file_change", _files),
    "mcpToolCall": ("mcp_call", lambda item: f"{item.server or '?'}.{item.tool or '?'}"),
    "webSearch": ("web_search", lambda item: item.query or ""),
    "imageView": ("image", lambda item: item.path or ""),
}
TEXT_AT_END = frozenset({"webSearch"})
"""Types of items that can be described only when completed."""

_STEP_MARKS = {"completed": "[x]", "inProgress": "[>]", "in_progress": "[>]"}


def activity_of(item: ThreadItem) -> Activity | None:
    known = ACTIVITIES.get(item.type)
    if known is None:
        return None
    kind, described = known
    return Activity(item.id, kind, " ".join(described(item).split()))


class ItemReader:
    """The caller empties `events`."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.open_items: dict[str, type[items.Item]] = {}
        self.seen_messages: set[str] = set()
        """Messages with a text or raw item; one without either is a refusal."""
        self.ran_commands = False
        self._plans = 0
        self._outputs: dict[str, list[str]] = {}
        self._output_room = MAX_OUTPUT_CHARS

    def start_turn(self) -> None:
        self.open_items.clear()
        self.seen_messages.clear()
        self._forget_outputs()
        self.ran_commands = False

    def discard_for_retry(self) -> None:
        """Forgets the open items: Codex never completes them."""
        self.open_items.clear()

    @property
    def open_message(self) -> str:
        """The id of the newest open message, or empty."""
        return next((id for id in reversed(self.open_items) if self.open_items[id] is items.Message), "")

    def loses_text(self, message: Message) -> bool:
        """Whether a message that cannot be read has text of the answer that has come nowhere else."""
        if message.method == "item/completed":
            item = decode_loosely(message.params.item, _Item)
            return item is None or (item.type in ("", "agentMessage") and item.id not in self.seen_messages)
        return message.method == TEXT_DELTA and message.error is not None

    def add_refusals(self) -> None:
        """Adds a fixed refusal to open messages without text or raw item: Codex does not pass on the model's text."""
        self.events += [
            RefusalDelta(id, REFUSED)
            for id, kind in self.open_items.items()
            if kind is items.Message and id not in self.seen_messages
        ]

    def flush_outputs(self) -> None:
        self.events += [OutputDelta(id, "".join(pieces)) for id, pieces in self._outputs.items()]
        self._forget_outputs()

    def _forget_outputs(self) -> None:
        self._outputs.clear()
        self._output_room = MAX_OUTPUT_CHARS

    def on_item_started(self, params: Params) -> None:
        """Adds an item's beginning, or a `Notice` if Codex has shortened the history."""
        item = _item_of(params)
        if item.type == "agentMessage":
            self._start(item.id, items.Message(item.id, phase=item.phase))
        elif item.type == "reasoning":
            self._start(item.id, items.Reasoning(item.id))
        elif item.type == "contextCompaction":
            self.events.append(Notice("history_compacted", "the agent shortened the history by itself"))
        elif item.type not in TEXT_AT_END:
            activity = activity_of(item)
            if activity is not None:
                self.ran_commands |= activity.kind == "command"
                self._start(item.id, activity)

    def _start(self, id: str, item: items.Item) -> None:
        self.open_items[id] = type(item)
        self.events.append(ItemStarted(item))

    def on_item_completed(self, params: Params) -> None:
        """Adds an item's text or output, its end, and a missing beginning."""
        item = _item_of(params)
        was_started = item.id in self.open_items
        if item.type == "agentMessage":
            if not was_started:
                self._start(item.id, items.Message(item.id, phase=item.phase))
            if item.text:
                self.seen_messages.add(item.id)
                self.events.append(FullText(item.id, item.text))
        elif item.type == "reasoning":
            if not was_started:
                self._start(item.id, items.Reasoning(item.id))
            for part, text in enumerate(item.summary or ()):
                self.events.append(FullReasoning(item.id, text, part))
            for part, text in enumerate(_texts(item.content)):
                self.events.append(FullReasoning(item.id, text, part, "raw"))
        else:
            activity = activity_of(item)
            if activity is None:
                return
            if not was_started:
                self._start(item.id, activity)
            pieces = self._outputs.pop(item.id, ())
            self._output_room += sum(map(len, pieces)) + DELTA_SIZE * len(pieces)
            if output := "".join(pieces) if item.output is None else item.output:
                self.events.append(OutputDelta(item.id, output))
        failed = item.status in ("failed", "declined")
        self.events.append(ItemEnded(item.id, "failed" if failed else "completed"))
        self.open_items.pop(item.id, None)

    def on_summary_delta(self, params: Params) -> None:
        if params.item_id and params.delta:
            self.events.append(ReasoningDelta(params.item_id, params.delta, params.summary_index))

    def on_raw_delta(self, params: Params) -> None:
        if params.item_id and params.delta:
            self.events.append(ReasoningDelta(params.item_id, params.delta, params.content_index, "raw"))

    def on_output_delta(self, params: Params) -> None:
        # Kept back: the first part of an output, often all of it, comes only with the end of the command.
        if params.item_id and params.delta and params.item_id in self.open_items:
            size = len(params.delta) + DELTA_SIZE
            if size <= self._output_room:
                self._output_room -= size
                self._outputs.setdefault(params.item_id, []).append(params.delta)

    def plan_updated(self, params: Params) -> None:
        self._plans += 1
        steps = decode_part(params.plan, list[PlanStep])
        text = "; ".join(f"{_STEP_MARKS.get(each.status, '[ ]')} {each.step}" for each in steps)
        plan = Activity(f"plan_{self._plans}", "plan", text)
        self.events += [ItemStarted(plan), ItemEnded(plan.id)]


def _item_of(params: Params) -> ThreadItem:
    """Returns the item, without fields of an unexpected type. Raises `UnreadableError`."""
    return decode_part(params.item, ThreadItem, loosely=True)


def _texts(content: msgspec.Raw) -> list[str]:
    try:
        return msgspec.json.decode(content, type=list[str]) if content else []
    except UNREADABLE:
        return []


NOTIFICATIONS: dict[str, Callable[[ItemReader, Params], None]] = {
    "item/started": ItemReader.on_item_started,
    "item/completed": ItemReader.on_item_completed,
    "item/reasoning/summaryTextDelta": ItemReader.on_summary_delta,
    "item/reasoning/textDelta": ItemReader.on_raw_delta,
    "item/commandExecution/outputDelta": ItemReader.on_output_delta,
    "turn/plan/updated": ItemReader.plan_updated,
}
"""Handlers by method, without the frequent `item/agentMessage/delta`."""
