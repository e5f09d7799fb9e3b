"""Removes the oldest rows and objects by the rules of `store.retention`, and the rows of deleted objects in small
pieces, so that no other write waits long.

A small write marks the object, and `sweep` removes its rows. Only the marks record what is left, so nothing is missed
if the process ends. `trim` limits the number of chains in each write that may add one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping
from typing import Final

from codex_proxy.store.retention import OBJECTS_AT_ONCE, Removed
from codex_proxy.store.sqlite import conversations, records, responses
from codex_proxy.store.sqlite.opening import version_of
from codex_proxy.store.sqlite.statements import forget

PIECE: Final = 500
"""Maximum rows, and pages of bodies, that one write removes in some 20 ms."""
PAGE_BYTES: Final = 4096

_RESPONSE_ITEMS: Final = ("response_items", ("response", "side", "position"))
_CONVERSATION_ITEMS: Final = ("conversation_items", ("conversation", "position"))
"""The tables of lists of items, with their key columns."""

Mark = Callable[..., bool]
"""The type of a function that marks the object of an owner, and a kind and id or an id."""


class Budget:
    """The rows that one write may still remove. A body counts one more for each 4 KiB."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, size: int = 0) -> None:
        """Counts a row with a body of `size` bytes."""
        self.left -= 1 + size // PAGE_BYTES


