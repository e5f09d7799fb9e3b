"""Calls that a model server has run in a container, as calls of a function with their output: only the account that has
the container may name it, and not every model server has the tool.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from codex_proxy.core.items import HistoryCall, HistoryItem, HistoryOutput, RawHistoryItem, TextPart
from codex_proxy.core.json_values import UNREADABLE, encode_json, objects_in, text_at

CODE_CALL: Final = "code_interpreter_call"
_NOT_KEPT: Final = "[output: not kept]"
_decode = msgspec.json.Decoder(dict[str, Any]).decode


def code_call(item: Mapping[str, Any]) -> list[HistoryItem]:
    """Converts a call of `code_interpreter`."""
    given = dict(item)
    arguments = encode_json({"code": given.get("code")}).decode()
    outputs = [
        text_at(each, "logs") or f"[{text_at(each, 'type')}]" for each in objects_in(given.get("outputs"))
    ]
    call_id = text_at(given, "id") or CODE_CALL
    return [
        HistoryCall(call_id, "code_interpreter", arguments, by_server=True),
        HistoryOutput(call_id, (TextPart("\n".join(outputs) or _NOT_KEPT),), by_server=True),
    ]


def without_containers(history: Iterable[HistoryItem]) -> tuple[HistoryItem, ...]:
    """Converts the calls of `code_interpreter` among raw items."""
    return tuple(each for item in history for each in _without_container(item))


def _without_container(item: HistoryItem) -> list[HistoryItem]:
    if isinstance(item, RawHistoryItem) and CODE_CALL.encode() in item.json:
        try:
            given = _decode(item.json)
        except UNREADABLE:
            return [item]
        if given.get("type") == CODE_CALL:
            return code_call(given)
    return [item]
