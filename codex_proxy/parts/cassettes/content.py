"""The content of a turn, by which a request finds its cassette, the same for all APIs. Pure.

Ids, sampling, the order of keys and of tools, and model aliases do not count; calls are numbered in order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec

from codex_proxy.core.items import (
    HistoryCall,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    Part,
    Tool,
    texts_of,
)
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.core.turn import NamedTools, Turn

CONTENT_FIELDS: Final = ("messages", "tools", "format", "mode", "model", "tool_choice", "effort", "sampling")
"""The fields of a content, which `--match` can name."""
MATCHED_FIELDS: Final = ("messages", "tools", "format", "mode")
"""The fields that are compared by default."""
KEY: Final = "<key>"
PLACEHOLDERS: Final = (
    KEY,
    "<home>",
    "<agent_home>",
    "<state>",
    "<host>",
    "<user>",
    "<workdir>",
    "<scrubbed>",
)
"""What replaces a text that is not written; in a comparison it equals any text."""
MAX_SHOWN: Final = 80
MAX_DIFFERENCES: Final = 8
MAX_COUNTED: Final = 500
"""Maximum differences that are looked for."""

Content = dict[str, Any]


def content_of(turn: Turn) -> Content:
    """Returns a turn's content as JSON, without the tools that this server runs."""
    numbers: dict[str, int] = {}
    choice = turn.tool_choice
    sampling: dict[str, Any] = dict(turn.sampling)
    if turn.max_tokens is not None:
        sampling["max_tokens"] = turn.max_tokens
    if turn.stop:
        sampling["stop"] = list(turn.stop)
    return {
        "mode": turn.mode,
        "format": _format_of(turn),
        "model": turn.model,
        "tool_choice": {"names": sorted(choice.names), "required": choice.required}
        if isinstance(choice, NamedTools)
        else choice,
        "effort": turn.effort,
        "sampling": sampling,
        "tools": sorted(
            (*(_tool(tool) for tool in turn.tools if tool.mcp is None), *_hosted(turn)),
            key=lambda tool: tool["name"],
        ),
        "messages": list(_messages(turn.history, numbers)),
    }


def _format_of(turn: Turn) -> Any:
    if turn.output_schema is None:
        return "json_object" if turn.json_object else "text"
    return format_content(_decode(bytes(turn.output_schema)))


def format_content(schema: Any) -> Any:
    """Returns a schema as content, without its title: some APIs put the schema's name there, others have none."""
    if isinstance(schema, dict):
        schema = {name: value for name, value in schema.items() if name != "title"}
    return "json_object" if schema == {"type": "object"} else schema


def _tool(tool: Tool) -> dict[str, Any]:
    found: dict[str, Any] = {"name": tool.name}
    if tool.kind != "function":
        found["kind"] = tool.kind
    if tool.description:
        found["description"] = tool.description
    if tool.parameters is not None:
        found["parameters"] = _decode(bytes(tool.parameters))
    return found


def _hosted(turn: Turn) -> Iterator[dict[str, Any]]:
    """Yields the tools that the model server runs, with a digest of what is said of them all, which may be secret."""
    if turn.hosted is not None:
        digest = hashlib.sha256(msgspec.json.encode(turn.hosted)).hexdigest()
        yield from ({"name": name, "description": f"sha256:{digest}"} for name in turn.hosted.tools)


def _messages(history: Iterable[object], numbers: dict[str, int]) -> Iterator[dict[str, Any]]:
    for item in history:
        if isinstance(item, HistoryMessage):
            yield {"role": item.role, **_text_and_images(item.parts, item.chat_message)}
        elif isinstance(item, HistoryCall):
            number = numbers.setdefault(item.call_id, len(numbers) + 1)
            arguments = _decode(item.arguments.encode("utf-8", "surrogatepass"))
            yield {"call": number, "tool": item.name, "arguments": arguments}
        elif isinstance(item, HistoryOutput):
            number = numbers.setdefault(item.call_id, len(numbers) + 1)
            yield {"output": number, **_text_and_images(item.parts)}


def _text_and_images(parts: Sequence[Part], original: bytes | None = None) -> dict[str, Any]:
    text = "".join(texts_of(parts))
    found: dict[str, Any] = {"text": text}
    images = [_image(part.url) for part in parts if isinstance(part, ImagePart)]
    if images:
        found["images"] = images
    if original is not None:
        found["message"] = f"sha256:{hashlib.sha256(original).hexdigest()}"
    return found


def _image(url: str) -> str:
    return f"sha256:{hashlib.sha256(url.encode()).hexdigest()}" if url.startswith("data:") else url


