"""Removes the rows of deleted objects in small pieces, so that no other write waits long for the only writer.

An object (a response or conversation) is deleted by a small write that marks its row; no read finds it from then
on. `sweep` removes its rows: a few in the same write, which is enough for most objects, and the others in further
writes of at most `PIECE` rows each. The marks alone record what is still to be removed, so nothing is missed if the
process ends between two pieces. A deleted response that others continue keeps its items until the last of those is
removed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from typing import Final

from codex_proxy.store.sqlite.items import forget

PIECE: Final = 500
"""The most rows, and pages of bodies, that one write removes, which takes some 20 ms. A single body may have more
pages."""
PAGE_BYTES: Final = 4096

_RESPONSE_ITEMS: Final = ("response_items", ("response", "side", "position"))
_CONVERSATION_ITEMS: Final = ("conversation_items", ("conversation", "position"))
"""The tables of the lists of items, each with its key columns. The first column is the row of the response or
conversation that has the list.
"""

Mark = Callable[[sqlite3.Connection, str, str], bool]


class Budget:
    """The number of rows that one write may still remove (`left`). A row with a body counts as one row, plus one
    for each 4 KiB of the body.
    """

    def __init__(self, left: int) -> None:
        self.left = left

    def spend(self, size: int = 0) -> None:
        """Subtracts one removed row, whose body has `size` bytes, from `left`."""
        self.left -= 1 + size // PAGE_BYTES


def delete(connection: sqlite3.Connection, mark: Mark, owner: str, id: str) -> tuple[bool, bool]:
    """Marks the owner's object with this id as deleted, by calling `mark` (`mark_deleted` of its table), and
    removes its first rows. Returns whether the object existed, and whether there are more rows to remove. Only a
    few rows are removed at once, because many deletions may be combined into one commit.
    """
    if not mark(connection, owner, id):
        return False, False
    return True, sweep(connection, Budget(PIECE // 10))


def sweep(connection: sqlite3.Connection, budget: Budget) -> bool:
    """Removes rows of objects that are marked as deleted, until the budget is spent. Returns whether there may be
    more rows to remove.
    """
    while budget.left > 0:
        if not _next(connection, budget):
            return False
    return True


def piece(connection: sqlite3.Connection) -> bool:
    """Removes up to `PIECE` rows of objects that are marked as deleted. Returns whether there may be more rows to
    remove.
    """
    return sweep(connection, Budget(PIECE))


def _next(connection: sqlite3.Connection, budget: Budget) -> bool:
    """Removes rows of one object that is marked as deleted, as many as `budget` allows. Returns False if there is
    no such object.
    """
    for query, remove in _MARKED:
        row = connection.execute(query).fetchone()
        if row is not None:
            remove(connection, row[0], budget)
            return True
    return False


def _response(connection: sqlite3.Connection, row: int, budget: Budget) -> None:
    _frames(connection, row, budget)
    if budget.left <= 0 or not _items(connection, *_RESPONSE_ITEMS, row, budget):
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


def _conversation(connection: sqlite3.Connection, row: int, budget: Budget) -> None:
    if _items(connection, *_CONVERSATION_ITEMS, row, budget):
        connection.execute("DELETE FROM conversations WHERE seq = ?", (row,))
        budget.spend()


def _frames(connection: sqlite3.Connection, row: int, budget: Budget) -> None:
    found = connection.execute(
        "SELECT number, length(data) FROM frames WHERE response = ? ORDER BY number LIMIT ?",
        (row, budget.left),
    ).fetchall()
    for number, size in found:
        connection.execute("DELETE FROM frames WHERE response = ? AND number = ?", (row, number))
        budget.spend(size)
        if budget.left <= 0:
            return


def _items(
    connection: sqlite3.Connection, table: str, key: tuple[str, ...], row: int, budget: Budget
) -> bool:
    """Removes the rows of `table` for the items of one response or conversation, until the budget is spent, and
    those of the items that no other list has. `table` is the table of the item lists; `key` are its key columns, of
    which the first has the number `row` of the response or conversation. Returns False if the budget was spent
    before all rows were removed.
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
    ("SELECT seq FROM responses WHERE deleted = 1 AND children = 0 LIMIT 1", _response),
    ("SELECT seq FROM conversations WHERE deleted = 1 LIMIT 1", _conversation),
    (
        "SELECT seq FROM responses WHERE deleted = 1 AND children > 0 AND background = 1"
        " AND EXISTS (SELECT 1 FROM frames WHERE response = seq) LIMIT 1",
        _frames,
    ),
)
"""The queries that find a deleted object with rows to remove, and the function that removes them. Each query uses
an index of marked rows."""
