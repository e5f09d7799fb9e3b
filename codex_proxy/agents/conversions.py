"""Converts what an agent's protocol does not have: custom tools, and raw items of the Responses API.

A custom tool, whose input is free text, becomes a function with one string `input`. A raw item (`RawHistoryItem`)
becomes other history items, without what only models of that API understand (reasoning).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    Role,
    TextPart,
    Tool,
)

# --- custom tools -------------------------------------------------------------------------------

INPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""The parameters of the function that represents a custom tool."""
NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
"""The parameters of a function without any in the request."""


def function_parameters(tool: Tool) -> Any:
    """Returns the JSON Schema of a tool's arguments, either as JSON or as a mapping."""
    if tool.kind == "custom":
        return INPUT_SCHEMA
    return NO_PARAMETERS if tool.parameters is None else tool.parameters


def custom_input(arguments: str) -> str:
    """Returns the input of a custom tool from the JSON arguments of the function that represents it. If they do not
    have the expected form, returns them unchanged.
    """
    try:
        value = msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return arguments
    given = value.get("input")
    return given if isinstance(given, str) else arguments


# --- raw items ----------------------------------------------------------------------------------

_ROLES: Final[Mapping[Any, Role]] = {
    "system": "developer",
    "developer": "developer",
    "user": "user",
    "assistant": "assistant",
}


def items_of(raw: bytes) -> list[HistoryItem]:
    """Converts one raw item. Returns an empty list for types that have no other form."""
    item = json.loads(raw)
    match item.get("type", "message"):
        case "message":
            role = _ROLES.get(item.get("role"))
            parts = _parts(item.get("content"))
            return [HistoryMessage(role, parts)] if role is not None and parts else []
        case "function_call":
            return [HistoryCall(item["call_id"], item["name"], item.get("arguments") or "")]
        case "custom_tool_call":
            return [HistoryCall(item["call_id"], item["name"], item.get("input") or "", "custom")]
        case "function_call_output" | "custom_tool_call_output":
            return [HistoryOutput(item["call_id"], _parts(item.get("output")))]
    return []


def reasoning_text(raw: bytes) -> str:
    """Returns the text of a reasoning item that is neither encrypted nor summed up; empty for other items."""
    item = json.loads(raw)
    if item.get("type") != "reasoning":
        return ""
    return "".join(part.text for part in _parts(item.get("content")) if isinstance(part, TextPart))


def _parts(content: Any) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    parts: list[Part] = []
    for part in content if isinstance(content, list) else ():
        if part.get("type") == "input_image" and isinstance(part.get("image_url"), str):
            parts.append(ImagePart(part["image_url"], part.get("detail")))
        elif isinstance(text := part.get("text") or part.get("refusal"), str):
            parts.append(TextPart(text))
    return tuple(parts)
