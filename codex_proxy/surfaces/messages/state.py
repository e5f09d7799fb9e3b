"""Packs an answer's raw items into a `redacted_thinking` block's `data`: base64 of a version byte, a digest of agent
and model, and zlib of a JSON array (raw items, 0 for a message, a call's id for a call), neither encrypted nor signed.
"""

from __future__ import annotations

import binascii
import hashlib
import zlib
from collections.abc import Iterable
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.core.json_values import UNREADABLE

VERSION: Final = 1
MAX_BYTES: Final = 16 << 20
"""Maximum bytes of an unpacked block; encrypted reasoning has some KiB per step."""
MAX_GROWTH: Final = 16
"""How many times its packed size an unpacked block may have; encrypted reasoning hardly compresses."""
_FREE_BYTES: Final = 4096
_DIGEST_BYTES: Final = 12

_MESSAGE: Final = 0

KEPT_FIELDS: Final[dict[str, tuple[str, ...]]] = {
    "reasoning": ("type", "id", "summary", "content", "encrypted_content"),
    "web_search_call": ("type", "id", "status", "action"),
    "function_call": ("type", "id", "call_id", "name", "arguments"),
    "function_call_output": ("type", "call_id", "output"),
    "custom_tool_call": ("type", "id", "call_id", "name", "input"),
    "custom_tool_call_output": ("type", "call_id", "output"),
}
"""The kept items, and the fields that a model accepts."""
_TEXTS: Final = ("id", "call_id", "name", "arguments", "encrypted_content")
"""Fields that are strings, if present."""
_CALLS: Final = frozenset({"function_call", "custom_tool_call"})
OUTPUTS: Final = frozenset({"function_call_output", "custom_tool_call_output"})
"""Types of calls' outputs. Raw items have no outputs of the client's calls."""

Element: TypeAlias = dict[str, Any] | int | str
"""An element of a packed answer: a raw item, `0` for the next message, or a call's id."""


def pack_items(raw: Iterable[bytes], identity: str) -> str | None:
    """Returns the items as text for the field `data` of a block, for the model or agent `identity`. Returns None if the
    client sends all of them back anyway, or if one is not JSON.
    """
    try:
        elements = _elements(raw)
        plain = msgspec.json.encode(elements)
    except UNREADABLE:  # of an agent that does not look at its items
        return None
    if not any(isinstance(each, dict) for each in elements):
        return None
    body = zlib.compress(plain)
    if len(plain) > _max_bytes(len(body)):
        body = zlib.compress(plain, 0)
    return binascii.b2a_base64(bytes((VERSION,)) + _digest(identity) + body, newline=False).decode()


def unpack_items(data: str, identity: str) -> list[Element]:
    """Returns the elements; none if `data` is damaged, or of another identity or version."""
    try:
        raw = binascii.a2b_base64(data, strict_mode=True)
    except (binascii.Error, ValueError):
        return []
    head = 1 + _DIGEST_BYTES
    if raw[:head] != bytes((VERSION,)) + _digest(identity):
        return []
    reader = zlib.decompressobj()
    try:
        body = reader.decompress(raw[head:], _max_bytes(len(raw) - head))
        elements = msgspec.json.decode(body, type=list[Any]) if reader.eof else []
    except (zlib.error, *UNREADABLE):
        return []
    return [each for each in elements if _is_element(each)]


def _max_bytes(size: int) -> int:
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
        elif kind in KEPT_FIELDS and not (kind == "reasoning" and not item.get("encrypted_content")):
            elements.append({field: item[field] for field in KEPT_FIELDS[kind] if field in item})
    return elements


def _is_element(value: Any) -> bool:
    if isinstance(value, dict):
        kind = value.get("type")
        texts = (value.get(field) for field in _TEXTS)
        return (
            isinstance(kind, str)
            and kind in KEPT_FIELDS
            and all(isinstance(text, str | None) for text in texts)
        )
    return value == _MESSAGE or isinstance(value, str)


def _digest(identity: str) -> bytes:
    return hashlib.sha256(identity.encode("utf-8", "surrogatepass")).digest()[:_DIGEST_BYTES]
