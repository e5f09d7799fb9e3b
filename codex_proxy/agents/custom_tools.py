"""Custom tools in the form of functions, for agents and servers that have functions alone.

A custom tool, whose input is free text, becomes a function with one string `input`; its calls are turned back. It is
small, but the dialects of five agents stand on it.
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
"""The parameters of a function that stands for a custom tool."""
NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}
"""The parameters of a function for which the client gives none."""


def function_parameters(tool: Tool) -> Any:
    """Returns the JSON Schema of a tool's arguments, as JSON or as a mapping that encodes to it."""
    if tool.kind == "custom":
        return INPUT_SCHEMA
    return NO_PARAMETERS if tool.parameters is None else tool.parameters


def custom_input(arguments: str) -> str:
    """Returns the input of a custom tool, from the JSON arguments of the function that stands for it; the arguments
    themselves if they are anything else."""
    try:
        value = msgspec.json.decode(arguments, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return arguments
    given = value.get("input")
    return given if isinstance(given, str) else arguments
