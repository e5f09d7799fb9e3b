"""A client's tools, as far as both surfaces treat them alike. Raises `Fault` INVALID_REQUEST."""

from __future__ import annotations

from collections.abc import Sequence

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import Tool


def refuse_duplicates(tools: Sequence[Tool], fields: Sequence[str]) -> None:
    """`fields`: where each tool's name stands in the request."""
    names: set[str] = set()
    for tool, field in zip(tools, fields, strict=True):
        if tool.name in names:
            raise bad_request(f"The tool name '{tool.name}' is given twice.", field)
        names.add(tool.name)


def grammar_words(description: str, syntax: str, definition: str) -> str:
    """An agent has no place for a custom tool's grammar, so the model is told of it in words."""
    words = f"The input must follow this {syntax} grammar:\n{definition}"
    return f"{description}\n\n{words}" if description else words


def known_tool(name: str, kind: str, tools: Sequence[Tool], param: str) -> str:
    """The name, if such a tool was given."""
    if any(tool.name == name and tool.kind == kind for tool in tools):
        return name
    given = ", ".join(f"'{tool.name}'" for tool in tools if tool.kind == kind) or "none"
    raise bad_request(f"No {kind} '{name}' was given; there are: {given}.", param)
