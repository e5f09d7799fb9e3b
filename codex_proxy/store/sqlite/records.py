"""SQL that writes records (`store.records`)."""

from __future__ import annotations

import sqlite3
from typing import Final

from codex_proxy.store import records
from codex_proxy.store.rows import checksum
from codex_proxy.store.sqlite.statements import ask, put_webhooks
from codex_proxy.store.values import NotStored, Record, RecordWrite

MARK: Final = "UPDATE records SET deleted = 1, busy = 0, id = id || '#' || seq WHERE seq = ?"
"""The SQL that marks the record of a row as deleted, and frees its id."""
_TOUCH: Final = """
WITH RECURSIVE up (seq) AS (
    SELECT parent FROM records WHERE seq = ?1 AND parent IS NOT NULL
    UNION ALL
    SELECT parent FROM up JOIN records USING (seq) WHERE parent IS NOT NULL
)
UPDATE records SET touched = ?2 WHERE seq IN (SELECT seq FROM up)"""


def write(
    connection: sqlite3.Connection,
    owner: str,
    given: RecordWrite,
    now: float,
) -> None:
    """Writes records, each at most once, and webhooks; marks other records as deleted. Raises `NotStored`; the caller
    rolls back.
    """
    require = given.require
    if require is not None and ask(connection, records.row_of(owner, *require)) is None:
        raise NotStored("record", require[1])
    parents: dict[str, int | None] = {"": None}
    rows: dict[int | None, int] = {}
    for each in given.written:
        if each.parent not in parents:
            parents[each.parent] = _parent(connection, owner, each.parent)
        row, parent = _put(connection, owner, each, parents[each.parent], now)
        rows[parent] = row
    for parent, row in rows.items():  # one of those below each parent, because they have the same rows above
        if parent is not None:
            connection.execute(_TOUCH, (row, now))
    for kind, id in given.gone:
        mark_deleted(connection, owner, kind, id)
    put_webhooks(connection, given.webhooks)


def _parent(connection: sqlite3.Connection, owner: str, id: str) -> int:
    row = ask(connection, records.parent_row(owner, id))
    if row is None:
        raise NotStored("record", id)
    return row


def _put(
    connection: sqlite3.Connection, owner: str, record: Record, parent: int | None, now: float
) -> tuple[int, int | None]:
    """Adds or replaces a record. Returns its row and its parent's."""
    while True:
        added = connection.execute(
            "INSERT INTO records (owner, kind, id, parent, created, touched, busy, json_sum, json)"
            " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING",
            (owner, record.kind, record.id, parent, record.created, now, record.busy,
             checksum(record.json), record.json),
        )  # fmt: skip
        if added.rowcount:
            assert added.lastrowid is not None
            return added.lastrowid, parent
        row = ask(connection, records.row_of(owner, record.kind, record.id))
        if row is not None:
            break
        # It is below a deleted record, and its row is still to be removed.
        (dead,) = connection.execute(
            "SELECT seq FROM records WHERE owner = ? AND kind = ? AND id = ?", (owner, *record.key)
        ).fetchone()
        connection.execute(MARK, (dead,))
    connection.execute(
        "UPDATE records SET touched = ?, busy = ?, json_sum = ?, json = ? WHERE seq = ?",
        (now, record.busy, checksum(record.json), record.json, row),
    )
    return row, connection.execute("SELECT parent FROM records WHERE seq = ?", (row,)).fetchone()[0]


def mark_deleted(connection: sqlite3.Connection, owner: str, kind: str, id: str) -> bool:
    """Marks a record, and frees its id. Returns False if there is none."""
    row = ask(connection, records.row_of(owner, kind, id))
    if row is None:
        return False
    connection.execute(MARK, (row,))
    return True
