"""The dialect of `codex exec --json`: output lines to events, a turn to the prompt on stdin. Each line has a whole
item: no deltas, no requests. Source: recordings of releases 0.163 and 0.169 (`tests/golden/recordings/exec`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

import msgspec

from codex_proxy.agents.codex.child_turn import ChildTurn, TokenCounts
from codex_proxy.agents.dialect import NOTHING, Ended, Step
from codex_proxy.agents.dialects.failures import (
    BAD_ANSWER,
    UNREADABLE_ERROR,
    clean_text,
    failure_from_text,
    retrying_event,
    status_in,
)
from codex_proxy.agents.dialects.json_lines import (
    decode_beginning,
    decode_line,
    decode_loosely,
    divided,
)
from codex_proxy.agents.dialects.transcript import prompt_of
from codex_proxy.core.damaged_json import is_torn
from codex_proxy.core.events import (
    FullReasoning,
    FullText,
    ItemEnded,
    ItemStarted,
    Notice,
    OutputDelta,
    StepCompleted,
    Stop,
    UsageReported,
)
from codex_proxy.core.items import Activity, ActivityKind, Message, Reasoning
from codex_proxy.core.repair import MAX_OPEN_ITEMS
from codex_proxy.core.shown_text import one_line
from codex_proxy.core.turn import Turn

RECONNECTING: Final = "Reconnecting..."
"""How an error line about a retry begins."""

READING_PROMPT: Final = "Reading "
"""How lines of stderr begin that only say that stdin is being read."""


class FileUpdate(msgspec.Struct, gc=False):
    """A changed file. `kind` is `add`, `update` or `delete`."""

    path: str = ""
    kind: str = ""


class Todo(msgspec.Struct, gc=False):
    text: str = ""
    completed: bool = False


class Item(msgspec.Struct, gc=False):
    """An item of any type. Missing fields are None or empty."""

    id: str = ""
    type: str = ""
    text: str | None = None
    message: str | None = None
    """The text of an `error` item, which is a warning."""
    command: str | None = None
    aggregated_output: str | None = None
    status: str | None = None
    changes: list[FileUpdate] | None = None
    server: str | None = None
    tool: str | None = None
    query: str | None = None
    items: list[Todo] | None = None


class ErrorText(msgspec.Struct, gc=False):
    message: str = ""


class Line(msgspec.Struct, gc=False):
    """A line of any type. Missing fields are None or empty."""

    type: str = ""
    thread_id: str = ""
    item: Item | None = None
    usage: TokenCounts | None = None
    """The tokens in `turn.completed`; all zeros if the provider reported none."""
    error: ErrorText | None = None
    message: str | None = None
    """The text of an `error` line: about a retry, or the turn's error."""


class _Head(msgspec.Struct, gc=False):
    """The type of a line whose other fields cannot be decoded."""

    type: str = ""


_line_decoder: Final = msgspec.json.Decoder(Line)
_head_decoder: Final = msgspec.json.Decoder(_Head)


def decode(line: bytes) -> tuple[Line | None, bool]:
    """Decodes a line; None if it is no event. Returns also whether it is damaged: fields of an unexpected type, and
    behind the place where it breaks off, count as missing; of one with too many values only `type` is set.
    """
    found = decode_line(line, _line_decoder, _head_decoder)
    if found is None:  # perhaps only its type is none
        return decode_loosely(line, Line), True
    if not isinstance(found, _Head):
        return found, False
    return decode_loosely(line, Line) or Line(found.type, item=_item_begun(line)), True


def _may_be_an_end(raw: bytes, line: Line | None) -> bool:
    """Whether a line of this protocol does not say what it is."""
    if line is not None and (line.type or line.item or line.usage or line.error):
        return not line.type
    return is_torn(raw)


def _may_lose_text(item: Item | None) -> bool:
    return item is None or not item.type or (item.type == "agent_message" and not item.text)


def _item_begun(line: bytes) -> Item | None:
    """Returns the item in a line that breaks off, without its text."""
    begun = decode_beginning(line, Line)
    return None if begun is None else begun.item


class _Running(msgspec.Struct):
    """An activity without its end. `own`: its id in events."""

    own: str
    id: str
    type: str
    line: str


