"""Converts Claude Code's own tool calls to activities, and decides its requests for permission, without regard to text
of the model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec

from codex_proxy.core.events import ApprovalKind
from codex_proxy.core.items import Activity, ActivityKind
from codex_proxy.core.json_values import UNREADABLE, text_at
from codex_proxy.core.shown_text import one_line

KINDS: Final[dict[str, ActivityKind]] = {
    "Bash": "command",
    "BashOutput": "command",
    "KillShell": "command",
    "Monitor": "command",
    "PowerShell": "command",
    "Edit": "file_change",
    "MultiEdit": "file_change",
    "NotebookEdit": "file_change",
    "Write": "file_change",
    "WebFetch": "web_search",
    "WebSearch": "web_search",
    "TodoWrite": "plan",
    "ExitPlanMode": "plan",
    "AskUserQuestion": "question",
}


PERMISSIONS: Final[Mapping[ActivityKind, ApprovalKind]] = {
    "command": "command",
    "file_change": "file_change",
    "mcp_call": "mcp",
}
DESCRIBING: Final = (
    "command", "file_path", "notebook_path", "url", "query", "pattern", "path", "description",
)  # fmt: skip
"""The arguments that may describe a call; the first text among them is shown."""


def kind_of(tool: str) -> ActivityKind:
    return "mcp_call" if tool.startswith("mcp__") else KINDS.get(tool, "other")


def activity(id: str, tool: str, input: msgspec.Raw | None) -> Activity:
    """Returns the item for a call of one of the agent's own tools. `input`: its arguments as JSON, if known."""
    kind = kind_of(tool)
    said = _text(input)
    if kind in ("command", "file_change", "web_search") and said:
        return Activity(id, kind, said)
    return Activity(id, kind, f"{tool} {said}".strip())


def permission_of(tool: str) -> ApprovalKind:
    return PERMISSIONS.get(kind_of(tool), "permission")


class _Block(msgspec.Struct, frozen=True):
    text: str | None = None


def output_text(content: msgspec.Raw) -> str:
    """Returns a tool's output, which is a text or a list of blocks; empty for other JSON."""
    try:
        value = msgspec.json.decode(content, type=str | list[_Block]) if content else ""
    except UNREADABLE:
        return ""
    if isinstance(value, str):
        return value
    return "\n".join(block.text for block in value if block.text is not None)


def _text(input: msgspec.Raw | None) -> str:
    if not input:
        return ""
    try:
        value = msgspec.json.decode(input)
    except UNREADABLE:
        return ""
    return one_line(next((text for name in DESCRIBING if (text := text_at(value, name))), ""))
