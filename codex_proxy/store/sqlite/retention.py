"""Applies the rules of `store.retention`, and limits the number of chains (`trim`) in each write that may add one."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Mapping
from typing import Final

from codex_proxy.store.retention import OBJECTS_AT_ONCE, Removed
from codex_proxy.store.sqlite import conversations, removal, responses
from codex_proxy.store.sqlite.opening import version_of

_LAST_OF_CHAIN: Final = "children = 0 AND unfinished = 0 AND deleted = 0 AND conversation_id IS NULL"


def sizes(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Returns the version of the tables, the bytes in use, and the bytes of free pages."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return version_of(connection), (pages - free) * size, free * size


def remove(connection: sqlite3.Connection, what: Removed, before: float, most: int) -> int:
    """Removes the oldest rows or objects from before `before`, in one short write. Returns how many."""
    if what == "responses":
        return _remove_objects(connection, _OLDEST_RESPONSE, responses.mark_deleted, before, most)
    if what == "conversations":
        return _remove_objects(connection, _OLDEST_CONVERSATION, conversations.mark_deleted, before, most)
    return connection.execute(_ROWS[what], (before, most)).rowcount


def _remove_objects(
    connection: sqlite3.Connection, oldest_of: str, mark: removal.Mark, before: float, most: int
) -> int:
    budget, removed, more = removal.Budget(removal.PIECE), 0, False
    while removed < most and not more and (oldest := connection.execute(oldest_of, (before,)).fetchone()):
        mark(connection, *oldest)
        removed, more = removed + 1, removal.sweep(connection, budget)
    return removed


def trim(connection: sqlite3.Connection, limit: int, in_use: Collection[tuple[str, str]]) -> None:
    """Removes the oldest chains above `limit`, as far as one write may, but for those `in_use`."""
    budget = removal.Budget(removal.PIECE)
    for _ in range(OBJECTS_AT_ONCE):
        count = connection.execute(f"SELECT count(*) FROM responses WHERE {_LAST_OF_CHAIN}").fetchone()[0]
        if count <= limit:
            return
        oldest_first = connection.execute(
            f"SELECT owner, id FROM responses WHERE {_LAST_OF_CHAIN} ORDER BY created, seq LIMIT ?",
            (len(in_use) + 1,),
        )
        oldest = next((row for row in oldest_first.fetchall() if tuple(row) not in in_use), None)
        if oldest is None:
            return
        responses.mark_deleted(connection, *oldest)
        if removal.sweep(connection, budget):
            return


_OLDEST_RESPONSE: Final = (
    "SELECT owner, id FROM responses WHERE children = 0 AND unfinished = 0 AND created <= ? AND deleted = 0"
    " ORDER BY created, seq LIMIT 1"
)
_OLDEST_CONVERSATION: Final = (
    "SELECT owner, id FROM conversations WHERE touched <= ? AND deleted = 0 ORDER BY touched, seq LIMIT 1"
)
_OLDEST_STREAM: Final = (
    "(SELECT seq FROM responses WHERE background = 1 AND unfinished = 0 AND created <= ?1"
    " AND EXISTS (SELECT 1 FROM frames WHERE response = seq) ORDER BY created LIMIT 1)"
)
# None begins with WITH: of such a statement `sqlite3` does not count the rows.
_ROWS: Final[Mapping[Removed, str]] = {
    "steps": "DELETE FROM steps WHERE seq IN"
    " (SELECT seq FROM steps WHERE created <= ?1 ORDER BY created LIMIT ?2)",
    "frames": f"DELETE FROM frames WHERE response = {_OLDEST_STREAM} AND number IN"
    f" (SELECT number FROM frames WHERE response = {_OLDEST_STREAM} ORDER BY number LIMIT ?2)",
    "usage": "DELETE FROM usage WHERE (owner, hour, model) IN"
    " (SELECT owner, hour, model FROM usage WHERE hour < ?1 LIMIT ?2)",
}