def _decode(text: bytes) -> Any:
    try:
        return msgspec.json.decode(text)
    except UNREADABLE:
        return text.decode("utf-8", "replace")


def key_of(content: Content, matched: Sequence[str]) -> bytes:
    """Returns a key that is equal for contents with equal fields `matched`."""
    return hashlib.sha256(
        msgspec.json.encode([content.get(name) for name in matched], order="deterministic")
    ).digest()


def has_placeholders(content: Content) -> bool:
    """Whether a part of the content was not written."""
    text = msgspec.json.encode(content)
    return any(each.encode() in text for each in PLACEHOLDERS)


class Difference(NamedTuple):
    """A value that is not the same in a request and in a cassette; None in one of them that has no such value."""

    path: tuple[str, ...]
    asked: Any
    recorded: Any
    only_in: str = ""
    """The side that has the value, if only one has it."""

    def __str__(self) -> str:
        """Returns a line for the operator: the place, and what the two have there, cut."""
        where, asked, recorded = "".join(self.path), self.asked, self.recorded
        if self.only_in:
            return f"{where}: only the {self.only_in} has it: {_quote(recorded if asked is None else asked)}"
        if isinstance(asked, str) and isinstance(recorded, str):
            return f"{where}: {_quote_difference(asked, recorded)}"
        return f"{where}: the request has {_quote(asked)}, the cassette {_quote(recorded)}"


def differences(request: Content, recorded: Content, matched: Sequence[str]) -> list[Difference]:
    """Returns the first `MAX_COUNTED` differences in the fields `matched`."""
    found = (
        each for name in matched for each in _differences((name,), request.get(name), recorded.get(name))
    )
    return list(islice(found, MAX_COUNTED))


def _differences(path: tuple[str, ...], asked: Any, recorded: Any) -> Iterator[Difference]:
    if isinstance(asked, Mapping) and isinstance(recorded, Mapping):
        for name in dict.fromkeys((*recorded, *asked)):
            place = (*path, ".", name)
            if name not in recorded:
                yield Difference(place, asked[name], None, "request")
            elif name not in asked:
                yield Difference(place, None, recorded[name], "cassette")
            else:
                yield from _differences(place, asked[name], recorded[name])
    elif isinstance(asked, list) and isinstance(recorded, list):
        for index, (mine, theirs) in enumerate(zip(asked, recorded, strict=False)):
            yield from _differences((*path, f"[{index}]"), mine, theirs)
        for index in range(len(recorded), len(asked)):
            yield Difference((*path, f"[{index}]"), asked[index], None, "request")
        for index in range(len(asked), len(recorded)):
            yield Difference((*path, f"[{index}]"), None, recorded[index], "cassette")
    elif isinstance(asked, str) and isinstance(recorded, str):
        if not same_text(asked, recorded):
            yield Difference(path, asked, recorded)
    elif asked != recorded:
        yield Difference(path, asked, recorded)


def same_text(asked: str, recorded: str) -> bool:
    """Whether a recorded text equals the text in a request. A placeholder equals any text."""
    if asked == recorded:
        return True
    for each in PLACEHOLDERS:
        recorded = recorded.replace(each, "\0")
    first, *rest = recorded.split("\0")
    if not rest or not asked.startswith(first):
        return False
    *middle, last = rest
    at = len(first)
    for piece in middle:
        found = asked.find(piece, at)
        if found < 0:
            return False
        at = found + len(piece)
    return len(asked) - len(last) >= at and asked.endswith(last)


def _quote_difference(asked: str, recorded: str) -> str:
    as_bytes = asked.encode("utf-8", "replace")
    common = as_bytes[: common_prefix_length(as_bytes, recorded.encode("utf-8", "replace"))]
    start = max(0, len(common.decode("utf-8", "ignore")) - 20)  # a character may part in its middle
    lead = "..." if start else ""
    mine, theirs = (lead + each[start : start + MAX_SHOWN] for each in (asked, recorded))
    return f"the request has {_quote(mine)}, the cassette {_quote(theirs)}"


def _quote(value: Any) -> str:
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= MAX_SHOWN else f"{text[:MAX_SHOWN]}..."


_COMPARED: Final = 128
"""The bytes of two lines that are compared at once to find the first difference."""


def common_prefix_length(one: bytes, other: bytes) -> int:
    """Returns the number of bytes with which both begin."""
    for start in range(0, min(len(one), len(other)), _COMPARED):
        mine, theirs = one[start : start + _COMPARED], other[start : start + _COMPARED]
        if mine != theirs:
            size = min(len(mine), len(theirs))
            different = int.from_bytes(mine[:size], "big") ^ int.from_bytes(theirs[:size], "big")
            return start + size - (different.bit_length() + 7) // 8
    return min(len(one), len(other))
