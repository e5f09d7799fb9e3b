"""Converts a turn to the body of `/chat/completions`. Custom tools are functions with one string."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.shared.conversions import NamedSchema, function_parameters, schema_words
from codex_proxy.agents.shared.tool_schemas import plain_parameters
from codex_proxy.core.items import Tool
from codex_proxy.core.json_values import allows_only_objects, encode_json
from codex_proxy.core.turn import Turn
from codex_proxy.parts.upstream.forms import (
    NAMED_TOOL,
    OPTION_FORMS,
    SYSTEM_ROLE,
    TOOL_SCHEMAS,
    Forms,
    option_fields,
)
from codex_proxy.parts.upstream.openai_chat.forms import MESSAGE_FORMS, Message, with_forms

OPTIONAL: Final[Mapping[str, int]] = {
    **dict.fromkeys((*MESSAGE_FORMS, TOOL_SCHEMAS), 0),
    **dict.fromkeys(("json_schema", "json_object", "strict", NAMED_TOOL), 1),
    **dict.fromkeys(("parallel_tool_calls", "max_tokens", "tool_choice"), 2),
    "stream_options": 3,
    **dict.fromkeys((*OPTION_FORMS, SYSTEM_ROLE), 4),
}
"""The forms that an upstream may refuse, with their ranks for `tries_of`: the lower, the less is lost and the more
often it is refused. `max_tokens` is renamed, `json_schema` said in words; fields are left out.
"""


def request_body(turn: Turn, model: str, messages: Sequence[Message], refused: Forms = frozenset()) -> bytes:
    return encode_json(request_fields(turn, model, messages, refused))


def request_fields(turn: Turn, model: str, messages: Sequence[Message], refused: Forms) -> dict[str, Any]:
    """Returns the fields of the body. `refused`: the forms that the upstream refuses."""
    told = [*messages, _schema_words(turn)] if _schema_in_words(turn, refused) else messages
    body: dict[str, Any] = {**turn.passed_fields, "model": model, "messages": with_forms(told, refused)}
    body["stream"] = True
    if "stream_options" not in refused:
        body["stream_options"] = {"include_usage": True}  # without it most servers tell no usage
    body |= turn.sampling
    body |= _answer_fields(turn, refused)
    body |= _tool_fields(turn, refused)
    return body


def _answer_fields(turn: Turn, refused: Forms) -> dict[str, Any]:
    fields = option_fields(turn, "chat", refused)
    if turn.stop and not turn.reports_stop:
        fields["stop"] = list(turn.stop)
    if turn.max_tokens is not None:
        # The old name is the one that all servers know; OpenAI's newer models take the new one only.
        name = "max_completion_tokens" if "max_tokens" in refused else "max_tokens"
        fields[name] = turn.max_tokens
    if turn.output_schema is not None and not _schema_in_words(turn, refused):
        name = msgspec.json.decode(turn.output_schema, type=NamedSchema).title
        schema = {"name": name, "strict": True, "schema": turn.output_schema}
        if "strict" in refused:
            del schema["strict"]
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif "json_object" not in refused and _wants_object(turn):
        fields["response_format"] = {"type": "json_object"}
    return {name: value for name, value in fields.items() if name not in refused}


def _wants_object(turn: Turn) -> bool:
    if turn.output_schema is None:
        return turn.json_object
    return allows_only_objects(turn.output_schema)


def _schema_in_words(turn: Turn, refused: Forms) -> bool:
    return turn.output_schema is not None and "json_schema" in refused


def _schema_words(turn: Turn) -> dict[str, Any]:
    assert turn.output_schema is not None
    return {"role": "system", "content": schema_words(turn.output_schema)}


def _tool_fields(turn: Turn, refused: Forms) -> dict[str, Any]:
    if not turn.tools:
        return {}
    fields: dict[str, Any] = {"tools": [_function(tool, refused) for tool in turn.tools]}
    if turn.must_call and "tool_choice" not in refused:  # only those that may be called are in the turn
        named = {"type": "function", "function": {"name": turn.tools[0].name}}
        is_named = len(turn.tools) == 1 and NAMED_TOOL not in refused
        fields["tool_choice"] = named if is_named else "required"
    if not turn.parallel_tool_calls and "parallel_tool_calls" not in refused:
        fields["parallel_tool_calls"] = False
    return fields


def _function(tool: Tool, refused: Forms) -> dict[str, Any]:
    parameters = plain_parameters(tool) if TOOL_SCHEMAS in refused else function_parameters(tool)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    if not tool.description:
        del function["description"]
    if tool.strict and "strict" not in refused and tool.kind == "function":
        function["strict"] = True
    return {"type": "function", "function": function}
