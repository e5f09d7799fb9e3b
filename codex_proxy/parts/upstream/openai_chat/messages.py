"""Converts a history to chat messages, in which outputs directly follow their calls. Reasoning is left out, unless the
upstream names a field for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.agents.shared.conversions import custom_arguments, items_of, reasoning_text
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    TextPart,
    texts_of,
)
from codex_proxy.parts.upstream.openai_chat.forms import IMAGE_BELOW

NO_OUTPUT: Final = "No output: the call was cut off before it was answered."
"""The output of a call without one, which servers refuse."""
_ROLES: Final = {"developer": "system", "user": "user", "assistant": "assistant"}
"""Roles by the history's: every server accepts `system`, only OpenAI's `developer`."""


class _Calls:
    """An assistant message with calls, and the outputs known so far."""

    def __init__(self, message: dict[str, Any]) -> None:
        self.message = message
        self.answered = False
        self._outputs: dict[str, HistoryOutput | None] = {}
        self._told: list[dict[str, Any]] | None = None
        """The messages of the outputs, which each request of a turn has again."""

    def put(self, call_id: str, output: HistoryOutput | None = None) -> None:
        """Adds a call, or its output."""
        self._outputs[call_id] = output
        self._told = None

    def outputs(self) -> list[dict[str, Any]]:
        if self._told is None:
            self._told = _outputs(self._outputs)
        return self._told


class ChatMessages:
    def __init__(self, history: Iterable[HistoryItem] = (), *, reasoning_back: str = "") -> None:
        """`reasoning_back`: the field in which reasoning is sent back with the calls that followed it, until the next
        user message.
        """
        self._reasoning_back = reasoning_back
        self._reasoning = ""
        """The reasoning before the next call."""
        self._entries: list[dict[str, Any] | _Calls] = []
        self._unanswered: dict[str, _Calls] = {}
        self.call_ids: set[str] = set()
        for item in history:
            self.add(item)

    def add(self, item: HistoryItem) -> None:
        """Adds an item. An output goes behind its call; without a call it becomes a user message."""
        if isinstance(item, RawHistoryItem):
            self._reasoning += reasoning_text(item.json) if self._reasoning_back else ""
            for each in items_of(item.json):
                self.add(each)
        elif isinstance(item, HistoryMessage):
            if item.role == "user":
                self._forget_reasoning()
            if item.parts or item.chat_message is not None:
                self._entries.append(_message(item))
        elif isinstance(item, HistoryCall):
            self._add_call(item)
        else:
            self._add_output(item)

    def messages(self) -> list[dict[str, Any]]:
        out: list[dict[str, Any]] = []
        for entry in self._entries:
            if isinstance(entry, _Calls):
                out.append(entry.message)
                out += entry.outputs()
            else:
                out.append(entry)
        return out

    def _add_call(self, call: HistoryCall) -> None:
        """Adds a call. Consecutive calls, and the text before them, form one message."""
        last = self._entries[-1] if self._entries else None
        if not isinstance(last, _Calls) or last.answered:
            if isinstance(last, dict) and last["role"] == "assistant":
                self._entries.pop()
                message = last
            else:
                message = {"role": "assistant", "content": None}
            if self._reasoning:
                message = {**message, self._reasoning_back: self._reasoning}
                self._reasoning = ""
            last = _Calls({**message, "tool_calls": []})
            self._entries.append(last)
        arguments = custom_arguments(call.arguments) if call.kind == "custom" else call.arguments
        function = {"name": call.name, "arguments": arguments or "{}"}
        last.message["tool_calls"].append({"id": call.call_id, "type": "function", "function": function})
        last.put(call.call_id)
        self.call_ids.add(call.call_id)
        self._unanswered[call.call_id] = last

    def _forget_reasoning(self) -> None:
        self._reasoning = ""
        if self._reasoning_back:
            for entry in self._entries:
                if isinstance(entry, _Calls):
                    entry.message.pop(self._reasoning_back, None)

    def _add_output(self, output: HistoryOutput) -> None:
        calls = self._unanswered.pop(output.call_id, None)
        if calls is not None:
            calls.put(output.call_id, output)
            calls.answered = True
            return
        said = TextPart(f"Output of the tool call {output.call_id}:")
        self._entries.append({"role": "user", "content": _content((said, *output.parts))})


def _outputs(outputs: Mapping[str, HistoryOutput | None]) -> list[dict[str, Any]]:
    """Returns a tool message for each output, then a user message with all images."""
    out: list[dict[str, Any]] = []
    images: list[ImagePart] = []
    for call_id, output in outputs.items():
        parts: Sequence[Part] = (TextPart(NO_OUTPUT),) if output is None else output.parts
        texts = [part.text if isinstance(part, TextPart) else IMAGE_BELOW for part in parts]
        images += [part for part in parts if isinstance(part, ImagePart)]
        out.append({"role": "tool", "tool_call_id": call_id, "content": "\n".join(texts)})
    if images:
        out.append({"role": "user", "content": _content(images)})
    return out


def _message(item: HistoryMessage) -> dict[str, Any]:
    if item.chat_message is not None:
        return msgspec.json.decode(item.chat_message, type=dict[str, Any])
    if item.role == "user":
        return {"role": "user", "content": _content(item.parts)}
    between = "" if item.role == "assistant" else "\n\n"
    text = between.join(texts_of(item.parts))
    return {"role": _ROLES[item.role], "content": text}


def _content(parts: Sequence[Part]) -> Any:
    if len(parts) == 1 and isinstance(parts[0], TextPart):
        return parts[0].text
    return [_part(part) for part in parts]


def _part(part: Part) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    image = {"url": part.url} if part.detail is None else {"url": part.url, "detail": part.detail}
    return {"type": "image_url", "image_url": image}
