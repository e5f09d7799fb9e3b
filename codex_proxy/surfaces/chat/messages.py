"""Converts chat messages to history, oldest first: system messages become the developer's, tool and function messages
outputs, in the order of their calls. Raises `Fault` INVALID_REQUEST for calls and outputs that do not match, and parts
that no agent accepts. Source: docs/contract.md#messages-and-parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Any, Final

import msgspec

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    Part,
    TextPart,
    provider_fields,
)
from codex_proxy.core.media import PdfTexts
from codex_proxy.surfaces.chat import wire
from codex_proxy.surfaces.requests.body import unsupported_value
from codex_proxy.surfaces.requests.fields import known_kinds
from codex_proxy.surfaces.requests.files import file_text, image_part
from codex_proxy.surfaces.requests.options import HistoryWithCalls

_ATTACHMENTS: Final = (wire.AudioPart, wire.FilePart, wire.OtherPart)


def history_of(
    messages: Iterable[wire.AnyMessage],
    pdfs: PdfTexts | None = None,
    originals: Sequence[msgspec.Raw] | None = None,
) -> tuple[HistoryItem, ...]:
    """Returns the history. `originals`: the messages as raw JSON, for an agent that takes audio, files, unknown parts
    and unknown fields of calls.
    """
    history = _History(pdfs, originals)
    for index, message in enumerate(messages):
        history.read(message, index)
    history.finish_calls()
    return tuple(history.items)


def web_images(messages: Iterable[wire.AnyMessage]) -> dict[str, str]:
    """Returns the web addresses of images, each with the first field that has it."""
    found: dict[str, str] = {}
    for index, message in enumerate(messages):
        parts = message.content if isinstance(message, wire.UserMessage | wire.ToolMessage) else None
        for number, part in enumerate(parts if isinstance(parts, list) else ()):
            if isinstance(part, wire.ImagePart) and part.image_url.url.strip()[:5].lower() != "data:":
                param = f"messages[{index}].content[{number}].image_url.url"
                found.setdefault(part.image_url.url.strip(), param)
    return found


def has_instructions(messages: Iterable[wire.AnyMessage]) -> bool:
    return wire.InstructionMessage in map(type, messages)


def has_calls(messages: Iterable[wire.AnyMessage]) -> bool:
    for message in messages:
        if isinstance(message, wire.ToolMessage | wire.FunctionMessage):
            return True
        if isinstance(message, wire.AssistantMessage) and (message.tool_calls or message.function_call):
            return True
    return False


class _History(HistoryWithCalls):
    def __init__(self, pdfs: PdfTexts | None, originals: Sequence[msgspec.Raw] | None) -> None:
        super().__init__()
        self._pdfs = pdfs
        self._originals = originals
        self._legacy = False
        self._param = ""

    def read(self, message: wire.AnyMessage, index: int) -> None:
        param = f"messages[{index}]"
        if isinstance(message, wire.ToolMessage):
            self._add_tool_output(message, param)
            return
        if isinstance(message, wire.FunctionMessage):
            self._add_function_output(message, param)
            return
        self.finish_calls()
        if isinstance(message, wire.InstructionMessage):
            self.add(HistoryMessage("developer", _with_name(message.name, _text_parts(message.content))))
        elif isinstance(message, wire.UserMessage):
            self.add(self._user(message, index, f"{param}.content"))
        else:
            self._add_assistant(message, index, param)

    def _user(self, message: wire.UserMessage, index: int, param: str) -> HistoryMessage:
        content = message.content
        if self._originals is None or not _has_attachments(content):
            return HistoryMessage("user", _with_name(message.name, _shown_parts(content, param, self._pdfs)))
        known = [part for part in content if not isinstance(part, _ATTACHMENTS)]
        parts = tuple(_shown_part(part, param, None) for part in known if not isinstance(part, str))
        return HistoryMessage("user", parts, chat_message=bytes(self._originals[index]))

    def finish_calls(self, missing: str = "") -> None:
        if not self.calls:
            return
        unanswered = [call.call_id for call in self.unanswered]
        if unanswered and self._legacy:
            raise bad_request(
                "An assistant message with 'function_call' must be followed by a message with role "
                "'function' that answers it.",
                f"{self._param}.function_call",
            )
        if unanswered:
            raise bad_request(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                "'tool_call_id'. The following tool_call_ids did not have response messages: "
                + ", ".join(unanswered),
                f"{self._param}.tool_calls",
            )
        super().finish_calls()

    # --- what the assistant said ----------------------------------------------------------------

    def _add_assistant(self, message: wire.AssistantMessage, index: int, param: str) -> None:
        if message.audio is not None:
            raise bad_request("The agent does not accept audio. Send text or a refusal.", f"{param}.audio")
        if message.tool_calls and message.function_call is not None:
            raise bad_request(
                "A message has either 'tool_calls' or 'function_call', not both.", f"{param}.function_call"
            )
        parts = _assistant_parts(message, f"{param}.content")
        if parts:
            self.add(HistoryMessage("assistant", parts))
        self._param = param
        self._legacy = message.function_call is not None
        if message.function_call is not None:
            # Deterministic, so that the same history is the same history on every request.
            call = message.function_call
            self._call(HistoryCall(f"call_legacy_{index}", call.name, call.arguments), param)
        if not message.tool_calls:
            return
        if self._originals is None:
            own: Iterable[str] = repeat("")
        else:
            own = map(provider_fields, _ORIGINAL.decode(self._originals[index]).tool_calls)
        for position, (tool_call, fields) in enumerate(zip(message.tool_calls, own, strict=False)):
            self._call(_past_call(tool_call, fields), f"{param}.tool_calls[{position}].id")

    def _call(self, call: HistoryCall, param: str) -> None:
        if call.call_id in self.calls:
            raise bad_request(f"Duplicate value for 'tool_call_id' of '{call.call_id}'.", param)
        self.add_call(call)

    # --- what its tools answered ----------------------------------------------------------------

    def _add_tool_output(self, message: wire.ToolMessage, param: str) -> None:
        call_id = message.tool_call_id
        if not self.calls or self._legacy:
            raise bad_request(
                "Invalid parameter: messages with role 'tool' must be a response to a preceding message "
                "with 'tool_calls'.",
                f"{param}.role",
            )
        if call_id not in self.calls:
            raise bad_request(
                f"No tool call with id '{call_id}' in the preceding message with 'tool_calls'.",
                f"{param}.tool_call_id",
            )
        parts = _shown_parts(message.content, f"{param}.content", self._pdfs)
        self._add_output(call_id, parts, f"{param}.tool_call_id")

    def _add_function_output(self, message: wire.FunctionMessage, param: str) -> None:
        if not self.calls or not self._legacy:
            raise bad_request(
                "Invalid parameter: messages with role 'function' must be a response to a preceding message "
                "with 'function_call'.",
                f"{param}.role",
            )
        call = next(iter(self.calls.values()))
        if call.name != message.name:
            raise bad_request(
                f"This message must answer the call of function '{call.name}'.", f"{param}.name"
            )
        self._add_output(call.call_id, (TextPart(message.content or ""),), f"{param}.role")

    def _add_output(self, call_id: str, parts: tuple[Part, ...], param: str) -> None:
        if call_id in self.outputs:
            raise bad_request(f"The call '{call_id}' is answered twice.", param)
        self.outputs[call_id] = HistoryOutput(call_id, parts, self.calls[call_id].kind)


class _Original(msgspec.Struct):
    """An assistant's message with calls, as the client wrote it."""

    tool_calls: list[dict[str, msgspec.Raw]]


