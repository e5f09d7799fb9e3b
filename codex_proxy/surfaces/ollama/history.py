"""Converts Ollama's messages to history. Clients may leave out ids of calls. A call without an output gets a text that
says so; an output without a call becomes the user's. Raises `Fault` INVALID_REQUEST for an unreadable image. Source:
docs/ollama.md#fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryMessage, HistoryOutput, Part, TextPart
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.ollama import wire
from codex_proxy.surfaces.requests.files import image_part
from codex_proxy.surfaces.requests.tools import HistoryWithCalls, model_name

NO_OUTPUT: Final = "(This call has no output.)"
OUTPUT_WITHOUT_CALL: Final = "Output of {}, whose call is not in the conversation:\n{}"
_INSTRUCTING: Final = ("system", "developer")


def history_of(messages: Sequence[wire.ChatMessage]) -> tuple[HistoryItem, ...]:
    history = _History()
    for index, message in enumerate(messages):
        history.read(message, index)
    history.finish_calls(NO_OUTPUT)
    return tuple(history.items)


def message_parts(text: str | None, images: Sequence[str] | None, param: str) -> tuple[Part, ...]:
    """Returns the parts of a message. `param`: the path of the images."""
    texts = [TextPart(text)] if text else []
    return (*texts, *(_image(image, f"{param}[{index}]") for index, image in enumerate(images or ())))


def _image(data: str, param: str) -> Part:
    url = data if data[:5].lower() == "data:" else f"data:image/png;base64,{data}"
    return image_part(url, None, param)


def has_instructions(messages: Sequence[wire.ChatMessage]) -> bool:
    return any(message.role in _INSTRUCTING for message in messages)


def has_calls(messages: Sequence[wire.ChatMessage]) -> bool:
    return any(message.role == "tool" or message.tool_calls for message in messages)


class _History(HistoryWithCalls):
    def __init__(self) -> None:
        super().__init__()
        self._last_role = ""

    def read(self, message: wire.ChatMessage, index: int) -> None:
        if self._repeats_calls(message):  # before each output, as some clients do
            return
        # A client may send each chunk of a stream, and so each call, as a message.
        continues = message.role == self._last_role == "assistant"
        self._last_role = message.role
        parts = message_parts(message.content, message.images, f"messages[{index}].images")
        if message.role == "tool":
            self._add_output(message, parts)
            return
        if not continues:
            self.finish_calls(NO_OUTPUT)
        if message.role == "assistant":
            texts = tuple(part for part in parts if isinstance(part, TextPart))
            if texts:
                self.items.append(HistoryMessage("assistant", texts))
            for number, call in enumerate(message.tool_calls or ()):
                self._call(call, f"call_{index}_{number}")
        elif parts:
            self.items.append(HistoryMessage("user" if message.role == "user" else "developer", parts))

    def _repeats_calls(self, message: wire.ChatMessage) -> bool:
        """Whether the message has the calls that wait for further outputs once more."""
        given = message.tool_calls or ()
        if len(given) != len(self.calls) or not self.unanswered:
            return False
        return [_past_call(call, call.id or "") for call in given] == list(self.calls.values())

    def _call(self, call: wire.PastCall, made_id: str) -> None:
        call_id = call.id if call.id and call.id not in self.calls else made_id
        self.add_call(_past_call(call, call_id))

    def _add_output(self, message: wire.ChatMessage, parts: tuple[Part, ...]) -> None:
        call_id = self._find_call(message)
        if call_id is not None:
            self.outputs[call_id] = HistoryOutput(call_id, parts or (TextPart(""),))
            return
        tool = f"the tool {message.tool_name}" if message.tool_name else "a tool"
        text = TextPart(OUTPUT_WITHOUT_CALL.format(tool, message.content or ""))
        images = (part for part in parts if not isinstance(part, TextPart))
        self.add(HistoryMessage("user", (text, *images)))

    def _find_call(self, message: wire.ChatMessage) -> str | None:
        waiting = self.unanswered
        if message.tool_call_id in self.calls and message.tool_call_id not in self.outputs:
            return message.tool_call_id
        if message.tool_name:
            wanted = model_name(message.tool_name)
            return next((call.call_id for call in waiting if call.name == wanted), None)
        return waiting[0].call_id if waiting else None


def _past_call(call: wire.PastCall, call_id: str) -> HistoryCall:
    arguments = json_bytes(call.function.arguments or {}).decode()
    return HistoryCall(call_id, model_name(call.function.name), arguments)
