"""Converts a turn to the body of `/responses`. The upstream stores nothing: encrypted reasoning is sent back."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.dialects.conversions import INPUT_SCHEMA, NO_PARAMETERS, NamedSchema
from codex_proxy.agents.dialects.response_items import history_item
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    RawHistoryItem,
    Tool,
)
from codex_proxy.core.json_values import UNREADABLE, encode_json, text_at
from codex_proxy.core.turn import Turn

CUSTOM: Final = "custom"
"""The name, among refused fields, of custom tools, which then become functions."""
OPTIONAL: Final = ("include", "store", "parallel_tool_calls", CUSTOM)
"""Fields (other than sampling) that are left out or changed if an error names them."""


def request_body(turn: Turn, model: str, items: Sequence[Any], refused: Collection[str] = ()) -> bytes:
    fields: dict[str, Any] = {
        "model": model,
        "input": items,
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "service_tier": turn.service_tier,
        "max_output_tokens": turn.max_tokens,
        "reasoning": _reasoning(turn),
        "text": _text(turn),
        **turn.sampling,
        **_tools(turn, refused),
    }
    return encode_json(
        {name: value for name, value in fields.items() if value is not None and name not in refused}
    )


def _reasoning(turn: Turn) -> dict[str, str] | None:
    told = {"effort": turn.effort, "summary": None if turn.summary == "none" else turn.summary}
    return {name: value for name, value in told.items() if value is not None} or None


def _text(turn: Turn) -> dict[str, Any] | None:
    text: dict[str, Any] = {} if turn.verbosity is None else {"verbosity": turn.verbosity}
    if turn.output_schema is not None:
        name = msgspec.json.decode(turn.output_schema, type=NamedSchema).title
        text["format"] = {"type": "json_schema", "name": name, "strict": True, "schema": turn.output_schema}
    elif turn.json_object:
        text["format"] = {"type": "json_object"}
    return text or None


def _tools(turn: Turn, refused: Collection[str]) -> dict[str, Any]:
    tools = [_tool(tool, as_function=CUSTOM in refused) for tool in turn.tools]
    if turn.web_search:
        tools.append({"type": "web_search"})
    if not tools:
        return {}
    fields: dict[str, Any] = {"tools": tools, "parallel_tool_calls": turn.parallel_tool_calls}
    if turn.must_call:
        # The turn has only tools that may be called.
        only = turn.tools[0] if len(turn.tools) == 1 else None
        kind = "function" if only is None or CUSTOM in refused else only.kind
        fields["tool_choice"] = "required" if only is None else {"type": kind, "name": only.name}
    return fields


def _tool(tool: Tool, *, as_function: bool) -> dict[str, Any]:
    told: dict[str, Any] = {"type": "function", "name": tool.name}
    if tool.description:
        told["description"] = tool.description
    if tool.kind == "custom" and not as_function:
        return told | {"type": "custom"}
    if tool.kind == "custom":
        return told | {"parameters": INPUT_SCHEMA, "strict": False}
    return told | {
        "parameters": NO_PARAMETERS if tool.parameters is None else tool.parameters,
        "strict": tool.strict,
    }


def refused_field(turn: Turn, refused: Collection[str], error: bytes) -> str | None:
    """Returns the optional field that an error names, if any, unless it is in `refused`."""
    named = _param_of(error)
    if named in turn.sampling and named not in refused:
        return named
    had = {
        "include": True,
        "store": True,
        "parallel_tool_calls": bool(turn.tools) and turn.parallel_tool_calls,
        CUSTOM: any(tool.kind == "custom" for tool in turn.tools),
    }
    return next(
        (name for name in OPTIONAL if had[name] and name not in refused and name.encode() in error), None
    )


def _param_of(error: bytes) -> str:
    try:
        value = json.loads(error)
    except UNREADABLE:
        return ""
    return text_at(value, "error", "param")


# --- the conversation -----------------------------------------------------------------------------


def input_items(history: Iterable[HistoryItem], refused: Collection[str] = ()) -> list[Any]:
    """Converts the history, without empty messages."""
    items: list[Any] = []
    for item in history:
        if isinstance(item, RawHistoryItem):
            items.append(msgspec.Raw(item.json))
        elif not isinstance(item, HistoryMessage) or item.parts:
            items.append(input_item(item, refused))
    return items


def input_item(
    item: HistoryMessage | HistoryCall | HistoryOutput, refused: Collection[str] = ()
) -> dict[str, Any]:
    as_function = CUSTOM in refused
    made = history_item(item, detail_of=lambda image: image.detail or "auto", as_function=as_function)
    for part in made.get("content", ()):
        if part["type"] == "output_text":
            part["annotations"] = []
    if made.get("arguments") == "":
        made["arguments"] = "{}"
    return made
