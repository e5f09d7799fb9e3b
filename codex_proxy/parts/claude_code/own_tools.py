"""The toolset of Claude Code: the program's names of its tools, their calls as the toolset has them, and the settings
with which the program asks before them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from codex_proxy.core.items import ActionDetails, ToolName, ToolUse
from codex_proxy.core.json_values import UNREADABLE, encode_json
from codex_proxy.core.own_tools import OwnTools
from codex_proxy.core.turn import Toolset

NAMES: Final[Mapping[ToolName, str]] = {
    "bash": "Bash",
    "read": "Read",
    "write": "Write",
    "edit": "Edit",
    "glob": "Glob",
    "grep": "Grep",
    "web_fetch": "WebFetch",
    "web_search": "WebSearch",
}
"""The program's names."""
_TOOLSET_NAMES: Final[Mapping[str, ToolName]] = {own: name for name, own in NAMES.items()}
OWN_TOOLS: Final = OwnTools(
    sandboxes={
        # No sandbox confines what it does; it keeps changes of files to the folder, and reads by itself.
        **dict.fromkeys(("bash", "web_fetch"), "danger-full-access"),
        **dict.fromkeys(("write", "edit"), "workspace-write"),
        **dict.fromkeys(("read", "glob", "grep", "web_search"), "read-only"),
    },
    asks=frozenset(NAMES),
)
WITHIN_SANDBOX: Final[frozenset[ToolName]] = frozenset(
    {"write", "edit", "read", "glob", "grep", "web_search"}
)
"""The tools that reach no further than any sandbox, if the paths in their calls do not: the provider searches."""
_FIELDS: Final[Mapping[ToolName, Mapping[str, str]]] = {
    "bash": {"command": "command", "timeout": "timeout_ms"},
    "read": {"file_path": "file_path"},
    "write": {"file_path": "file_path", "content": "content"},
    "edit": {each: each for each in ("file_path", "old_string", "new_string", "replace_all")},
    "glob": {"pattern": "pattern", "path": "path"},
    "grep": {"pattern": "pattern", "path": "path"},
    "web_fetch": {"url": "url"},
    "web_search": {"query": "query"},
}
"""The arguments of each tool that the toolset has, by the program's names."""


def program_names(toolset: Toolset) -> tuple[str, ...]:
    """Returns the program's names of the tools of a toolset."""
    return tuple(NAMES[name] for name in toolset.enabled)


def asking_settings(toolset: Toolset) -> str:
    """Returns the settings by which the program asks before each call of the tools that are asked about: without such
    rules it runs what only reads. Empty if there are none.
    """
    names = [NAMES[name] for name in toolset.asked]
    return encode_json({"permissions": {"ask": names}}).decode() if names else ""


def tool_use(tool: str, input: msgspec.Raw | None, toolset: Toolset) -> ToolUse | None:
    """Returns a call of the program's tool as the toolset has it; None for a tool that no toolset has."""
    name = _TOOLSET_NAMES.get(tool)
    if name is None:
        return None
    given = _object(input)
    found = {field: given[own] for own, field in _FIELDS[name].items() if own in given}
    if name == "read" and (lines := _lines_of(given)):
        found["view_range"] = lines
    return ToolUse(name, encode_json(found).decode(), toolset.permission(name))


def with_use(
    details: ActionDetails | None, tool: str, input: msgspec.Raw | None, toolset: Toolset | None
) -> ActionDetails | None:
    """Returns the details of a call with the call itself, in a turn that has a toolset."""
    use = None if toolset is None else tool_use(tool, input, toolset)
    return details if use is None else replace(details or ActionDetails(), use=use)


def _object(input: msgspec.Raw | None) -> dict[str, Any]:
    try:
        return msgspec.json.decode(input or b"{}", type=dict[str, Any])
    except UNREADABLE:
        return {}


def _lines_of(given: Mapping[str, Any]) -> list[int]:
    """Returns the first and the last line that a call reads (-1: the file's last); empty for all."""
    first, count = given.get("offset"), given.get("limit")
    if not isinstance(first, int) and not isinstance(count, int):
        return []
    begin = first if isinstance(first, int) else 1
    return [begin, begin + count - 1 if isinstance(count, int) else -1]
