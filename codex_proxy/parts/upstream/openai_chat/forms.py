"""The forms of Chat Completions messages for servers that refuse the usual one: one system message in front, texts
without parts, images of tool outputs in a user message, no names, nulls or reasoning, no two user messages in a row,
instructions as user messages. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

from codex_proxy.core.json_values import objects_in, text_at
from codex_proxy.parts.upstream.forms import ALTERNATING, SYSTEM_ROLE

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
    texts = (_text_of(message.get("content")) for message in system)
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
            {**message, "content": _text_of(parts)}
            if isinstance(parts, list) and _is_text(parts)
            else message
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
            {"role": "user", "content": f"[system]\n{_text_of(message.get('content'))}"}
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


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(text_at(part, "text") for part in objects_in(content))


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
