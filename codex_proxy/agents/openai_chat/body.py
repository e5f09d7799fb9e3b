"""Converts a turn to the body of `/chat/completions`. Custom tools are functions with one string."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialects.conversions import NamedSchema, function_parameters
from codex_proxy.core.items import Tool
from codex_proxy.core.json_values import encode_json
from codex_proxy.core.turn import Turn

OPTIONAL: Final[Mapping[str, bytes]] = {
    "stream_options": b"stream_options",
    "parallel_tool_calls": b"parallel_tool_calls",
    "max_tokens": b"max_completion_tokens",
    "json_object": b"response_format",
    "strict": b"strict",
}
"""Fields that are left out or changed for an upstream that refuses them; with the word in its error."""
_NO_SCHEMAS: Final = re.compile(
    rb"json_schema.{0,200}(?:support|available|must be|expected|one of|unknown|invalid type)"
    rb"|(?:support|available|must be|expected|one of|unknown|invalid type).{0,200}json_schema",
    re.IGNORECASE | re.DOTALL,
)
_REFUSES_PARTS: Final = re.compile(
    rb"content.{0,120}(?:must be a|should be a|expected a|valid) string", re.IGNORECASE | re.DOTALL
)


def request_body(turn: Turn, model: str, messages: Sequence[Any], refused: Collection[str] = ()) -> bytes:
    """Returns the body. `refused`: what `refused_field` has returned; `OPTIONAL` fields are left out or renamed. With
    `json_schema` a message describes the schema; with `parts` text parts are one string.
    """
    told = [*messages, _schema_words(turn)] if _schema_in_words(turn, refused) else messages
    told = list(map(_without_parts, told)) if "parts" in refused else told
    body: dict[str, Any] = {**turn.passed_fields, "model": model, "messages": told, "stream": True}
    if "stream_options" not in refused:
        body["stream_options"] = {"include_usage": True}  # without it most servers tell no usage
    body |= turn.sampling
    body |= _answer_fields(turn, refused)
    body |= _tool_fields(turn, refused)
    return encode_json(body)


def _answer_fields(turn: Turn, refused: Collection[str]) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "reasoning_effort": turn.effort,
        "verbosity": turn.verbosity,
        "service_tier": turn.service_tier,
    }
    if turn.stop and not turn.reports_stop:
        fields["stop"] = list(turn.stop)
    if turn.max_tokens is not None:
        # The old name is the one that all servers know; OpenAI's newer models take the new one only.
        name = "max_completion_tokens" if "max_tokens" in refused else "max_tokens"
        fields[name] = turn.max_tokens
    if turn.output_schema is not None and not _schema_in_words(turn, refused):
        name = msgspec.json.decode(turn.output_schema, type=NamedSchema).title
        schema = {"name": name, "strict": True, "schema": turn.output_schema}
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif (turn.json_object or turn.output_schema is not None) and "json_object" not in refused:
        fields["response_format"] = {"type": "json_object"}
    return {name: value for name, value in fields.items() if value is not None}


def _schema_in_words(turn: Turn, refused: Collection[str]) -> bool:
    return turn.output_schema is not None and "json_schema" in refused


def _schema_words(turn: Turn) -> dict[str, Any]:
    assert turn.output_schema is not None
    words = "Answer with JSON alone, that matches this JSON schema: " + bytes(turn.output_schema).decode()
    return {"role": "system", "content": words}


def _without_parts(message: Any) -> Any:
    content = message.get("content")
    if not _has_text_parts(message):
        return message
    return {**message, "content": "\n\n".join(part["text"] for part in content)}


def _has_text_parts(message: Any) -> bool:
    content = message.get("content")
    return isinstance(content, list) and all(part.get("type") == "text" for part in content)


def _tool_fields(turn: Turn, refused: Collection[str]) -> dict[str, Any]:
    if not turn.tools:
        return {}
    fields: dict[str, Any] = {
        "tools": [_function(tool, may_be_strict="strict" not in refused) for tool in turn.tools]
    }
    if turn.must_call:  # only those that may be called are in the turn
        named = {"type": "function", "function": {"name": turn.tools[0].name}}
        fields["tool_choice"] = named if len(turn.tools) == 1 else "required"
    if not turn.parallel_tool_calls and "parallel_tool_calls" not in refused:
        fields["parallel_tool_calls"] = False
    return fields


def _function(tool: Tool, *, may_be_strict: bool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": function_parameters(tool)}
    if not tool.description:
        del function["description"]
    if tool.strict and may_be_strict and tool.kind == "function":
        function["strict"] = True
    return {"type": "function", "function": function}


def refused_field(turn: Turn, messages: Sequence[Any], refused: Collection[str], error: bytes) -> str | None:
    """Returns what the upstream refuses: a key of `OPTIONAL`, `json_schema`, or `parts`; or None. `refused`: what
    is already left out.
    """
    had = {
        "stream_options": True,
        "parallel_tool_calls": bool(turn.tools) and not turn.parallel_tool_calls,
        "max_tokens": turn.max_tokens is not None,
        "json_object": turn.json_object or _schema_in_words(turn, refused),
        "strict": any(tool.strict for tool in turn.tools),
    }
    had = {name: each and name not in refused for name, each in had.items()}
    if turn.output_schema is not None and "json_schema" not in refused and _NO_SCHEMAS.search(error):
        return "json_schema"
    if "parts" not in refused and any(map(_has_text_parts, messages)) and _REFUSES_PARTS.search(error):
        return "parts"
    return next((name for name, word in OPTIONAL.items() if had[name] and word in error), None)