class CodexExec(ChildTurn):
    """An item is known by its id, type and content: the child may share ids, rename items, or leave ids out."""

    # The body of a provider's 400 comes as it is, without its status.
    _kind_of_plain_text = "other"

    def __init__(self) -> None:
        super().__init__()
        self._model = ""
        self._count = 0
        self._running: dict[str, _Running] = {}
        """The running activities by their ids in events."""
        self._begun: set[tuple[str, str, str]] = set()
        """The type, id and line of each running activity that has an id."""
        self._done: dict[tuple[str, str], int] = {}
        """What the ended items have said (`_digest_of`), by type and id."""
        self._plan = ""

    def begin(self, turn: Turn) -> Step:
        self._model = turn.model
        prompt, _ = prompt_of(turn.history)
        return Step([], prompt.encode(errors="replace"), close_stdin=True)

    def receive(self, lines: Sequence[bytes]) -> Step:
        """A line that is no event becomes a `Notice`."""
        for raw in divided(lines):
            if self.ended:
                break
            line, damaged = decode(raw)
            if _may_be_an_end(raw, line):
                self._end(Stop.FAILED, "bad_line", BAD_ANSWER)
                break
            if line is None:
                self._add_bad_line_notice(raw)
                continue
            if damaged:
                self._events.append(Notice("bad_event", line.type if line.type in LINES else ""))
                if line.type == "item.completed" and _may_lose_text(line.item):
                    self._end(Stop.FAILED, "bad_event", BAD_ANSWER)
                    break
            handler = LINES.get(line.type)
            if handler is not None:
                handler(self, line)
        return self._take_step()

    def interrupt(self) -> Step:
        """Does nothing: the caller ends the child."""
        self._interrupted = True
        return NOTHING

    def eof(self, ended: Ended) -> Step:
        # Lines of stderr that only say that stdin is being read are no reason.
        lines = [line for line in ended.stderr_tail.splitlines() if not line.startswith(READING_PROMPT)]
        return super().eof(msgspec.structs.replace(ended, stderr_tail="\n".join(lines)))

    # --- lines --------------------------------------------------------------------------------------

    def _on_started(self, line: Line) -> None:
        self._start(line.thread_id, self._model)

    def _on_item_started(self, line: Line) -> None:
        item = line.item
        if item is None:
            return
        kind = ACTIVITIES.get(item.type)
        if kind is not None and item.type != "web_search":  # whose query comes with its end
            described = _line_of(item)
            begun = (item.type, item.id, described)
            if begun in self._begun:
                return
            own = self._begin_activity(item)
            if len(self._running) < MAX_OPEN_ITEMS:  # beyond it the turn fails
                self._running[own] = _Running(own, item.id, item.type, described)
                self._begun.update([begun] if item.id else ())
        elif item.type == "todo_list":
            self._add_plan(item)

    def _on_item_updated(self, line: Line) -> None:
        if line.item is not None and line.item.type == "todo_list":
            self._add_plan(line.item)

    def _on_item_completed(self, line: Line) -> None:
        item = line.item
        handler = None if item is None else ITEMS.get(item.type)
        if item is None or handler is None:
            return
        key, digest, described = (item.type, item.id), _digest_of(item), _line_of(item)
        running = self._find_running(item, line=described)
        is_known = key in self._done
        if running is None and is_known and self._done[key] == digest:
            return  # the same line again
        running = running or self._find_running(item)
        if running is None and not is_known:  # named anew
            running = self._find_running(item, line=described, any_id=True)
        if running is not None:
            del self._running[running.own]
            self._begun.discard((running.type, running.id, running.line))
        if item.id:
            self._done[key] = digest
        handler(self, item, running)

    def _find_running(self, item: Item, *, line: str | None = None, any_id: bool = False) -> _Running | None:
        """Returns the first running activity of the item's type: with its id, unless `any_id`, and with this line."""
        for each in self._running.values():
            if each.type == item.type and line in (None, each.line) and (any_id or each.id == item.id):
                return each
        return None

    def _on_error(self, line: Line) -> None:
        """Adds `Retrying` for a repeated model call. The first other text is the failure of a turn that fails without
        one.
        """
        text = line.message or ""
        if line.message is None:  # else the repeated answer would be a second one
            self._events.append(retrying_event(UNREADABLE_ERROR, None))
        elif text.startswith(RECONNECTING):
            self._events.append(retrying_event(failure_from_text(text), status_in(text)))
        elif self._error_text is None:
            self._error_text = text

    def _on_turn_completed(self, line: Line) -> None:
        used = line.usage
        usage = used.usage if used is not None and (used.input_tokens or used.output_tokens) else None
        self._events.append(StepCompleted(usage))
        if usage is not None:
            self._events.append(UsageReported(usage))
        self._end(Stop.STOP, "task_complete")

    def _on_turn_failed(self, line: Line) -> None:
        text = line.error.message if line.error is not None else ""
        self._end_by_error(text or self._error_text or "")

    # --- items --------------------------------------------------------------------------------------

    def _add_message(self, item: Item, _: _Running | None) -> None:
        own = self._next_id("m")
        self._events += (ItemStarted(Message(own)), FullText(own, item.text or ""), ItemEnded(own))

    def _add_reasoning(self, item: Item, _: _Running | None) -> None:
        if item.text:
            own = self._next_id("r")
            self._events += (ItemStarted(Reasoning(own)), FullReasoning(own, item.text), ItemEnded(own))

    def _add_activity(self, item: Item, running: _Running | None) -> None:
        own = self._begin_activity(item) if running is None else running.own
        if item.aggregated_output:
            self._events.append(OutputDelta(own, item.aggregated_output))
        self._events.append(ItemEnded(own, "completed" if item.status in (None, "completed") else "failed"))

    def _add_warning(self, item: Item, _: _Running | None) -> None:
        self._events.append(Notice("agent_warning", clean_text(item.message or "")))

    # --- helpers ------------------------------------------------------------------------------------

    def _add_plan(self, item: Item, _: _Running | None = None) -> None:
        steps = (f"{step.text} ({'completed' if step.completed else 'pending'})" for step in item.items or ())
        text = one_line(", ".join(steps))
        if text and text != self._plan:
            self._plan = text
            own = self._next_id("a")
            self._events += (ItemStarted(Activity(own, "plan", text)), ItemEnded(own))

    def _begin_activity(self, item: Item) -> str:
        own = self._next_id("a")
        self._events.append(ItemStarted(Activity(own, ACTIVITIES[item.type][0], _line_of(item))))
        return own

    def _next_id(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count - 1}"


