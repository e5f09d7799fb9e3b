"""What the APIs have in common in `tools` and `tool_choice`. Raises `Fault` INVALID_REQUEST."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import Tool
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import ToolChoice


class OfferedTools(msgspec.Struct, frozen=True, kw_only=True):
    """The offered `tools`, and which may or must be called."""

    tools: tuple[Tool, ...]
    choice: ToolChoice = "auto"


def refuse_duplicates(tools: Sequence[Tool], fields: Sequence[str]) -> None:
    """Raises `Fault` for two tools of one name. `fields`: the paths of the names."""
    names: set[str] = set()
    for tool, field in zip(tools, fields, strict=True):
        if tool.name in names:
            raise bad_request(f"The tool name '{tool.name}' is given twice.", field)
        names.add(tool.name)


def with_grammar(description: str, syntax: str, definition: str) -> str:
    # Agents have no field for a grammar.
    words = f"The input must follow this {syntax} grammar:\n{definition}"
    return f"{description}\n\n{words}" if description else words


def known_tool(name: str, kind: str, tools: Sequence[Tool], param: str) -> str:
    """Returns a chosen tool's name. Raises `Fault` if `tools` have none of this name and kind."""
    if any(tool.name == name and tool.kind == kind for tool in tools):
        return name
    given = ", ".join(f"'{tool.name}'" for tool in tools if tool.kind == kind) or "none"
    raise bad_request(f"The request has no {kind} '{excerpt(name)}'; it has: {given}.", param)