_ORIGINAL: Final = msgspec.json.Decoder(_Original)


def _past_call(call: wire.HistoryToolCall, fields: str) -> HistoryCall:
    if isinstance(call, wire.CustomCall):
        return HistoryCall(call.id, call.custom.name, call.custom.input, "custom", provider_fields=fields)
    return HistoryCall(call.id, call.function.name, call.function.arguments, provider_fields=fields)


def _text_parts(content: wire.TextContent) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(TextPart(part.text) for part in content)


def _with_name(name: str | None, parts: tuple[Part, ...]) -> tuple[Part, ...]:
    if not name:
        return parts
    # Agents have no field for the name.
    first, *others = parts
    if isinstance(first, TextPart):
        return (TextPart(f"{name}: {first.text}"), *others)
    return (TextPart(f"{name}:"), *parts)


def _assistant_parts(message: wire.AssistantMessage, param: str) -> tuple[Part, ...]:
    content = message.content or ()
    if isinstance(content, str):
        texts = [content]
    else:
        texts = [_assistant_text(part, f"{param}[{index}]") for index, part in enumerate(content)]
    texts.append(message.refusal or "")
    return tuple(TextPart(text) for text in texts if text)


def _assistant_text(part: wire.AssistantPart, param: str) -> str:
    if isinstance(part, wire.OtherPart):
        raise _unknown_part(part, wire.AssistantPart, param)
    return part.text if isinstance(part, wire.TextPart) else part.refusal


def _unknown_part(part: wire.OtherPart, union: Any, param: str) -> Fault:
    return unsupported_value(f"{param}.type", part.type, known_kinds(union))


def _shown_parts(content: wire.ShownContent, param: str, pdfs: PdfTexts | None) -> tuple[Part, ...]:
    if isinstance(content, str):
        return (TextPart(content),)
    return tuple(_shown_part(part, f"{param}[{index}]", pdfs) for index, part in enumerate(content))


def _has_attachments(content: wire.ShownContent) -> bool:
    return not isinstance(content, str) and any(isinstance(part, _ATTACHMENTS) for part in content)


def _shown_part(part: wire.ShownPart, param: str, pdfs: PdfTexts | None) -> Part:
    if isinstance(part, wire.TextPart):
        return TextPart(part.text)
    if isinstance(part, wire.OtherPart):
        raise _unknown_part(part, wire.ShownPart, param)
    if isinstance(part, wire.AudioPart):
        raise bad_request(
            f"The agent does not accept parts of type '{part.type}'. Send 'text', 'image_url' or 'file'.",
            param,
        )
    if isinstance(part, wire.FilePart):
        given = part.file
        return TextPart(
            file_text(f"{param}.file", name=given.filename, data=given.file_data, id=given.file_id, pdfs=pdfs)
        )
    return image_part(part.image_url.url, part.image_url.detail, f"{param}.image_url.url")
