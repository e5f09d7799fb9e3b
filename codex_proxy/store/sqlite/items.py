"""The rows of items. An item that several responses and conversations have is stored once.

It is found by owner, id and a digest of the content, because a client may send other content under the same id.
Whoever deletes references calls `forget`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from typing import NamedTuple

from codex_proxy.store import queries
from codex_proxy.store.checksums import item_digest
from codex_proxy.store.rows import Kind
from codex_proxy.store.sqlite.dialect import ask
from codex_proxy.store.values import StoredItem


class ListEntry(NamedTuple):
    """An entry in a list of items: the item's row, its id, and whether clients see it."""

    row: int
    id: str
    visible: bool
    size: int


def row_of(connection: sqlite3.Connection, kind: Kind, owner: str, id: str) -> int:
    """Returns an object's row. Raises `NotStored`."""
    return ask(connection, queries.row_of(kind, owner, id))


def keep(connection: sqlite3.Connection, owner: str, item: StoredItem) -> ListEntry:
    """Stores an item; one of the same id and content is used as it is."""
    digest = item_digest(item.json, item.raw)
    cursor = connection.execute(
        "INSERT INTO items (owner, id, digest, created, json, raw) VALUES (?, ?, ?, ?, ?, ?)"
        " ON CONFLICT DO NOTHING",
        (owner, item.id, digest, item.created, item.json, item.raw),
    )
    if cursor.rowcount:
        assert cursor.lastrowid is not None
        return ListEntry(cursor.lastrowid, item.id, item.visible, item.size)
    found = connection.execute(
        "SELECT seq FROM items WHERE owner = ? AND id = ? AND digest = ?", (owner, item.id, digest)
    ).fetchone()
    return ListEntry(found[0], item.id, item.visible, item.size)


def forget(connection: sqlite3.Connection, rows: Iterable[int]) -> None:
    """Removes those items in these rows that no list has."""
    connection.executemany(
        "DELETE FROM items WHERE seq = ?"
        " AND NOT EXISTS (SELECT 1 FROM conversation_items WHERE item = items.seq)"
        " AND NOT EXISTS (SELECT 1 FROM response_items WHERE item = items.seq)",
        ((row,) for row in rows),
    )
