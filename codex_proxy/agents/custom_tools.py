"""Converts custom tools to functions and back, for agents and servers that have functions only.

A custom tool, whose input is free text, becomes a function with one string `input`. Five dialects use this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from codex_proxy.core.items import Tool

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
