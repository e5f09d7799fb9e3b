"""Packs the model's raw items of an answer (such as encrypted reasoning) into the `data` of a `redacted_thinking`
block, and unpacks them from later requests.

Input: a turn's raw items (JSON of Responses items) and the identity of the agent and model that made them. Output:
the block's `data`, an opaque text that clients send back unchanged; and from that, the order of the items among the
texts and calls of the answer. Nothing here raises: state that is damaged, of an unknown version, or of another
agent or model counts as none.

The text is base64 of a version byte, a digest of the identity, and zlib of a JSON array. An element of the array is
a raw item, or stands for content that the client itself sends back: 0 for a message, a call's id for a call. The
state is neither encrypted nor signed, so any client can make one.
"""

from __future__ import annotations

import binascii
import hashlib
import zlib
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import msgspec

VERSION: Final = 1
MAX_BYTES: Final = 16 << 20
"""The maximum unpacked size of one block, in bytes: a turn's encrypted reasoning has some KiB per step."""
MAX_GROWTH: Final = 16
"""How many times larger than its packed size a block may become when it is unpacked, apart from the first
kilobytes. A client can send many blocks, and encrypted reasoning can hardly be compressed."""
_FREE_BYTES: Final = 4096
_DIGEST_BYTES: Final = 12

_MESSAGE: Final = 0

FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "reasoning": ("type", "id", "summary", "content", "encrypted_content"),
    "web_search_call": ("type", "id", "status", "action"),
    "function_call": ("type", "id", "call_id", "name", "arguments"),
    "function_call_output": ("type", "call_id", "output"),
    "custom_tool_call": ("type", "id", "call_id", "name", "input"),
    "custom_tool_call_output": ("type", "call_id", "output"),
}
"""The types of items that are kept, and the fields of each that are kept: those that a model accepts."""
_TEXTS: Final = ("id", "call_id", "name", "arguments", "encrypted_content")
"""The fields of items that are strings if an item has them."""
_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
"""The types of items that are the output of a call. A turn's raw items do not include the outputs of the client's
calls."""

Element: TypeAlias = dict[str, Any] | int | str
"""An element of the recorded order of an answer's parts: a raw item; `0`, which means the next message of the answer;
or the id of a call."""


def packed(raw: Iterable[bytes], identity: str) -> str | None:
    """Returns a turn's raw items as the `data` of a block. Returns None if the client sends all of them back itself
    (as messages and calls), or if an item is not JSON. `identity` names the agent and model that made them.
    """
    try:
        elements = _elements(raw)
        plain = msgspec.json.encode(elements)
    except (msgspec.MsgspecError, UnicodeError):  # of an agent that does not look at its items
        return None
    if not any(isinstance(each, dict) for each in elements):
        return None
    body = zlib.compress(plain)
    if len(plain) > _most(len(body)):
        body = zlib.compress(plain, 0)
    return binascii.b2a_base64(bytes((VERSION,)) + _digest(identity) + body, newline=False).decode()


def unpacked(data: str, identity: str) -> list[Element]:
    """Returns the elements of a block's `data`, which a client sends back. `identity` names the agent and model
    that will read them. The list is empty if the block was made for another identity or by another version, is
    damaged, or would become too large; single elements of an unknown form are left out. Nothing is raised.
    """
    try:
        raw = binascii.a2b_base64(data, strict_mode=True)
    except (binascii.Error, ValueError):
        return []
    head = 1 + _DIGEST_BYTES
    if raw[:head] != bytes((VERSION,)) + _digest(identity):
        return []
    reader = zlib.decompressobj()
    try:
        body = reader.decompress(raw[head:], _most(len(raw) - head))
        elements = msgspec.json.decode(body, type=list[Any]) if reader.eof else []
    except (zlib.error, msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    return [each for each in elements if _is_element(each)]


def _most(size: int) -> int:
    """Returns the maximum unpacked size for a block of this packed `size`, both in bytes."""
    return min(MAX_BYTES, _FREE_BYTES + MAX_GROWTH * size)


def _elements(raw: Iterable[bytes]) -> list[Element]:
    items = [msgspec.json.decode(each, type=dict[str, Any]) for each in raw]
    answered = {item.get("call_id") for item in items if item.get("type") in OUTPUTS}
    elements: list[Element] = []
    for item in items:
        kind = item.get("type")
        if kind == "message":
            elements.append(_MESSAGE)
        elif kind in _CALLS and item.get("call_id") not in answered:
            elements.append(str(item.get("call_id", "")))
        elif kind in FIELDS and not (kind == "reasoning" and not item.get("encrypted_content")):
            elements.append({field: item[field] for field in FIELDS[kind] if field in item})
    return elements


def _is_element(value: Any) -> bool:
    if isinstance(value, dict):
        kind = value.get("type")
        texts = (value.get(field) for field in _TEXTS)
        return (
            isinstance(kind, str) and kind in FIELDS and all(isinstance(text, str | None) for text in texts)
        )
    return value == _MESSAGE or isinstance(value, str)


def _digest(identity: str) -> bytes:
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest()[:_DIGEST_BYTES]
