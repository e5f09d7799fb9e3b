"""The statements of SQLite for rows of one table: items; and steps, sums of usage and pending webhooks, which are found
by a key, and to which no other row refers. `ask` runs those of `store.queries`.

An item that several responses and conversations have is stored once. It is found by owner, id and a digest of the
content, because a client may send other content under the same id. Whoever deletes references calls `forget`.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, TypeVar

from msgspec.structs import astuple

from codex_proxy.core.tokens import FIGURES
from codex_proxy.store import queries
from codex_proxy.store.queries import Query, SqlDialect
from codex_proxy.store.rows import ITEM_COLUMNS, Kind, checksum, item_digest
from codex_proxy.store.usage import UsageEntry
from codex_proxy.store.values import PendingWebhook, StoredItem

T = TypeVar("T")

CHAIN: Final = (
    "WITH RECURSIVE chain (seq, id, parent) AS ("
    "  SELECT seq, id, parent FROM responses WHERE owner = ?1 AND id = ?2 AND NOT deleted"
    "  UNION ALL"
    "  SELECT responses.seq, responses.id, responses.parent FROM chain"
    "  JOIN responses ON responses.seq = chain.parent"
    ")"
)
"""Selects the chain from a response to its root; row numbers increase along it."""

DIALECT: Final = SqlDialect(
    prefix="",
    parameter="?",
    listed="?",
    chain=CHAIN,
    context=f"{CHAIN} SELECT chain.id, side, {ITEM_COLUMNS} FROM chain"
    " LEFT JOIN response_items ON response = chain.seq"
    " LEFT JOIN items ON items.seq = item"
    " ORDER BY chain.seq, side, position",
    has_text="instr(lower(CAST({0} AS TEXT)), CAST(?3 AS TEXT)) > 0",
    as_bytes="{0}",
    ended="children = 0 AND unfinished = 0",
)


def ask(connection: sqlite3.Connection, query: Query[T]) -> T:
    with contextlib.closing(connection.execute(DIALECT.write(query.sql), query.values)) as rows:
        return query.convert(rows)


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


# --- step memory ----------------------------------------------------------------------------------


def remember(connection: sqlite3.Connection, owner: str, entries: Mapping[bytes, bytes], now: float) -> None:
    connection.executemany(
        "INSERT INTO steps (owner, key, created, value, value_sum) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (owner, key) DO UPDATE"
        " SET created = excluded.created, value = excluded.value, value_sum = excluded.value_sum",
        ((owner, key, now, value, checksum(value)) for key, value in entries.items()),
    )


def write_and_remove(connection: sqlite3.Connection, size: int) -> None:
    """Checks whether the disk has room for `size` bytes, by writing them. Raises `sqlite3.Error`."""
    connection.execute(
        "INSERT INTO steps (owner, key, created, value) VALUES ('', x'', 0, zeroblob(?))", (size,)
    )
    connection.execute("DELETE FROM steps WHERE owner = '' AND key = x''")


# --- usage ----------------------------------------------------------------------------------------

_ADD: Final = (
    f"INSERT INTO usage (owner, hour, model, {', '.join(FIGURES)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (owner, hour, model) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in FIGURES)
)


def add_usage(connection: sqlite3.Connection, entries: Sequence[UsageEntry]) -> None:
    rows = ((entry.owner, entry.hour, entry.model, *astuple(entry.figures)) for entry in entries)
    connection.executemany(_ADD, rows)


# --- webhooks -------------------------------------------------------------------------------------


def put_webhooks(connection: sqlite3.Connection, webhooks: Sequence[PendingWebhook]) -> None:
    connection.executemany(
        "INSERT INTO webhooks (event_id, url, body, tries) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        [(pending.event_id, pending.url, pending.body, pending.tries) for pending in webhooks],
    )


def count_webhook_try(connection: sqlite3.Connection, pending: PendingWebhook) -> None:
    connection.execute(
        "UPDATE webhooks SET tries = ? WHERE event_id = ? AND url = ?",
        (pending.tries, pending.event_id, pending.url),
    )


def drop_webhook(connection: sqlite3.Connection, event_id: str, url: str) -> None:
    connection.execute("DELETE FROM webhooks WHERE event_id = ? AND url = ?", (event_id, url))


def oldest_webhooks(connection: sqlite3.Connection, limit: int) -> list[PendingWebhook]:
    rows = connection.execute(
        "SELECT event_id, url, body, tries FROM webhooks ORDER BY seq LIMIT ?", (limit,)
    )
    return [PendingWebhook(*row) for row in rows]
