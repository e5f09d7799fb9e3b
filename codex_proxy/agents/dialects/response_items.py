"""Writes items of the Responses API: the raw items that an agent's answer leaves for later turns, and the content of
messages and outputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from codex_proxy.agents.dialects.loose_values import encode
from codex_proxy.core.events import RawItem, ToolCallRequested
from codex_proxy.core.items import ImagePart, Part, TextPart, texts_of

DetailOf: TypeAlias = Callable[[ImagePart], str | None]


def raw_message(id: str, text: str) -> RawItem:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": id, "role": "assistant", "content": content}
    return RawItem("message", encode(message))


def raw_call(call: ToolCallRequested) -> RawItem:
    kind, field = ("function_call", "arguments") if call.kind == "function" else ("custom_tool_call", "input")
    ids = {"id": call.call_id, "call_id": call.call_id}
    return RawItem(kind, encode({"type": kind, **ids, "name": call.name, field: call.arguments}))


def raw_output(call_id: str, parts: Sequence[Part]) -> RawItem:
    item = {"type": "function_call_output", "call_id": call_id, "output": output_of(parts)}
    return RawItem("function_call_output", encode(item))


def output_of(parts: Sequence[Part], detail_of: DetailOf = lambda image: image.detail) -> Any:
    """Returns an output as a string if it is at most one text, else as content parts."""
    if len(parts) <= 1 and all(isinstance(part, TextPart) for part in parts):
        return "".join(texts_of(parts))
    return content_of(parts, "input_text", detail_of)


def content_of(
    parts: Iterable[Part], text_type: str, detail_of: DetailOf = lambda image: image.detail
) -> list[dict[str, Any]]:
    return [
        {"type": text_type, "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "input_image", "image_url": part.url, "detail": detail_of(part)}
        for part in parts
    ]


def text_type_of(role: str) -> str:
    return "output_text" if role == "assistant" else "input_text"
