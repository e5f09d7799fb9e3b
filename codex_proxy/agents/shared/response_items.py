"""Writes items of the Responses API: a history's, and the raw ones that an agent's answer leaves for later turns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from codex_proxy.agents.shared.conversions import custom_arguments, message_for_agent
from codex_proxy.core.events import RawItem, ToolCallRequested
from codex_proxy.core.items import (
    DetailOf,
    HistoryCall,
    HistoryMessage,
    HistoryOutput,
    Part,
    content_of,
    output_content,
)
from codex_proxy.core.json_values import encode_json


def raw_message(id: str, text: str) -> RawItem:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": id, "role": "assistant", "content": content}
    return RawItem("message", encode_json(message))


def raw_call(call: ToolCallRequested) -> RawItem:
    kind, field = ("function_call", "arguments") if call.kind == "function" else ("custom_tool_call", "input")
    ids = {"id": call.call_id, "call_id": call.call_id}
    return RawItem(kind, encode_json({"type": kind, **ids, "name": call.name, field: call.arguments}))


def raw_output(call_id: str, parts: Sequence[Part]) -> RawItem:
    item = {"type": "function_call_output", "call_id": call_id, "output": output_content(parts)}
    return RawItem("function_call_output", encode_json(item))


def history_item(
    item: HistoryMessage | HistoryCall | HistoryOutput,
    *,
    detail_of: DetailOf,
    name_of: Callable[[str], str] = str,
    as_function: bool = True,
) -> dict[str, Any]:
    """Converts an item of a history. `detail_of` and `name_of` return what the agent gets for an image's detail and a
    tool's name. `as_function`: custom tools are functions for the agent.
    """
    if isinstance(item, HistoryMessage):
        text_type = "output_text" if item.role == "assistant" else "input_text"
        told = message_for_agent(item, lambda name: f"`{name_of(name)}`")
        content = content_of(told.parts, text_type, detail_of)
        message = {"type": "message", "role": item.role, "content": content}
        return message | ({"phase": item.phase} if item.phase else {})
    custom = item.kind == "custom" and not as_function
    if isinstance(item, HistoryOutput):
        kind = "custom_tool_call_output" if custom else "function_call_output"
        return {"type": kind, "call_id": item.call_id, "output": output_content(item.parts, detail_of)}
    ids = {"call_id": item.call_id, "name": name_of(item.name)}
    if custom:
        return {"type": "custom_tool_call", **ids, "input": item.arguments}
    arguments = item.arguments if item.kind == "function" else custom_arguments(item.arguments)
    return {"type": "function_call", **ids, "arguments": arguments}
