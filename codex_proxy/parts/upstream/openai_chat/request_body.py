"""Converts a turn to the body of `/chat/completions`: outputs directly follow their calls, reasoning is left out unless
the upstream names a field for it, custom tools are functions with one string. And the other forms of messages for
servers that refuse these: one system message in front, texts without parts, images of tool outputs in a user message,
no names, nulls or reasoning, no two user messages in a row, instructions as user messages. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from codex_proxy.agents.shared.conversions import (
    NamedSchema,
    custom_arguments,
    function_parameters,
    items_of,
    reasoning_text,
    schema_words,
)
from codex_proxy.agents.shared.tool_schemas import plain_parameters
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    RawHistoryItem,
    TextPart,
    Tool,
    texts_of,
)
from codex_proxy.core.json_values import allows_only_objects, encode_json, objects_in, text_at
from codex_proxy.core.turn import Turn
from codex_proxy.parts.upstream.turn import (
    ALTERNATING,
    NAMED_TOOL,
    OPTION_FORMS,
    SYSTEM_ROLE,
    TOOL_SCHEMAS,
    Forms,
    option_fields,
    schema_in_words,
    text_of,
)

IMAGE_BELOW: Final = "[image: see the next message]"
"""Replaces an image in a tool's output, which may only be text; the next user message has it."""
_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_REASONING: Final = frozenset({"reasoning", "reasoning_content", "reasoning_details"})

Message = Mapping[str, Any]


def with_forms(messages: Sequence[Message], forms: Collection[str]) -> list[Message]:
    """Returns the messages in these forms, of which others than `MESSAGE_FORMS` are ignored."""
    told = list(messages)
    for name, convert in MESSAGE_FORMS.items():
        if name in forms:
            told = list(convert(told))
    return told


def _one_system_message(messages: Sequence[Message]) -> list[Message]:
    system = [message for message in messages if message.get("role") in _SYSTEM_ROLES]
    others = [message for message in messages if message.get("role") not in _SYSTEM_ROLES]
    if not system:
        return others
    texts = (text_of(message.get("content")) for message in system)
    return [{"role": "system", "content": "\n\n".join(filter(None, texts))}, *others]


def _images_behind(messages: Sequence[Message]) -> Iterator[Message]:
    """Yields the messages, those of tools as text, and behind each group of them a user message with its images."""
    images: list[Any] = []
    for message in messages:
        is_output = message.get("role") == "tool"
        if images and not is_output:
            yield {"role": "user", "content": images}
            images = []
        parts = message.get("content")
        if is_output and isinstance(parts, list) and not _is_text(parts):
            images += [part for part in objects_in(parts) if part.get("type") != "text"]
            texts = (text_at(part, "text") or IMAGE_BELOW for part in objects_in(parts))
            message = {**message, "content": "\n".join(texts)}
        yield message
    if images:
        yield {"role": "user", "content": images}


def _without_parts(messages: Iterable[Message]) -> Iterator[Message]:
    for message in messages:
        parts = message.get("content")
        yield (
            {**message, "content": text_of(parts)} if isinstance(parts, list) and _is_text(parts) else message
        )


def _without_names(messages: Iterable[Message]) -> Iterator[Message]:
    for message in messages:
        yield {name: value for name, value in message.items() if name != "name"}


def _without_nulls(messages: Iterable[Message]) -> Iterator[Message]:
    for message in messages:
        kept = {name: value for name, value in message.items() if value is not None and value != []}
        yield {"content": "", **kept} if message.get("role") == "assistant" else kept


def _without_reasoning(messages: Iterable[Message]) -> Iterator[Message]:
    for message in messages:
        yield {name: value for name, value in message.items() if name not in _REASONING}


def _system_as_user(messages: Iterable[Message]) -> Iterator[Message]:
    for message in messages:
        is_system = message.get("role") in _SYSTEM_ROLES
        yield (
            {"role": "user", "content": f"[system]\n{text_of(message.get('content'))}"}
            if is_system
            else message
        )


def _alternating(messages: Iterable[Message]) -> Iterator[Message]:
    """Yields the messages, those of the user that follow each other as one."""
    for joins, group in groupby(messages, _can_be_joined):
        if joins:
            yield {"role": "user", "content": _joined([message["content"] for message in group])}
        else:
            yield from group


def _can_be_joined(message: Message) -> bool:
    plain = message.get("role") == "user" and message.keys() == {"role", "content"}
    return plain and isinstance(message["content"], str | list)


def _joined(contents: Sequence[Any]) -> Any:
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(contents)
    return [part for content in contents for part in _parts_of(content)]


