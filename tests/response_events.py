"""What model servers send that speak the Responses API."""

from __future__ import annotations

import json
from typing import Any

PARIS = '{"city":"Paris"}'
USAGE = {
    "input_tokens": 11,
    "input_tokens_details": {"cached_tokens": 3},
    "output_tokens": 7,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 18,
}
THOUGHT = {
    "type": "reasoning",
    "id": "rs_1",
    "summary": [{"type": "summary_text", "text": "Hm."}],
    "encrypted_content": "gAAA-sealed",
}
CALL_ITEM = {
    "type": "function_call",
    "id": "fc_1",
    "call_id": "call_a",
    "name": "get_weather",
    "arguments": PARIS,
    "status": "completed",
}


def message(text: str, kind: str = "output_text") -> dict[str, Any]:
    field = "text" if kind == "output_text" else "refusal"
    content = [{"type": kind, field: text}]
    return {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": content}


def event(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


def deltas_of(item: dict[str, Any], place: dict[str, Any]) -> bytes:
    """The events that tell what an item says."""
    at = {"item_id": item["id"], **place}
    if item["type"] == "reasoning":
        return b"".join(
            event("response.reasoning_summary_text.delta", summary_index=index, delta=part["text"], **at)
            for index, part in enumerate(item["summary"])
        )
    if item["type"] != "message":
        custom = item["type"] == "custom_tool_call"
        text = item["input" if custom else "arguments"]
        kind = "custom_tool_call_input" if custom else "function_call_arguments"
        pieces = (text[: len(text) // 2], text[len(text) // 2 :])
        return b"".join(event(f"response.{kind}.delta", delta=piece, **at) for piece in pieces)
    (part,) = item["content"]
    kind, text = ("output_text", part["text"]) if "text" in part else ("refusal", part["refusal"])
    half = len(text) // 2
    return b"".join(
        event(f"response.{kind}.delta", content_index=0, delta=piece, **at)
        for piece in (text[:half], text[half:])
    )


def response_with(
    *items: dict[str, Any], status: str = "completed", bare: bool = False, **more: Any
) -> bytes:
    """A whole stream. `bare`: as llama.cpp has it, without indexes and without the items in the last event."""
    out = [
        event("response.created", response={"id": "resp_1", "object": "response", "status": "in_progress"})
    ]
    for index, item in enumerate(items):
        place = {} if bare else {"output_index": index}
        begun = {**item, **({"content": []} if item["type"] == "message" else {})}
        out.append(event("response.output_item.added", item=begun, **place))
        out += (deltas_of(item, place), event("response.output_item.done", item=item, **place))
    response = {"id": "resp_1", "object": "response", "status": status, "usage": USAGE, **more}
    response["output"] = [] if bare else list(items)
    return b"".join([*out, event(f"response.{status}", response=response)])
