"""The tools that a request offers to the model, and its `tool_choice`: what the APIs have in common. Raises `Fault`
INVALID_REQUEST for duplicate names, and for a choice of a tool that is not offered.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codex_proxy.core.faults import bad_request
from codex_proxy.core.items import Tool
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import ToolChoice


class OfferedTools(msgspec.Struct, frozen=True, kw_only=True):
    """The client's `tools` that the model is offered, and which of them it may or must call. An API's parser returns
    a subclass with what else the model is offered.
    """

    tools: tuple[Tool, ...]
    choice: ToolChoice = "auto"


def refuse_duplicates(tools: Sequence[Tool], fields: Sequence[str]) -> None:
    """Raises `Fault` INVALID_REQUEST if two tools have the same name. `fields` are the paths of the tools' names in
    the request; the path of the second one becomes the fault's `param`.
    """
    names: set[str] = set()
    for tool, field in zip(tools, fields, strict=True):
        if tool.name in names:
            raise bad_request(f"The tool name '{tool.name}' is given twice.", field)
        names.add(tool.name)


def with_grammar(description: str, syntax: str, definition: str) -> str:
    """Returns the description of a custom tool with its grammar appended. `syntax` is `lark` or `regex`,
    `definition` the grammar.
    """
    # Agents have no field for a grammar.
    words = f"The input must follow this {syntax} grammar:\n{definition}"
    return f"{description}\n\n{words}" if description else words


def known_tool(name: str, kind: str, tools: Sequence[Tool], param: str) -> str:
    """Returns `name` if a tool of this name and kind (`function` or `custom`) is among `tools`. Otherwise raises
    `Fault` INVALID_REQUEST with this `param`.
    """
    if any(tool.name == name and tool.kind == kind for tool in tools):
        return name
    given = ", ".join(f"'{tool.name}'" for tool in tools if tool.kind == kind) or "none"
    raise bad_request(f"The request has no {kind} '{excerpt(name)}'; it has: {given}.", param)