def _parts_of(content: Any) -> Sequence[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _is_text(parts: Sequence[Any]) -> bool:
    return all(isinstance(part, dict) and part.get("type") == "text" for part in parts)


MESSAGE_FORMS: Final[Mapping[str, Callable[[Sequence[Message]], Iterable[Message]]]] = {
    "system_messages": _one_system_message,
    "tool_images": _images_behind,
    "parts": _without_parts,
    "reasoning": _without_reasoning,
    "names": _without_names,
    "nulls": _without_nulls,
    SYSTEM_ROLE: _system_as_user,
    ALTERNATING: _alternating,
}


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
        entry = {"id": call.call_id, "type": "function", "function": function}
        if call.provider_fields:
            entry = {**msgspec.json.decode(call.provider_fields, type=dict[str, Any]), **entry}
        last.message["tool_calls"].append(entry)
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


OPTIONAL: Final[Mapping[str, int]] = {
    **dict.fromkeys((*MESSAGE_FORMS, TOOL_SCHEMAS), 0),
    **dict.fromkeys(("json_schema", "json_object", "strict", NAMED_TOOL), 1),
    **dict.fromkeys(("parallel_tool_calls", "max_tokens", "tool_choice"), 2),
    "stream_options": 3,
    **dict.fromkeys((*OPTION_FORMS, SYSTEM_ROLE), 4),
}
"""The forms that an upstream may refuse, with their ranks for `tries_of`: the lower, the less is lost and the more
often it is refused. `max_tokens` is renamed, `json_schema` said in words; fields are left out.
"""


def request_body(turn: Turn, model: str, messages: Sequence[Message], refused: Forms = frozenset()) -> bytes:
    return encode_json(request_fields(turn, model, messages, refused))


def request_fields(turn: Turn, model: str, messages: Sequence[Message], refused: Forms) -> dict[str, Any]:
    """Returns the fields of the body. `refused`: the forms that the upstream refuses."""
    told = [*messages, _schema_words(turn)] if schema_in_words(turn, refused) else messages
    body: dict[str, Any] = {**turn.passed_fields, "model": model, "messages": with_forms(told, refused)}
    body["stream"] = True
    if "stream_options" not in refused:
        body["stream_options"] = {"include_usage": True}  # without it most servers tell no usage
    body |= turn.sampling
    body |= _answer_fields(turn, refused)
    body |= _tool_fields(turn, refused)
    return body


def _answer_fields(turn: Turn, refused: Forms) -> dict[str, Any]:
    fields = option_fields(turn, "chat", refused)
    if turn.stop and not turn.reports_stop:
        fields["stop"] = list(turn.stop)
    if turn.max_tokens is not None:
        # The old name is the one that all servers know; OpenAI's newer models take the new one only.
        name = "max_completion_tokens" if "max_tokens" in refused else "max_tokens"
        fields[name] = turn.max_tokens
    if turn.output_schema is not None and not schema_in_words(turn, refused):
        name = msgspec.json.decode(turn.output_schema, type=NamedSchema).title
        schema = {"name": name, "strict": True, "schema": turn.output_schema}
        if "strict" in refused:
            del schema["strict"]
        fields["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif "json_object" not in refused and _wants_object(turn):
        fields["response_format"] = {"type": "json_object"}
    return {name: value for name, value in fields.items() if name not in refused}


def _wants_object(turn: Turn) -> bool:
    if turn.output_schema is None:
        return turn.json_object
    return allows_only_objects(turn.output_schema)


def _schema_words(turn: Turn) -> dict[str, Any]:
    assert turn.output_schema is not None
    return {"role": "system", "content": schema_words(turn.output_schema)}


def _tool_fields(turn: Turn, refused: Forms) -> dict[str, Any]:
    if not turn.tools:
        return {}
    fields: dict[str, Any] = {"tools": [_function(tool, refused) for tool in turn.tools]}
    if turn.must_call and "tool_choice" not in refused:  # only those that may be called are in the turn
        named = {"type": "function", "function": {"name": turn.tools[0].name}}
        is_named = len(turn.tools) == 1 and NAMED_TOOL not in refused
        fields["tool_choice"] = named if is_named else "required"
    if not turn.parallel_tool_calls and "parallel_tool_calls" not in refused:
        fields["parallel_tool_calls"] = False
    return fields


def _function(tool: Tool, refused: Forms) -> dict[str, Any]:
    parameters = plain_parameters(tool) if TOOL_SCHEMAS in refused else function_parameters(tool)
    function = {"name": tool.name, "description": tool.description, "parameters": parameters}
    if not tool.description:
        del function["description"]
    if tool.strict and "strict" not in refused and tool.kind == "function":
        function["strict"] = True
    return {"type": "function", "function": function}
