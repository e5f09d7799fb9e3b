"""A turn becomes the body of a request to `/chat/completions`.

In: a `Turn`, the model's name as the upstream knows it, and which optional fields the upstream has refused. Out: the
JSON. Images, tools, sampling and formats are passed on as they are; custom tools travel as functions with one string.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.core.items import Tool
from codex_proxy.core.turn import NamedTools, Turn

INPUT_SCHEMA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {"input": {"type": "string"}},
    "required": ["input"],
    "additionalProperties": False,
}
"""Of the function that a custom tool travels as."""
NO_PARAMETERS: Final[Mapping[str, Any]] = {"type": "object", "properties": {}}


class _Named(msgspec.Struct, frozen=True):
    """A schema's name, which the client gave it, is its title here."""

    title: str = "answer"


OPTIONAL: Final[Mapping[str, bytes]] = {
    "stream_options": b"stream_options",
    "parallel_tool_calls": b"parallel_tool_calls",
    "max_tokens": b"max_completion_tokens",
    "json_object": b"response_format",
}
"""Fields that are left out, or said otherwise, for an upstream that refuses them, and the word in its error that tells.
What they ask for is kept by this server as well, or only makes its counting exact."""
_REFUSING: Final = frozenset({400, 422, 500})


def request_body(turn: Turn, model: str, messages: Sequence[Any], refused: Collection[str] = ()) -> bytes:
    """The body for a turn whose conversation is `messages`. `refused`: those of `OPTIONAL` that the upstream does not
    take."""
    body: dict[str, Any] = {**turn.passed_fields, "model": model, "messages": messages, "stream": True}
    if "stream_options" not in refused:
        body["stream_options"] = {"include_usage": True}  # without it most servers tell no usage
    body |= turn.sampling
    body |= _answer_fields(turn, refused)
    body |= _tool_fields(turn, refused)
    return encoded(body)


def _answer_fields(turn: Turn, refused: Collection[str]) -> dict[str, Any]:
    """What the answer is to be like."""
    fields: dict[str, Any] = {
        "reasoning_effort": turn.effort,
        "verbosity": turn.verbosity,
        "service_tier": turn.service_tier,
    }
    if turn.stop:
        fields["stop"] = list(turn.stop)
    if turn.max_tokens is not None:
        # The old name is the one that all servers know; OpenAI's newer models take the new one only.
        name = "max_completion_tokens" if "max_tokens" in refused else "max_tokens"
        fields[name] = turn.max_tokens
    if turn.output_schema is not None:
        name = msgspec.json.decode(turn.output_schema, type=_Named).title
        schema = {"name": name, "strict": True, "schema": turn.output_schema}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif turn.json_object and "json_object" not in refused:
        fields["response_format"] = {"type": "json_object"}
    return {name: value for name, value in fields.items() if value is not None}


def _tool_fields(turn: Turn, refused: Collection[str]) -> dict[str, Any]:
    if not turn.tools:
        return {}
    fields: dict[str, Any] = {"tools": [_function(tool) for tool in turn.tools]}
    choice = turn.tool_choice
    if isinstance(choice, NamedTools):
        required = choice.required
    else:
        required = choice == "required"
    if required:  # only those that may be called are in the turn
        named = {"type": "function", "function": {"name": turn.tools[0].name}}
        fields["tool_choice"] = named if len(turn.tools) == 1 else "required"
    if not turn.parallel_tool_calls and "parallel_tool_calls" not in refused:
        fields["parallel_tool_calls"] = False
    return fields


def _function(tool: Tool) -> dict[str, Any]:
    parameters: Any = tool.parameters
    if tool.kind == "custom":
        parameters = INPUT_SCHEMA
    elif parameters is None:
        parameters = NO_PARAMETERS
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    if not tool.description:
        del function["description"]
    if tool.strict and tool.kind == "function":
        function["strict"] = True
    return {"type": "function", "function": function}


def refused_field(turn: Turn, status: int, error: bytes) -> str | None:
    """Which of `OPTIONAL` that a request for this turn had an error's body names; None where it is about another
    thing."""
    if status not in _REFUSING:
        return None
    had = {
        "stream_options": True,
        "parallel_tool_calls": bool(turn.tools) and not turn.parallel_tool_calls,
        "max_tokens": turn.max_tokens is not None,
        "json_object": turn.json_object,
    }
    return next((name for name, word in OPTIONAL.items() if had[name] and word in error), None)


def custom_arguments(text: str) -> str:
    """The input of a custom tool as the arguments of the function that it travels as."""
    return json.dumps({"input": text}, ensure_ascii=False)


def custom_input(arguments: str) -> str:
    """The input of a custom tool, out of the arguments of the function that it travelled as."""
    try:
        value = json.loads(arguments)
    except (ValueError, RecursionError):
        return arguments
    given = value.get("input") if isinstance(value, dict) else None
    return given if isinstance(given, str) else arguments


def encoded(value: Any) -> bytes:
    """The value as JSON. Half of a surrogate pair, which a model's text may hold, becomes U+FFFD."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_surrogates(value))


def _without_surrogates(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, Mapping):
        return {_without_surrogates(key): _without_surrogates(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates(each) for each in value]
    return value
