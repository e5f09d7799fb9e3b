"""Marks encrypted content with the name of the agent that made it: another provider refuses it. In a history for an
agent, its own marks are removed, and items of others left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, Final

import msgspec

from codex_proxy.core.events import Event, RawItem
from codex_proxy.core.items import HistoryItem, RawHistoryItem
from codex_proxy.core.json_values import UNREADABLE

ENCRYPTED: Final = frozenset({"reasoning", "compaction"})
_FIELD: Final = "encrypted_content"


class _Head(msgspec.Struct, frozen=True):
    type: str = ""
    encrypted_content: Any = None


class OriginMarks:
    """Adds an agent's mark (its name and a colon) to encrypted content, and removes it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._mark = f"{name}:"

    def mark(self, events: list[Event]) -> list[Event]:
        return [
            RawItem(event.type, self._mark_item(event.json))
            if type(event) is RawItem and event.type in ENCRYPTED
            else event
            for event in events
        ]

    def unmark(self, history: Sequence[HistoryItem]) -> tuple[HistoryItem, ...]:
        kept = (self._unmark_item(item) if isinstance(item, RawHistoryItem) else item for item in history)
        return tuple(item for item in kept if item is not None)

    def _mark_item(self, raw: bytes) -> bytes:
        text = _encrypted_content(raw)
        return raw if text is None else _with_content(raw, self._mark + text)

    def _unmark_item(self, item: RawHistoryItem) -> RawHistoryItem | None:
        text = _encrypted_content(item.json)
        if text is None:
            return item
        if not text.startswith(self._mark):
            return None
        return RawHistoryItem(_with_content(item.json, text.removeprefix(self._mark)))


def _encrypted_content(raw: bytes) -> str | None:
    try:
        head = msgspec.json.decode(raw, type=_Head)
    except UNREADABLE:
        return None
    text = head.encrypted_content
    return text if head.type in ENCRYPTED and isinstance(text, str) and text else None


def _with_content(raw: bytes, text: str) -> bytes:
    value = json.loads(raw)
    value[_FIELD] = text
    return json.dumps(value, separators=(",", ":")).encode()  # half of a surrogate pair stays an escape
