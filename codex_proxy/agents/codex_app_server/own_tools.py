"""The toolset of Codex: what of it a thread can have, and the calls of its own tools as the toolset has them. Codex
reads and searches by commands, and writes files by patches.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any, Final

from msgspec.structs import replace

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import ActionDetails, ActivityKind, ToolName, ToolUse
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.own_tools import OwnTools
from codex_proxy.core.turn import Toolset, Turn

OWN_TOOLS: Final = OwnTools(
    sandboxes={
        **dict.fromkeys(("bash", "read", "glob", "grep", "web_fetch", "web_search"), "read-only"),
        **dict.fromkeys(("write", "edit"), "workspace-write"),
    },
    asks=frozenset({"bash", "write", "edit"}),
    together=frozenset({"write", "edit"}),
)
CANNOT_ASK: Final = Failure(
    FaultKind.UNAVAILABLE,
    "Codex cannot ask before its tools here, because nothing keeps what is allowed in the sandbox. The operator must "
    "install bubblewrap 0.9 or newer, or the client allow the tools (always_allow).",
)
_NO_SHELL: Final = {"features.shell_tool": False, "features.unified_exec": False}
_SHELLS: Final = ("-lc", "-c")


def with_toolset(turn: Turn) -> Turn:
    """Returns the turn with the sandbox and the search of its toolset: without the tools that write it is read-only."""
    toolset = turn.toolset
    if toolset is None:
        return turn
    writes = toolset.permission("write") or toolset.permission("edit")
    sandbox = turn.sandbox if writes else "read-only"
    return replace(turn, sandbox=sandbox, web_search=toolset.permission("web_search") is not None)


def tool_settings(toolset: Toolset | None) -> Mapping[str, bool]:
    """Returns the settings of a thread with these tools."""
    return {} if toolset is None or toolset.permission("bash") else _NO_SHELL


def tool_use(
    kind: ActivityKind | str, text: str, details: ActionDetails | None, toolset: Toolset | None
) -> ToolUse | None:
    """Returns what Codex does as a call of the toolset; None for anything else, or without a toolset. `text`: the
    query of a search.
    """
    if toolset is None:
        return None
    name: ToolName
    if kind == "command" and details is not None:
        name, input = "bash", {"command": _without_shell(details.command)}
    elif kind == "file_change" and details is not None:
        added = all(each.kind == "add" for each in details.changes)
        name, input = ("write", _written(details)) if added else ("edit", _edited(details))
    elif kind == "web_search":
        name, input = "web_search", {"query": text}
    else:
        return None
    return ToolUse(name, encode_json(input).decode(), toolset.permission(name))


def _without_shell(command: str) -> str:
    """Returns a command without the shell in which Codex runs it."""
    try:
        words = shlex.split(command)
    except ValueError:
        return command
    return words[2] if len(words) == 3 and words[1] in _SHELLS else command


def _written(details: ActionDetails) -> dict[str, Any]:
    if len(details.changes) == 1:
        return {"file_path": details.changes[0].path, "content": details.changes[0].diff}
    return _edited(details)


def _edited(details: ActionDetails) -> dict[str, Any]:
    """Returns the input of a patch. Codex tells a diff, and not the texts that the toolset has."""
    changes = [
        {"file_path": each.path, "kind": each.kind, "diff": each.diff}
        | ({"moved_to": each.moved_to} if each.moved_to else {})
        for each in details.changes
    ]
    if len(changes) == 1:
        return {"file_path": changes[0]["file_path"], "diff": changes[0]["diff"]}
    return {"changes": changes}
