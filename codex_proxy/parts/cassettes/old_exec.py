"""The dialect of `codex exec --json`, which recordings of version 1 may have: output lines to events. Each line has a
whole item: no deltas, no requests.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from codex_proxy.agents.codex_proto.proto_dialect import ChildTurn
from codex_proxy.agents.codex_proto.proto_lines import TokenCounts
from codex_proxy.agents.dialect import NOTHING, Ended, Step
from codex_proxy.agents.shared.failures import (
    BAD_ANSWER,
    UNREADABLE_ERROR,
    clean_text,
    failure_from_text,
    retrying_event,
    status_in,
)
from codex_proxy.agents.shared.json_lines import decode_loosely, divided
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
from codex_proxy.core.shown_text import one_line
from codex_proxy.core.turn import Turn

RECONNECTING: Final = "Reconnecting..."
"""How an error line about a retry begins."""
READING_PROMPT: Final = "Reading "
"""How lines of stderr begin that only say that stdin is being read."""


class FileUpdate(msgspec.Struct, gc=False):
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


class CodexExec(ChildTurn):
    # The body of a provider's 400 comes as it is, without its status.
    _kind_of_plain_text = "other"

    def __init__(self) -> None:
        super().__init__()
        self._model = ""
        self._count = 0
        self._running: dict[str, str] = {}
        """The ids in events of the activities that run, by their own ids."""
        self._plan = ""

    def begin(self, turn: Turn) -> Step:
        self._model = turn.model
        return NOTHING

    def receive(self, lines: Sequence[bytes]) -> Step:
        """A line that is no event becomes a `Notice`."""
        for raw in divided(lines):
            if self.ended:
                break
            line = decode_loosely(raw, Line)
            if line is None:
                self._add_bad_line_notice(raw)
            else:
                self._handle(line)
        return self._take_step()

    def interrupt(self) -> Step:
        self._interrupted = True
        return NOTHING

    def eof(self, ended: Ended) -> Step:
        # Lines of stderr that only say that stdin is being read are no reason.
        lines = [line for line in ended.stderr_tail.splitlines() if not line.startswith(READING_PROMPT)]
        return super().eof(msgspec.structs.replace(ended, stderr_tail="\n".join(lines)))

    def _handle(self, line: Line) -> None:
        item = line.item
        if line.type in ("thread.started", "turn.started"):
            self._start(line.thread_id, self._model)
        elif line.type == "error":
            self._on_error(line)
        elif line.type == "turn.completed":
            self._on_turn_completed(line)
        elif line.type == "turn.failed":
            text = line.error.message if line.error is not None else ""
            self._end_by_error(text or self._error_text or "")
        elif item is None:
            if line.type == "item.completed":
                self._end(Stop.FAILED, "bad_event", BAD_ANSWER)
        elif item.type == "todo_list":
            self._add_plan(item)
        elif line.type == "item.started" and item.type in ACTIVITIES and item.type != "web_search":
            self._running[item.id] = self._begin_activity(item)  # the query of a search comes with its end
        elif line.type == "item.completed":
            self._add_item(item)

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

    def _add_item(self, item: Item) -> None:
        if item.type == "agent_message":
            own = self._next_id("m")
            self._events += (ItemStarted(Message(own)), FullText(own, item.text or ""), ItemEnded(own))
        elif item.type == "reasoning" and item.text:
            own = self._next_id("r")
            self._events += (ItemStarted(Reasoning(own)), FullReasoning(own, item.text), ItemEnded(own))
        elif item.type == "error":
            self._events.append(Notice("agent_warning", clean_text(item.message or "")))
        elif item.type in ACTIVITIES:
            own = self._running.pop(item.id, "") or self._begin_activity(item)
            if item.aggregated_output:
                self._events.append(OutputDelta(own, item.aggregated_output))
            self._events.append(
                ItemEnded(own, "completed" if item.status in (None, "completed") else "failed")
            )

    def _add_plan(self, item: Item) -> None:
        steps = (f"{step.text} ({'completed' if step.completed else 'pending'})" for step in item.items or ())
        text = one_line(", ".join(steps))
        if text and text != self._plan:
            self._plan = text
            own = self._next_id("a")
            self._events += (ItemStarted(Activity(own, "plan", text)), ItemEnded(own))

    def _begin_activity(self, item: Item) -> str:
        own = self._next_id("a")
        kind, text_of = ACTIVITIES[item.type]
        self._events.append(ItemStarted(Activity(own, kind, one_line(text_of(item)))))
        return own

    def _next_id(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}{self._count - 1}"


def _describe_changes(item: Item) -> str:
    return ", ".join(f"{change.kind or 'change'} {change.path}" for change in item.changes or ())


ACTIVITIES: Final[Mapping[str, tuple[ActivityKind, Callable[[Item], str]]]] = {
    "command_execution": ("command", lambda item: item.command or ""),
    "file_change": ("file_change", _describe_changes),
    "mcp_tool_call": ("mcp_call", lambda item: f"{item.server or ''}.{item.tool or ''}"),
    "web_search": ("web_search", lambda item: item.query or ""),
}
