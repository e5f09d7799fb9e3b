"""The rows of items. An item of several responses and conversations is stored once.

It is found by owner, id and a digest of the content, because a client may send other content under the same id. Whoever
deletes references calls `forget`.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Final, Literal, NamedTuple

from codex_proxy.store.checksums import item_digest
from codex_proxy.store.interface import NotStored, Order, Page, PageRequest, StoredItem
from codex_proxy.store.rows import ITEM, item_of

BEYOND: Final = 1 << 62
"""A number that is larger than every position in a list of items."""


class ListEntry(NamedTuple):
    """An entry in a list of items: the item's row, its id, and whether clients see it."""

    row: int
    id: str
    visible: bool
    size: int
    """The number of bytes of the item's content."""


def row_of(
    connection: sqlite3.Connection, kind: Literal["response", "conversation"], owner: str, id: str
) -> int:
    """Returns the row of a response or conversation. Raises `NotStored`."""
    row = connection.execute(
        f"SELECT seq FROM {kind}s WHERE owner = ? AND id = ? AND deleted = 0", (owner, id)
    ).fetchone()
    if row is None:
        raise NotStored(kind, id)
    return int(row[0])


def keep(connection: sqlite3.Connection, owner: str, item: StoredItem) -> ListEntry:
    """Stores an item and returns its list entry; one of the same id and content is used as it is."""
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


def find(connection: sqlite3.Connection, owner: str, id: str) -> tuple[ListEntry, StoredItem] | None:
    """Returns the owner's newest listed item with this id that clients see, or None."""
    row = connection.execute(
        f"SELECT items.seq, {ITEM} FROM items WHERE owner = ? AND id = ? AND length(json) > 0 AND ("
        " EXISTS (SELECT 1 FROM conversation_items JOIN conversations ON conversations.seq = conversation"
        "   WHERE item = items.seq AND deleted = 0)"
        " OR EXISTS (SELECT 1 FROM response_items JOIN responses ON responses.seq = response"
        "   WHERE item = items.seq AND deleted = 0)"
        ") ORDER BY items.seq DESC LIMIT 1",
        (owner, id),
    ).fetchone()
    if row is None:
        return None
    item = item_of(row[1:])
    return ListEntry(row[0], item.id, True, item.size), item


def found_among(connection: sqlite3.Connection, owner: str, ids: Sequence[str]) -> dict[str, StoredItem]:
    """Returns what `find` finds for these ids, by id."""
    found = ((id, find(connection, owner, id)) for id in dict.fromkeys(ids))
    return {id: held[1] for id, held in found if held is not None}


def forget(connection: sqlite3.Connection, rows: Iterable[int]) -> None:
    """Removes the items in these rows that no list has."""
    connection.executemany(
        "DELETE FROM items WHERE seq = ?"
        " AND NOT EXISTS (SELECT 1 FROM conversation_items WHERE item = items.seq)"
        " AND NOT EXISTS (SELECT 1 FROM response_items WHERE item = items.seq)",
        ((row,) for row in rows),
    )


def page_of(
    connection: sqlite3.Connection, table: str, where: str, values: tuple[int, ...], page: PageRequest
) -> Page:
    """Returns a page of the items for clients in the rows of `table` that match `where`. Raises `NotStored` without the
    item `after`.
    """
    start = _position(connection, table, where, values, page)
    direction, comparison = _DIRECTIONS[page.order]
    rows = connection.execute(
        f"SELECT {ITEM} FROM {table} AS held JOIN items ON items.seq = held.item"
        f" WHERE {where} AND visible = 1 AND position {comparison} ?"
        f" ORDER BY position {direction} LIMIT ?",
        (*values, start, page.limit + 1),
    ).fetchall()
    return Page(tuple(item_of(row) for row in rows[: page.limit]), has_more=len(rows) > page.limit)


_DIRECTIONS: Final[dict[Order, tuple[str, str]]] = {"asc": ("ASC", ">"), "desc": ("DESC", "<")}


def _position(
    connection: sqlite3.Connection, table: str, where: str, values: tuple[int, ...], page: PageRequest
) -> int:
    if page.after is None:
        return -1 if page.order == "asc" else BEYOND
    row = connection.execute(
        f"SELECT position FROM {table} WHERE {where} AND item_id = ? AND visible = 1", (*values, page.after)
    ).fetchone()
    if row is None:
        raise NotStored("item", page.after)
    return int(row[0])
