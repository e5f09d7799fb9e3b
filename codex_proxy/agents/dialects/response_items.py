"""Writes raw items of the Responses API, which an agent's answer leaves for later turns."""

from __future__ import annotations

from collections.abc import Sequence

from codex_proxy.agents.dialects.loose_values import encode
from codex_proxy.core.events import RawItem, ToolCallRequested
from codex_proxy.core.items import Part, output_content


def raw_message(id: str, text: str) -> RawItem:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": id, "role": "assistant", "content": content}
    return RawItem("message", encode(message))


def raw_call(call: ToolCallRequested) -> RawItem:
    kind, field = ("function_call", "arguments") if call.kind == "function" else ("custom_tool_call", "input")
    ids = {"id": call.call_id, "call_id": call.call_id}
    return RawItem(kind, encode({"type": kind, **ids, "name": call.name, field: call.arguments}))


def raw_output(call_id: str, parts: Sequence[Part]) -> RawItem:
    item = {"type": "function_call_output", "call_id": call_id, "output": output_content(parts)}
    return RawItem("function_call_output", encode(item))


def text_type_of(role: str) -> str:
    return "output_text" if role == "assistant" else "input_text"
