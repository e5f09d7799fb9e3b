"""Exports all responses and conversations as lines of JSON, and counts the stored objects.

It reads in parts, because the write-ahead log cannot be emptied during a read; objects may change between two.
"""

from __future__ import annotations

import sqlite3
from typing import TypeAlias

from codex_proxy.store.export import AT_ONCE, conversation_line, response_line
from codex_proxy.store.interface import StoredItem, StoreStats
from codex_proxy.store.rows import INPUT, ITEM, OUTPUT, item_of
from codex_proxy.store.sqlite import conversations, responses
from codex_proxy.store.sqlite.migrations import version_of
from codex_proxy.store.sqlite.retention import used_bytes

Part: TypeAlias = tuple[list[bytes], int]
"""The lines of one part, and the last row that was read."""


def responses_after(connection: sqlite3.Connection, row: int) -> Part:
    rows = connection.execute(
        "SELECT seq, owner, id FROM responses WHERE seq > ? AND deleted = 0 ORDER BY seq LIMIT ?",
        (row, AT_ONCE),
    ).fetchall()
    lines = []
    for seq, owner, id in rows:
        response = responses.get(connection, owner, id)
        assert response is not None
        sides = (_items_of(connection, seq, side) for side in (INPUT, OUTPUT))
        lines.append(response_line(response, *sides))
    return lines, rows[-1][0] if rows else row


def conversations_after(connection: sqlite3.Connection, row: int) -> Part:
    rows = connection.execute(
        "SELECT seq, owner, id FROM conversations WHERE seq > ? AND deleted = 0 ORDER BY seq LIMIT ?",
        (row, AT_ONCE),
    ).fetchall()
    lines = []
    for seq, owner, id in rows:
        conversation = conversations.existing(connection, owner, id)
        lines.append(conversation_line(conversation, conversations.all_items(connection, seq)))
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


def _items_of(connection: sqlite3.Connection, row: int, side: int) -> list[StoredItem]:
    rows = connection.execute(
        f"SELECT {ITEM} FROM response_items JOIN items ON items.seq = item"
        " WHERE response = ? AND side = ? ORDER BY position",
        (row, side),
    )
    return [item_of(each) for each in rows]
