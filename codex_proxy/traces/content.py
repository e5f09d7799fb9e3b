"""What a turn says, as JSON by OpenTelemetry's conventions for generative AI; only for spans with content."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from codex_proxy.core.events import Event
from codex_proxy.core.item_texts import ItemTexts
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    Item,
    McpCall,
    Message,
    Part,
    Reasoning,
    TextPart,
    ToolCall,
    texts_of,
)
from codex_proxy.core.turn import Turn


class TurnContent:
    def __init__(self, turn: Turn) -> None:
        self._history = turn.history
        self._said = ItemTexts()

    def add(self, events: Sequence[Event]) -> None:
        self._said.add(events)

    def tool_attributes(self, id: str) -> dict[str, str]:
        """Returns the attributes of a tool's span; `id`: the id of the tool call or of its item."""
        item = next(
            (each for each in self._said.items.values() if id in (each.id, getattr(each, "call_id", ""))),
            None,
        )
        if item is None:
            return {}
        arguments, output = self._said.text(item.id), self._said.output(item.id)
        found = {"gen_ai.tool.call.arguments": arguments, "gen_ai.tool.call.result": output}
        return {name: text for name, text in found.items() if text}

    def turn_attributes(self, stop: str) -> dict[str, str]:
        parts = [part for item in self._said.items.values() if (part := self._part(item)) is not None]
        said = [{"role": "assistant", "parts": parts, "finish_reason": stop}]
        asked = [message for item in self._history if (message := _message(item)) is not None]
        return {"gen_ai.input.messages": _json(asked), "gen_ai.output.messages": _json(said)}

    def _part(self, item: Item) -> dict[str, Any] | None:
        if isinstance(item, Message):
            return {"type": "text", "content": self._said.text(item.id)}
        if isinstance(item, Reasoning):
            return {"type": "reasoning", "content": self._said.text(item.id)}
        if isinstance(item, ToolCall | McpCall):
            return _call(item.call_id, item.name, self._said.text(item.id))
        return None


def _call(id: str, name: str, arguments: str) -> dict[str, Any]:
    return {"type": "tool_call", "id": id, "name": name, "arguments": arguments}


def _message(item: HistoryItem) -> dict[str, Any] | None:
    if isinstance(item, HistoryMessage):
        role = "system" if item.role == "developer" else item.role
        return {"role": role, "parts": [_part(part) for part in item.parts]}
    if isinstance(item, HistoryCall):
        return {"role": "assistant", "parts": [_call(item.call_id, item.name, item.arguments)]}
    if isinstance(item, HistoryOutput):
        text = "".join(texts_of(item.parts))
        return {
            "role": "tool",
            "parts": [{"type": "tool_call_response", "id": item.call_id, "response": text}],
        }
    return None


def _part(part: Part) -> dict[str, Any]:
    return {"type": "text", "content": part.text} if isinstance(part, TextPart) else {"type": "image"}


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
