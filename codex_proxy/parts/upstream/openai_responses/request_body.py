"""Converts a turn to the body of `/responses`: the upstream stores nothing, and gets its encrypted reasoning back.
And the other forms of input items for servers that refuse these: one system message in front, custom tools as
functions, images of outputs in a user message, texts without parts, no reasoning of another provider, no two user
messages in a row, instructions as user messages. Pure.
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
    schema_words,
)
from codex_proxy.agents.shared.history_items import history_item
from codex_proxy.agents.shared.tool_schemas import plain_parameters
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    RawHistoryItem,
    Tool,
)
from codex_proxy.core.json_values import objects_in, text_at
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
    texts = (text_of(item.get("content")) for item in system)
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
        yield {**item, "content": text_of(parts)} if is_text else item


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


OFFICIAL: Final = ("temperature", "top_p")
"""The sampling parameters of OpenAI's API; others are refused more often."""
_OPTIONAL: Final = {
    **dict.fromkeys(
        ("system_messages", CUSTOM, "tool_images", "reasoning", "phases", TOOL_SCHEMAS, ALTERNATING), 0
    ),
    **dict.fromkeys(("json_schema", "json_object", "strict", NAMED_TOOL), 1),
    **dict.fromkeys(("parallel_tool_calls", "tool_choice", "developer_role"), 2),
    **dict.fromkeys(("include", "store"), 3),
    **dict.fromkeys(("parts", "web_search", SYSTEM_ROLE, *OPTION_FORMS, *OFFICIAL), 4),
}


def optional_forms(turn: Turn) -> dict[str, int]:
    """Returns the forms that an upstream may refuse, with their ranks for `tries_of`: the lower, the less is lost and
    the more often it is refused.
    """
    return dict.fromkeys(turn.sampling, 0) | _OPTIONAL


def request_fields(turn: Turn, model: str, items: Sequence[Any], refused: Forms) -> dict[str, Any]:
    """Returns the fields of the body. `refused`: the forms that the upstream refuses."""
    if schema_in_words(turn, refused):
        items = [*items, _schema_words(turn)]
    options = option_fields(turn, "responses", refused)
    if "reasoning_effort" in refused:
        options.pop("reasoning", None)
    fields: dict[str, Any] = {
        "model": model,
        "input": with_forms(items, refused),
        "stream": True,
        "store": False,
        "include": ["reasoning.encrypted_content", *(turn.hosted.include if turn.hosted else ())],
        "max_output_tokens": turn.max_tokens,
        **options,
        "text": {**options.get("text", {}), **_format(turn, refused)} or None,
        **turn.sampling,
        **_tools(turn, refused),
    }
    left_out = refused - {"reasoning"}  # as a form these are items
    return {name: value for name, value in fields.items() if value is not None and name not in left_out}


def _format(turn: Turn, refused: Forms) -> dict[str, Any]:
    if turn.output_schema is not None and "json_schema" not in refused:
        name = msgspec.json.decode(turn.output_schema, type=NamedSchema).title
        strict = {} if "strict" in refused else {"strict": True}
        return {"format": {"type": "json_schema", "name": name, **strict, "schema": turn.output_schema}}
    if turn.json_object and "json_object" not in refused:
        return {"format": {"type": "json_object"}}
    return {}


def _schema_words(turn: Turn) -> dict[str, Any]:
    assert turn.output_schema is not None
    content = [{"type": "input_text", "text": schema_words(turn.output_schema)}]
    return {"type": "message", "role": "developer", "content": content}


def _tools(turn: Turn, refused: Forms) -> dict[str, Any]:
    tools: list[Any] = [_tool(tool, refused) for tool in turn.tools]
    if turn.web_search and "web_search" not in refused:
        tools.append({"type": "web_search"})
    hosted = turn.hosted.tools if turn.hosted is not None else {}
    for given in hosted.values():
        tools += given
    if not tools:
        return {}
    fields: dict[str, Any] = {"tools": tools, "parallel_tool_calls": turn.parallel_tool_calls}
    if turn.hosted is not None and turn.hosted.max_calls is not None:
        fields["max_tool_calls"] = turn.hosted.max_calls
    if turn.hosted is not None and turn.hosted.required:
        is_only = len(hosted) == 1 and not (turn.tools or turn.web_search or NAMED_TOOL in refused)
        fields["tool_choice"] = {"type": next(iter(hosted))} if is_only else "required"
    elif turn.must_call:
        # The turn has only tools that may be called.
        only = turn.tools[0] if len(turn.tools) == 1 and NAMED_TOOL not in refused else None
        kind = "function" if only is None or CUSTOM in refused else only.kind
        fields["tool_choice"] = "required" if only is None else {"type": kind, "name": only.name}
    return fields


def _tool(tool: Tool, refused: Forms) -> dict[str, Any]:
    told: dict[str, Any] = {"type": "function", "name": tool.name}
    if tool.description:
        told["description"] = tool.description
    if tool.kind == "custom" and CUSTOM not in refused:
        return told | {"type": "custom"}
    told["parameters"] = plain_parameters(tool) if TOOL_SCHEMAS in refused else function_parameters(tool)
    return told if "strict" in refused else told | {"strict": tool.strict and tool.kind == "function"}


# --- the conversation -----------------------------------------------------------------------------


def input_items(history: Iterable[HistoryItem]) -> list[Any]:
    """Converts the history, without empty messages."""
    items: list[Any] = []
    for item in history:
        if isinstance(item, RawHistoryItem):
            items.append(msgspec.Raw(item.json))
        elif not isinstance(item, HistoryMessage) or item.parts:
            items.append(input_item(item))
    return items


def input_item(item: HistoryMessage | HistoryCall | HistoryOutput) -> dict[str, Any]:
    made = history_item(item, detail_of=lambda image: image.detail or "auto", as_function=False)
    for part in made.get("content", ()):
        if part["type"] == "output_text":
            part["annotations"] = []
    if made.get("arguments") == "":
        made["arguments"] = "{}"
    return made
