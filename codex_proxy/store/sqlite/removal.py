"""Removes the rows of deleted objects in small pieces, so that no other write waits long.

A small write marks the object, and `sweep` removes its rows. Only the marks record what is left, so nothing is missed
if the process ends.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from codex_proxy.store.sqlite.items import forget

PIECE: Final = 500
"""Maximum rows, and pages of bodies, that one write removes in some 20 ms."""
PAGE_BYTES: Final = 4096

_RESPONSE_ITEMS: Final = ("response_items", ("response", "side", "position"))
_CONVERSATION_ITEMS: Final = ("conversation_items", ("conversation", "position"))
"""The tables of lists of items, with their key columns."""

Mark = Callable[[sqlite3.Connection, str, str], bool]


class Budget:
    """The rows that one write may still remove. A body counts one more for each 4 KiB."""

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, size: int = 0) -> None:
        """Counts a row with a body of `size` bytes."""
        self.left -= 1 + size // PAGE_BYTES


def delete(connection: sqlite3.Connection, mark: Mark, owner: str, id: str) -> tuple[bool, bool]:
    """Marks an object and removes its first rows. Returns whether it existed, and whether rows are left."""
    if not mark(connection, owner, id):
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
    (
        "SELECT seq FROM responses WHERE deleted = 1 AND children > 0 AND background = 1"
        " AND EXISTS (SELECT 1 FROM frames WHERE response = seq) LIMIT 1",
        _remove_frames,
    ),
)
"""Statements that find a deleted object with rows, each by an index of marks, with what removes such rows."""
