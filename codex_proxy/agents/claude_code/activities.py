"""Converts Claude Code's own tool calls to activities (items that only describe what the agent does), and decides
the program's requests for permission.

Input: a tool's name and input, as the model wrote them. Output: the kind of activity and a line that describes it;
and whether the turn's sandbox allows what the program requests. The decision does not depend on text that the model
wrote.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import msgspec

from codex_proxy.agents.dialect import UNREADABLE
from codex_proxy.core.items import Activity
from codex_proxy.core.turn import Sandbox

Kind = Literal["command", "file_change", "web_search", "mcp_call", "plan", "image", "question", "other"]
Permission = Literal["command", "file_change", "permission", "mcp"]

KINDS: Final[dict[str, Kind]] = {
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
"""The kind of activity of each Claude Code tool; all others are `other`."""

_TEXT_FIELDS: Final = (
    "command",
    "file_path",
    "notebook_path",
    "url",
    "query",
    "pattern",
    "path",
    "description",
)
MAX_TEXT: Final = 300


def kind_of(tool: str) -> Kind:
    """Returns the kind of activity for a call of the tool with this name."""
    return "mcp_call" if tool.startswith("mcp__") else KINDS.get(tool, "other")


def activity(id: str, tool: str, input: msgspec.Raw | None) -> Activity:
    """Returns the item for a call of one of the agent's own tools. `id` is the call's id. `input` is the JSON of
    the call's arguments; None if they are not known, and the description is then only the tool's name.
    """
    kind = kind_of(tool)
    said = _text(input)
    if kind in ("command", "file_change", "web_search") and said:
        return Activity(id, kind, said)
    return Activity(id, kind, f"{tool} {said}".strip())


def permission_of(tool: str) -> Permission:
    """Returns the kind of permission that a call of the tool with this name needs."""
    match kind_of(tool):
        case "command":
            return "command"
        case "file_change":
            return "file_change"
        case "mcp_call":
            return "mcp"
    return "permission"


def is_allowed(sandbox: Sandbox) -> bool:
    """Returns whether everything for which the program requests permission is allowed: only in the sandbox
    `danger-full-access`. The program makes no request for what its permission mode allows already. It requests
    permission to read outside of the folder, to run commands, to use the network, and (except in `workspace-write`)
    to change files in the folder.
    """
    return sandbox == "danger-full-access"


def output_text(content: Any) -> str:
    """Returns the text of a tool's output. `content` is a text or a list of blocks, as in Anthropic's API; texts of
    blocks are joined by line feeds.
    """
    if isinstance(content, str):
        return content
    texts = [
        part["text"]
        for part in (content if isinstance(content, list) else ())
        if isinstance(part, dict) and isinstance(part.get("text"), str)
    ]
    return "\n".join(texts)


def _text(input: msgspec.Raw | None) -> str:
    if not input:
        return ""
    try:
        value = msgspec.json.decode(input)
    except UNREADABLE:
        return ""
    if not isinstance(value, dict):
        return ""
    found = next((value[name] for name in _TEXT_FIELDS if isinstance(value.get(name), str)), "")
    line = " ".join(found.split())
    return line if len(line) <= MAX_TEXT else line[: MAX_TEXT - 1] + "…"
