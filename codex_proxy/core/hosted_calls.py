"""Calls of tools that a model server has run, as calls of a function with their output: not every model server has the
tools, and only the account that has a container may name it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Final

import msgspec

from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryOutput, RawHistoryItem, TextPart
from codex_proxy.core.json_values import UNREADABLE, encode_json, objects_in, text_at

CODE_CALL: Final = "code_interpreter_call"
_NOT_KEPT: Final = "[output: not kept]"
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def code_call(item: Mapping[str, Any]) -> list[HistoryItem]:
    """Converts a call of `code_interpreter`."""
    outputs = [
        text_at(each, "logs") or f"[{text_at(each, 'type')}]" for each in objects_in(item.get("outputs"))
    ]
    return _call(item, "code_interpreter", {"code": item.get("code")}, "\n".join(outputs))


def _search_call(item: Mapping[str, Any]) -> list[HistoryItem]:
    found = [
        f"[{text_at(each, 'filename')}]\n{text_at(each, 'text')}" for each in objects_in(item.get("results"))
    ]
    return _call(item, "file_search", {"queries": item.get("queries")}, "\n\n".join(found))


def _call(item: Mapping[str, Any], name: str, arguments: Mapping[str, Any], output: str) -> list[HistoryItem]:
    id = item.get("id")
    call_id = id if isinstance(id, str) and id else name
    return [
        HistoryCall(call_id, name, encode_json(arguments).decode(), by_server=True),
        HistoryOutput(call_id, (TextPart(output or _NOT_KEPT),), by_server=True),
    ]


_TOOLS: Final[Mapping[str, tuple[str, Callable[[Mapping[str, Any]], list[HistoryItem]]]]] = {
    CODE_CALL: ("code_interpreter", code_call),
    "file_search_call": ("file_search", _search_call),
}


def as_functions(history: tuple[HistoryItem, ...], able: Collection[str] = ()) -> tuple[HistoryItem, ...]:
    """Converts the raw calls of tools that are not among what an agent is `able` to run. Other items stay."""
    types = [type for type, (tool, _) in _TOOLS.items() if tool not in able]
    marks = [type.encode() for type in types]
    if not any(isinstance(each, RawHistoryItem) and _has_any(marks, each.json) for each in history):
        return history
    return tuple(part for each in history for part in _as_function(each, types, marks))


def _has_any(marks: Collection[bytes], json: bytes) -> bool:
    return any(mark in json for mark in marks)


def _as_function(item: HistoryItem, types: Collection[str], marks: Collection[bytes]) -> list[HistoryItem]:
    if not isinstance(item, RawHistoryItem) or not _has_any(marks, item.json):
        return [item]
    try:
        given = _decode(item.json)
    except UNREADABLE:
        return [item]
    type = text_at(given, "type")
    return _TOOLS[type][1](given) if type in types else [item]
