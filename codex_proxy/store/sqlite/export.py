"""Exports all responses and conversations as lines of JSON, and counts the stored objects.

It reads in parts, because the write-ahead log cannot be emptied during a read; objects may change between two.
"""

from __future__ import annotations

import sqlite3
from typing import Final, TypeAlias

import msgspec

from codex_proxy.store.interface import StoredItem, StoreStats
from codex_proxy.store.sqlite import conversations, responses
from codex_proxy.store.sqlite.items import COLUMNS, item_of
from codex_proxy.store.sqlite.migrations import version_of
from codex_proxy.store.sqlite.retention import used_bytes

AT_ONCE: Final = 20
"""Responses or conversations in one part, with all their items."""

Part: TypeAlias = tuple[list[bytes], int]
"""The lines of one part, and the last row that was read."""

_encoder = msgspec.json.Encoder()


def responses_after(connection: sqlite3.Connection, row: int) -> Part:
    rows = connection.execute(
        "SELECT seq, owner, id FROM responses WHERE seq > ? AND deleted = 0 ORDER BY seq LIMIT ?",
        (row, AT_ONCE),
    ).fetchall()
    lines = []
    for seq, owner, id in rows:
        response = responses.get(connection, owner, id)
        assert response is not None
        line = {
            "type": "response",
            "owner": owner,
            "id": id,
            "status": response.status,
            "created": response.created,
            "previous_response_id": response.previous_id,
            "conversation": response.conversation_id,
            "response": _raw(response.json),
            "input": _items_of(connection, seq, responses.INPUT),
            "output": _items_of(connection, seq, responses.OUTPUT),
        }
        lines.append(_encoder.encode(line) + b"\n")
    return lines, rows[-1][0] if rows else row


def conversations_after(connection: sqlite3.Connection, row: int) -> Part:
    rows = connection.execute(
        "SELECT seq, owner, id FROM conversations WHERE seq > ? AND deleted = 0 ORDER BY seq LIMIT ?",
        (row, AT_ONCE),
    ).fetchall()
    lines = []
    for seq, owner, id in rows:
        conversation = conversations.existing(connection, owner, id)
        line = {
            "type": "conversation",
            "owner": owner,
            "id": id,
            "created": conversation.created,
            "metadata": conversation.metadata,
            "items": [_item(item) for item in conversations.all_items(connection, seq)],
        }
        lines.append(_encoder.encode(line) + b"\n")
    return lines, rows[-1][0] if rows else row


def stats(connection: sqlite3.Connection, location: str, steps_in_ram: int) -> StoreStats:
    def count(of: str) -> int:
        return int(connection.execute(f"SELECT count(*) FROM {of}").fetchone()[0])

    free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0] for name in ("freelist_count", "page_size")
    )
    return StoreStats(
        location=location,
        schema_version=version_of(connection),
        bytes_used=used_bytes(connection),
        bytes_free=free * size,
        responses=count("responses WHERE deleted = 0"),
        unfinished=count("responses WHERE unfinished = 1"),
        conversations=count("conversations WHERE deleted = 0"),
        items=count("items"),
        frames=count("frames"),
        steps=count("steps") + steps_in_ram,
        oldest=connection.execute("SELECT min(created) FROM responses WHERE deleted = 0").fetchone()[0],
    )


def _items_of(connection: sqlite3.Connection, row: int, side: int) -> list[dict[str, object]]:
    rows = connection.execute(
        f"SELECT {COLUMNS} FROM response_items JOIN items ON items.seq = item"
        " WHERE response = ? AND side = ? ORDER BY position",
        (row, side),
    )
    return [_item(item_of(each)) for each in rows]


def _item(item: StoredItem) -> dict[str, object]:
    return {"id": item.id, "created": item.created, "item": _raw(item.json), "raw": _raw(item.raw)}


def _raw(json: bytes) -> msgspec.Raw | None:
    return msgspec.Raw(json) if json else None
