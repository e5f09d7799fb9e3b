"""A client's tool, as each API describes it: `get_weather` of a city."""

from __future__ import annotations

from typing import Any

_DESCRIPTION = "The weather in a city."
_PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}

CHAT_WEATHER: Any = {
    "type": "function",
    "function": {"name": "get_weather", "description": _DESCRIPTION, "parameters": _PARAMETERS},
}
RESPONSES_WEATHER: Any = {"type": "function", **CHAT_WEATHER["function"], "strict": False}
MESSAGES_WEATHER: Any = {
    "name": "get_weather",
    "description": _DESCRIPTION,
    "input_schema": _PARAMETERS,
}