def _describe_changes(item: Item) -> str:
    return ", ".join(f"{change.kind or 'change'} {change.path}" for change in item.changes or ())


def _line_of(item: Item) -> str:
    """Returns the line that describes an activity; empty for other items."""
    known = ACTIVITIES.get(item.type)
    return "" if known is None else one_line(known[1](item))


def _digest_of(item: Item) -> int:
    """Returns a number that is the same for an item that says the same."""
    return hash((item.text, item.message, _line_of(item), item.aggregated_output, item.status))


LineHandler: TypeAlias = Callable[[CodexExec, Line], None]
ItemHandler: TypeAlias = Callable[[CodexExec, Item, _Running | None], None]

ACTIVITIES: Final[Mapping[str, tuple[ActivityKind, Callable[[Item], str]]]] = {
    "command_execution": ("command", lambda item: item.command or ""),
    "file_change": ("file_change", _describe_changes),
    "mcp_tool_call": ("mcp_call", lambda item: f"{item.server or ''}.{item.tool or ''}"),
    "web_search": ("web_search", lambda item: item.query or ""),
}

ITEMS: Final[Mapping[str, ItemHandler]] = {
    "agent_message": CodexExec._add_message,
    "reasoning": CodexExec._add_reasoning,
    "todo_list": CodexExec._add_plan,
    "error": CodexExec._add_warning,
    **dict.fromkeys(ACTIVITIES, CodexExec._add_activity),
}

LINES: Final[Mapping[str, LineHandler]] = {
    "thread.started": CodexExec._on_started,
    "turn.started": CodexExec._on_started,
    "item.started": CodexExec._on_item_started,
    "item.updated": CodexExec._on_item_updated,
    "item.completed": CodexExec._on_item_completed,
    "error": CodexExec._on_error,
    "turn.completed": CodexExec._on_turn_completed,
    "turn.failed": CodexExec._on_turn_failed,
}