def delete(connection: sqlite3.Connection, mark: Mark, *key: str) -> tuple[bool, bool]:
    """Marks an object and removes its first rows. Returns whether it existed, and whether rows are left."""
    if not mark(connection, *key):
        return False, False
    # Few at once, because a commit may have many deletions.
    return True, sweep(connection, Budget(PIECE // 10))


def sweep(connection: sqlite3.Connection, budget: Budget) -> bool:
    """Removes rows of marked objects. Returns whether there may be more."""
    while budget.left > 0:
        if not _next(connection, budget):
            return False
    return True


def piece(connection: sqlite3.Connection) -> bool:
    return sweep(connection, Budget(PIECE))


def _next(connection: sqlite3.Connection, budget: Budget) -> bool:
    for query, remove in _MARKED:
        row = connection.execute(query).fetchone()
        if row is not None:
            remove(connection, row[0], budget)
            return True
    return False


def _remove_response(connection: sqlite3.Connection, row: int, budget: Budget) -> None:
    _remove_frames(connection, row, budget)
    if budget.left <= 0 or not _remove_items(connection, *_RESPONSE_ITEMS, row, budget):
        return
    size, parent = connection.execute(
        "SELECT coalesce(length(json) + length(recovery), 0), parent FROM responses"
        " LEFT JOIN response_bodies ON response = seq WHERE seq = ?",
        (row,),
    ).fetchone()
    connection.execute("DELETE FROM responses WHERE seq = ?", (row,))
    if parent is not None:
        connection.execute("UPDATE responses SET children = children - 1 WHERE seq = ?", (parent,))
    budget.spend(size)


def _remove_conversation(connection: sqlite3.Connection, row: int, budget: Budget) -> None:
    if _remove_items(connection, *_CONVERSATION_ITEMS, row, budget):
        connection.execute("DELETE FROM conversations WHERE seq = ?", (row,))
        budget.spend()


def _remove_record(connection: sqlite3.Connection, row: int, budget: Budget) -> None:
    found = connection.execute(
        "SELECT seq, length(json), EXISTS (SELECT 1 FROM records AS below WHERE below.parent = records.seq)"
        " FROM records WHERE parent = ? LIMIT ?",
        (row, budget.left),
    ).fetchall()
    for below, size, is_parent in found:
        if is_parent:  # it is the next one whose rows are removed
            connection.execute(records.MARK, (below,))
            connection.execute("UPDATE records SET parent = NULL WHERE seq = ?", (below,))
        else:
            connection.execute("DELETE FROM records WHERE seq = ?", (below,))
        budget.spend(size)
        if budget.left <= 0:
            return
    (size,) = connection.execute("SELECT length(json) FROM records WHERE seq = ?", (row,)).fetchone()
    connection.execute("DELETE FROM records WHERE seq = ?", (row,))
    budget.spend(size)


def _remove_frames(connection: sqlite3.Connection, row: int, budget: Budget) -> None:
    found = connection.execute(
        "SELECT number, length(data) FROM frames WHERE response = ? ORDER BY number LIMIT ?",
        (row, budget.left),
    ).fetchall()
    for number, size in found:
        connection.execute("DELETE FROM frames WHERE response = ? AND number = ?", (row, number))
        budget.spend(size)
        if budget.left <= 0:
            return


def _remove_items(
    connection: sqlite3.Connection, table: str, key: tuple[str, ...], row: int, budget: Budget
) -> bool:
    """Removes list rows of one object, and the items that no other list has. `key` are the key columns, the first of
    which is `row`. Returns False if the budget was spent before.
    """
    columns, same = ", ".join(key), " AND ".join(f"{name} = ?" for name in key)
    found = connection.execute(
        f"SELECT item, length(json) + length(raw), {columns} FROM {table} JOIN items ON items.seq = item"
        f" WHERE {key[0]} = ? ORDER BY {columns} LIMIT ?",
        (row, budget.left),
    ).fetchall()
    for item, size, *place in found:
        connection.execute(f"DELETE FROM {table} WHERE {same}", place)
        forget(connection, (item,))
        budget.spend(size)
        if budget.left <= 0:
            return False
    return True


_MARKED: Final[tuple[tuple[str, Callable[[sqlite3.Connection, int, Budget], None]], ...]] = (
    ("SELECT seq FROM responses WHERE deleted = 1 AND children = 0 LIMIT 1", _remove_response),
    ("SELECT seq FROM conversations WHERE deleted = 1 LIMIT 1", _remove_conversation),
    ("SELECT seq FROM records WHERE deleted = 1 LIMIT 1", _remove_record),
    (
        "SELECT seq FROM responses WHERE deleted = 1 AND children > 0 AND background = 1"
        " AND EXISTS (SELECT 1 FROM frames WHERE response = seq) LIMIT 1",
        _remove_frames,
    ),
)
"""Statements that find a deleted object with rows, each by an index of marks, with what removes such rows."""


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
    if what == "records":
        return _remove_objects(connection, _OLDEST_RECORD, records.mark_deleted, before, most)
    return connection.execute(_ROWS[what], (before, most)).rowcount


def _remove_objects(
    connection: sqlite3.Connection, oldest_of: str, mark: Mark, before: float, most: int
) -> int:
    budget, removed, more = Budget(PIECE), 0, False
    while removed < most and not more and (oldest := connection.execute(oldest_of, (before,)).fetchone()):
        mark(connection, *oldest)
        removed, more = removed + 1, sweep(connection, budget)
    return removed


def trim(connection: sqlite3.Connection, limit: int, in_use: Collection[tuple[str, str]]) -> None:
    """Removes the oldest chains above `limit`, as far as one write may, but for those `in_use`."""
    budget = Budget(PIECE)
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
        if sweep(connection, budget):
            return


_OLDEST_RESPONSE: Final = (
    "SELECT owner, id FROM responses WHERE children = 0 AND unfinished = 0 AND created <= ? AND deleted = 0"
    " ORDER BY created, seq LIMIT 1"
)
_OLDEST_CONVERSATION: Final = (
    "SELECT owner, id FROM conversations WHERE touched <= ? AND deleted = 0 ORDER BY touched, seq LIMIT 1"
)
_OLDEST_RECORD: Final = (
    "SELECT owner, kind, id FROM records WHERE parent IS NULL AND touched <= ? AND deleted = 0 AND busy = 0"
    " ORDER BY touched, seq LIMIT 1"
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
