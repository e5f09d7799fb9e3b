"""What the agent does by itself, as one line for a person: from its items to `Activity`."""

from __future__ import annotations

import msgspec

from codex_proxy.core.items import Activity


class Change(msgspec.Struct, frozen=True, gc=False):
    path: str = ""


class ThreadItem(msgspec.Struct, frozen=True, gc=False):
    """An item of a thread: the fields that we read of any type of it."""

    type: str
    id: str = ""
    text: str | None = None
    phase: str | None = None
    summary: list[str] | None = None
    content: msgspec.Raw = msgspec.Raw()
    command: str | None = None
    changes: list[Change] | None = None
    server: str | None = None
    tool: str | None = None
    query: str | None = None
    path: str | None = None
    status: str | None = None
    output: str | None = msgspec.field(default=None, name="aggregatedOutput")
    """All that a command has printed."""


class PlanStep(msgspec.Struct, frozen=True, gc=False):
    step: str = ""
    status: str = ""


def _command(item: ThreadItem) -> str:
    return item.command or ""


def _files(item: ThreadItem) -> str:
    return ", ".join(change.path for change in item.changes or ())


def _mcp(item: ThreadItem) -> str:
    return f"{item.server or '?'}.{item.tool or '?'}"


def _query(item: ThreadItem) -> str:
    return item.query or ""


def _path(item: ThreadItem) -> str:
    return item.path or ""


KINDS = {
    "commandExecution": ("command", _command),
    "fileChange": ("file_change", _files),
    "mcpToolCall": ("mcp_call", _mcp),
    "webSearch": ("web_search", _query),
    "imageView": ("image", _path),
}
LATE = frozenset({"webSearch"})
"""Types whose text is empty until they are completed."""

_MARKS = {"completed": "[x]", "inProgress": "[>]", "in_progress": "[>]"}


def activity_of(item: ThreadItem) -> Activity | None:
    """The activity that an item of the agent stands for; None where it is none."""
    known = KINDS.get(item.type)
    if known is None:
        return None
    kind, text = known
    return Activity(item.id, kind, " ".join(text(item).split()))  # type: ignore[arg-type]


def plan_activity(id: str, steps: list[PlanStep]) -> Activity:
    """The agent's to-do list in one line."""
    return Activity(id, "plan", "; ".join(f"{_MARKS.get(each.status, '[ ]')} {each.step}" for each in steps))
