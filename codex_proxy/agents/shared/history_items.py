"""A history as an agent gets it, and what an answer leaves for later turns: items of the Responses API, marks on
encrypted content with the name of the agent that made it (another provider refuses it), and, for an agent with
a single prompt, one text with every message's speaker.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.shared.conversions import custom_arguments, message_for_agent
from codex_proxy.core.events import Event, RawItem, ToolCallRequested
from codex_proxy.core.items import (
    PROVIDER_FIELDS,
    DetailOf,
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    TextPart,
    content_of,
    output_content,
    texts_of,
)
from codex_proxy.core.json_values import UNREADABLE, encode_json


def raw_message(id: str, text: str) -> RawItem:
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message = {"type": "message", "id": id, "role": "assistant", "content": content}
    return RawItem("message", encode_json(message))


def raw_call(call: ToolCallRequested) -> RawItem:
    kind, field = ("function_call", "arguments") if call.kind == "function" else ("custom_tool_call", "input")
    ids = {"id": call.call_id, "call_id": call.call_id}
    item = {"type": kind, **ids, "name": call.name, field: call.arguments}
    return RawItem(
        kind, encode_json(item | ({PROVIDER_FIELDS: own} if (own := call.provider_fields) else {}))
    )


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


ENCRYPTED: Final = frozenset({"reasoning", "compaction"})
_FIELD: Final = "encrypted_content"


class _Head(msgspec.Struct, frozen=True):
    type: str = ""
    encrypted_content: Any = None


class OriginMarks:
    """Adds an agent's mark (its name and a colon) to encrypted content, and removes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._mark = f"{name}:"

    def mark(self, events: list[Event]) -> list[Event]:
        return [
            RawItem(event.type, self._mark_item(event.json))
            if type(event) is RawItem and event.type in ENCRYPTED
            else event
            for event in events
        ]

    def unmark(self, history: Sequence[HistoryItem]) -> tuple[HistoryItem, ...]:
        kept = (self._unmark_item(item) if isinstance(item, RawHistoryItem) else item for item in history)
        return tuple(item for item in kept if item is not None)

    def _mark_item(self, raw: bytes) -> bytes:
        text = _encrypted_content(raw)
        return raw if text is None else _with_content(raw, self._mark + text)

    def _unmark_item(self, item: RawHistoryItem) -> RawHistoryItem | None:
        text = _encrypted_content(item.json)
        if text is None:
            return item
        if not text.startswith(self._mark):
            return None
        return RawHistoryItem(_with_content(item.json, text.removeprefix(self._mark)))


def _encrypted_content(raw: bytes) -> str | None:
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except UNREADABLE:
        return None
    text = head.encrypted_content
    return text if head.type in ENCRYPTED and isinstance(text, str) and text else None


def _with_content(raw: bytes, text: str) -> bytes:
    value = json.loads(raw)
    value[_FIELD] = text
    return json.dumps(value, separators=(",", ":")).encode()  # half of a surrogate pair stays an escape


PREAMBLE = "This is the conversation so far, oldest message first. Answer its last message."

_ROLES = {"developer": "system", "user": "user", "assistant": "assistant"}


def prompt_of(history: Sequence[HistoryItem]) -> tuple[str, list[ImagePart]]:
    """Returns a history's prompt and images. A single user message with text stays as it is; others: see `flatten`."""
    first = history[0] if len(history) == 1 else None
    if isinstance(first, HistoryMessage) and first.role == "user":
        text = "\n".join(texts_of(first.parts))
        if text.strip():
            return text, [part for part in first.parts if isinstance(part, ImagePart)]
    return flatten(history)


def instructions_as_user_messages(history: Iterable[HistoryItem]) -> tuple[HistoryItem, ...]:
    """Makes instructions messages of the user, for a model without a system prompt."""
    return tuple(_as_user_message(item) for item in history)


def _as_user_message(item: HistoryItem) -> HistoryItem:
    if not isinstance(item, HistoryMessage) or item.role != "developer":
        return item
    texts = texts_of(item.parts)
    return HistoryMessage("user", (TextPart("\n".join((f"[{_ROLES[item.role]}]", *texts))),))


def flatten(history: Sequence[HistoryItem]) -> tuple[str, list[ImagePart]]:
    images: list[ImagePart] = []
    blocks = [PREAMBLE]
    blocks += [_block(item, images) for item in history if not isinstance(item, RawHistoryItem)]
    return "\n\n".join(blocks), images


def _block(item: HistoryMessage | HistoryCall | HistoryOutput, images: list[ImagePart]) -> str:
    if isinstance(item, HistoryMessage):
        return f"[{_ROLES[item.role]}]\n{_number_images(item.parts, images)}"
    if isinstance(item, HistoryCall):
        return f"[assistant calls tool {item.name}, {item.call_id}]\n{item.arguments}"
    return f"[tool output, {item.call_id}]\n{_number_images(item.parts, images)}"


def _number_images(parts: Iterable[Part], images: list[ImagePart]) -> str:
    words = []
    for part in parts:
        if isinstance(part, TextPart):
            words.append(part.text)
        else:
            images.append(part)
            words.append(f"[image {len(images)}]")
    return "\n".join(words)
