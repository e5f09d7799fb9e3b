"""The lines of an export: a response or conversation with its items as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.store.queries import Kind
from codex_proxy.store.rows import INPUT, OUTPUT, conversation_of, response_of
from codex_proxy.store.values import StoredItem

OBJECTS_AT_ONCE: Final = 20
"""The objects that are read at once, with all their items."""


def export_line(kind: Kind, columns: Iterable[Any], items: Sequence[tuple[int, StoredItem]]) -> bytes:
    """Returns an object's line. `columns` has the columns `RESPONSE` or `CONVERSATION`; each item comes with its side
    (`rows.INPUT` or `OUTPUT`). Raises `StoreDamaged`.
    """
    line: dict[str, object]
    if kind == "conversation":
        conversation = conversation_of(columns)
        line = {
            "owner": conversation.owner,
            "id": conversation.id,
            "created": conversation.created,
            "metadata": conversation.metadata,
            "items": [_item(item) for _, item in items],
        }
    else:
        response = response_of(columns)
        line = {
            "owner": response.owner,
            "id": response.id,
            "status": response.status,
            "created": response.created,
            "previous_response_id": response.previous_id,
            "conversation": response.conversation_id,
            "response": _raw(response.json),
            "input": [_item(item) for side, item in items if side == INPUT],
            "output": [_item(item) for side, item in items if side == OUTPUT],
        }
    return msgspec.json.encode({"type": kind, **line}) + b"\n"


def _item(item: StoredItem) -> dict[str, object]:
    return {"id": item.id, "created": item.created, "item": _raw(item.json), "raw": _raw(item.raw)}


def _raw(json: bytes) -> msgspec.Raw | None:
    return msgspec.Raw(json) if json else None
