"""The forms of input items of the Responses API for servers that refuse the usual one: one system message in front,
custom tools as functions, images of outputs in a user message, texts without parts, no reasoning of another provider,
no two user messages in a row, instructions as user messages. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import msgspec

from codex_proxy.agents.shared.conversions import custom_arguments
from codex_proxy.core.json_values import objects_in, text_at
from codex_proxy.parts.upstream.forms import ALTERNATING, SYSTEM_ROLE

Item = Any
"""An item as JSON, decoded or not."""
IMAGE_BELOW: Final = "[image: see the next message]"
CUSTOM: Final = "custom_tools"
_SYSTEM_ROLES: Final = frozenset({"system", "developer"})
_OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
_SYSTEM_LABEL: Final = ({"type": "input_text", "text": "[system]"},)
_TEXTS: Final = frozenset({"input_text", "output_text"})


def with_forms(items: Sequence[Item], forms: Collection[str]) -> list[Item]:
    """Returns the items in these forms, of which others than `ITEM_FORMS` are ignored."""
    convert = [each for name, each in ITEM_FORMS.items() if name in forms]
    if not convert:
        return list(items)
    told = [msgspec.json.decode(item) if isinstance(item, msgspec.Raw) else item for item in items]
    for each in convert:
        told = list(each(told))
    return told


def _one_system_message(items: Sequence[Item]) -> Sequence[Item]:
    system = [item for item in items if item.get("role") in _SYSTEM_ROLES]
    if not system:
        return items
    texts = (_text_of(item.get("content")) for item in system)
    content = [{"type": "input_text", "text": "\n\n".join(filter(None, texts))}]
    front = {"type": "message", "role": system[0]["role"], "content": content}
    return [front, *(item for item in items if item.get("role") not in _SYSTEM_ROLES)]


def _as_system(items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        yield {**item, "role": "system"} if item.get("role") == "developer" else item


def _as_functions(items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        if item.get("type") == "custom_tool_call":
            ids = {name: item[name] for name in ("call_id", "name") if name in item}
            arguments = custom_arguments(text_at(item, "input"))
            yield {"type": "function_call", **ids, "arguments": arguments}
        elif item.get("type") == "custom_tool_call_output":
            yield {**item, "type": "function_call_output"}
        else:
            yield item


def _images_behind(items: Sequence[Item]) -> Iterator[Item]:
    """Yields the items, outputs as text, and behind each group of them a user message with its images."""
    images: list[Any] = []
    for item in items:
        is_output = item.get("type") in _OUTPUTS
        if images and not is_output:
            yield {"type": "message", "role": "user", "content": images}
            images = []
        parts = item.get("output")
        if is_output and isinstance(parts, list):
            images += [part for part in objects_in(parts) if part.get("type") not in _TEXTS]
            texts = (text_at(part, "text") or IMAGE_BELOW for part in objects_in(parts))
            item = {**item, "output": "\n".join(texts)}
        yield item
    if images:
        yield {"type": "message", "role": "user", "content": images}


def _without_reasoning(items: Iterable[Item]) -> Iterator[Item]:
    return (item for item in items if item.get("type") != "reasoning")


def _without_phases(items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        yield {name: value for name, value in item.items() if name != "phase"}


def _without_parts(items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        parts = item.get("content") if item.get("role") else None
        is_text = isinstance(parts, list) and all(part.get("type") in _TEXTS for part in objects_in(parts))
        yield {**item, "content": _text_of(parts)} if is_text else item


def _system_as_user(items: Iterable[Item]) -> Iterator[Item]:
    for item in items:
        is_system = item.get("role") in _SYSTEM_ROLES
        yield _user_message([*_SYSTEM_LABEL, *_parts_of(item["content"])]) if is_system else item


def _alternating(items: Iterable[Item]) -> Iterator[Item]:
    """Yields the items, messages of the user that follow each other as one."""
    for joins, grouped in groupby(items, _is_of_user):
        group = list(grouped)
        if joins and len(group) > 1:
            yield _user_message([part for item in group for part in _parts_of(item["content"])])
        else:
            yield from group


def _is_of_user(item: Item) -> bool:
    return item.get("role") == "user" and isinstance(item.get("content"), str | list)


def _user_message(content: list[Any]) -> Item:
    return {"type": "message", "role": "user", "content": content}


def _parts_of(content: Any) -> Sequence[Any]:
    return [{"type": "input_text", "text": content}] if isinstance(content, str) else content


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n\n".join(text_at(part, "text") for part in objects_in(content))


ITEM_FORMS: Final[Mapping[str, Callable[[Sequence[Item]], Iterable[Item]]]] = {
    "system_messages": _one_system_message,
    CUSTOM: _as_functions,
    "tool_images": _images_behind,
    "reasoning": _without_reasoning,
    "phases": _without_phases,
    "developer_role": _as_system,
    SYSTEM_ROLE: _system_as_user,
    ALTERNATING: _alternating,
    "parts": _without_parts,
}
