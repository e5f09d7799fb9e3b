"""Decodes a line of `codex exec --json` into the fields that the dialect reads; others are ignored. Source: recordings
of releases 0.163 and 0.169 (`tests/golden/recordings/exec`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from codex_proxy.agents.codex.child_turn import TokenCounts
from codex_proxy.agents.dialect import UNREADABLE
from codex_proxy.core.json_cost import has_too_many_values


class FileUpdate(msgspec.Struct, gc=False):
    """A file that a patch changes; `kind` is `add`, `update` or `delete`."""

    path: str = ""
    kind: str = ""


class Todo(msgspec.Struct, gc=False):
    """One step of the agent's plan, and whether it is completed."""

    text: str = ""
    completed: bool = False


class Item(msgspec.Struct, gc=False):
    """An item of a turn: message, command, plan and so on. Missing fields are None or empty."""

    id: str = ""
    type: str = ""
    text: str | None = None
    """The whole text of an `agent_message` or `reasoning` item."""
    message: str | None = None
    """The text of an `error` item, which is a warning."""
    command: str | None = None
    """The command line of a `command_execution`."""
    aggregated_output: str | None = None
    """Everything that a command has printed so far."""
    status: str | None = None
    """How a command, patch or MCP call ended: `completed`, `failed` and the like."""
    changes: list[FileUpdate] | None = None
    """The files that a `file_change` changes."""
    server: str | None = None
    """The MCP server of an `mcp_tool_call`."""
    tool: str | None = None
    """The tool of an `mcp_tool_call`."""
    query: str | None = None
    """The query of a `web_search`."""
    items: list[Todo] | None = None
    """The steps of a `todo_list`, the agent's plan."""


class ErrorText(msgspec.Struct, gc=False):
    message: str = ""


class Line(msgspec.Struct, gc=False):
    """A decoded line: `thread.started`, `item.completed`, `turn.failed` and so on. Missing fields are None or empty."""

    type: str = ""
    thread_id: str = ""
    item: Item | None = None
    usage: TokenCounts | None = None
    """The tokens of the turn, in `turn.completed`; all zeros if the provider reported none."""
    error: ErrorText | None = None
    """The reason of a `turn.failed`."""
    message: str | None = None
    """Text of an `error` line: a note about a retry, or the turn's error."""


class _Head(msgspec.Struct, gc=False):
    """The `type` of a line whose other fields cannot be decoded."""

    type: str = ""


_LINE: Final = msgspec.json.Decoder(Line)
_HEAD: Final = msgspec.json.Decoder(_Head)


def decode(line: bytes) -> tuple[Line | None, bool]:
    """Returns the line (None if it is no event), and whether a field is wrong or there are too many values: then only
    its `type` is set.
    """
    try:
        if not has_too_many_values(line):
            return _LINE.decode(line), False
    except msgspec.ValidationError:
        pass
    except UNREADABLE:
        return None, False
    try:
        return Line(_HEAD.decode(line).type), True
    except UNREADABLE:
        return None, False
