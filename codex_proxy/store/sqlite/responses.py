"""SQL for responses, their items, and their chains. A row refers to the response that it continues, and counts those
that continue it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from codex_proxy.store.leases import Key
from codex_proxy.store.rows import INPUT_SIDE, ITEM_COLUMNS, OUTPUT_SIDE, checksum, item_of
from codex_proxy.store.sqlite import conversations, statements
from codex_proxy.store.sqlite.statements import CHAIN, ListEntry, forget, keep, row_of
from codex_proxy.store.values import (
    UNFINISHED,
    ContextLimits,
    Frame,
    NotFinished,
    NotStored,
    ResponseUpdate,
    StoreConflict,
    StoredItem,
    StoredResponse,
)


def add(
    connection: sqlite3.Connection,
    response: StoredResponse,
    input: Sequence[StoredItem],
    output: Sequence[StoredItem],
    append: str | None,
    now: float,
    frames: Sequence[Frame] = (),
) -> None:
    owner = response.owner
    parent = row_of(connection, "response", owner, response.previous_id) if response.previous_id else None
    try:
        cursor = connection.execute(
            "INSERT INTO responses (owner, id, parent, previous_id, conversation_id, status, background,"
            " created, unfinished) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                owner,
                response.id,
                parent,
                response.previous_id,
                response.conversation_id,
                response.status,
                response.background,
                response.created,
                response.is_running,
            ),
        )
    except sqlite3.IntegrityError as error:
        raise StoreConflict("id_taken", f"there is a response {response.id!r} already") from error
    row = cursor.lastrowid
    assert row is not None
    if parent is not None:
        connection.execute("UPDATE responses SET children = children + 1 WHERE seq = ?", (parent,))
    connection.execute(
        "INSERT INTO response_bodies (response, json, recovery, json_sum, recovery_sum) VALUES (?, ?, ?, ?, ?)",
        (row, response.json, response.recovery, checksum(response.json), checksum(response.recovery)),
    )
    held = _put(connection, owner, row, INPUT_SIDE, input) + _put(connection, owner, row, OUTPUT_SIDE, output)
    if append is not None:
        conversations.end_turn(connection, owner, append, held, now)
    _put_frames(connection, row, frames)


def update(connection: sqlite3.Connection, owner: str, id: str, change: ResponseUpdate, now: float) -> bool:
    found = connection.execute(
        "SELECT seq, status, background FROM responses WHERE owner = ? AND id = ? AND deleted = 0",
        (owner, id),
    ).fetchone()
    if found is None or (change.only_from is not None and found[1] not in change.only_from):
        return False
    row, status = found[0], change.status
    unfinished = bool(found[2]) and status in UNFINISHED
    connection.execute(
        "UPDATE responses SET status = ?, unfinished = ? WHERE seq = ?", (status, unfinished, row)
    )
    connection.execute(
        "UPDATE response_bodies SET json = ?, json_sum = ? WHERE response = ?",
        (change.json, checksum(change.json), row),
    )
    if not unfinished:  # what is finished is never taken up again
        connection.execute(
            "UPDATE response_bodies SET recovery = ?, recovery_sum = ? WHERE response = ?",
            (b"", checksum(b""), row),
        )
    if change.output is not None:
        before = _rows(connection, row, OUTPUT_SIDE)
        connection.execute("DELETE FROM response_items WHERE response = ? AND side = ?", (row, OUTPUT_SIDE))
        _put(connection, owner, row, OUTPUT_SIDE, change.output)
        forget(connection, before)
    if change.append is not None:
        conversations.end_turn(connection, owner, change.append, _held_entries(connection, row), now)
    statements.put_webhooks(connection, change.webhooks)
    _put_frames(connection, row, change.frames)
    return True


def unfinished_keys(connection: sqlite3.Connection) -> list[Key]:
    """Returns unfinished background responses, oldest first."""
    return connection.execute("SELECT owner, id FROM responses WHERE unfinished = 1 ORDER BY seq").fetchall()


def scan(
    connection: sqlite3.Connection,
    owner: str,
    id: str,
    limits: ContextLimits,
    visit: Callable[[StoredItem], object],
) -> None:
    """Calls `visit` with each item of the chain, oldest first. Raises `NotStored`, `NotFinished`, `ContextTooLarge`."""
    found = connection.execute(
        "SELECT seq, unfinished FROM responses WHERE owner = ? AND id = ? AND deleted = 0", (owner, id)
    ).fetchone()
    if found is None:
        raise NotStored("response", id)
    if found[1]:
        raise NotFinished(id)
    items, size = connection.execute(
        f"{CHAIN} SELECT count(item), coalesce(sum(length(json) + length(raw)), 0) FROM chain"
        " JOIN response_items ON response = chain.seq JOIN items ON items.seq = item",
        (owner, id),
    ).fetchone()
    limits.check(items, size)
    # Turn by turn: ordered all at once, SQLite would hold every body in its sorter.
    for turn in connection.execute(f"{CHAIN} SELECT seq FROM chain ORDER BY seq", (owner, id)).fetchall():
        for each in connection.execute(
            f"SELECT {ITEM_COLUMNS} FROM response_items JOIN items ON items.seq = item"
            " WHERE response = ? ORDER BY side, position",
            turn,
        ):
            visit(item_of(each))


def mark_deleted(connection: sqlite3.Connection, owner: str, id: str) -> bool:
    """Marks a response. Returns False if there is none."""
    found = connection.execute(
        "SELECT seq FROM responses WHERE owner = ? AND id = ? AND deleted = 0", (owner, id)
    ).fetchone()
    if found is None:
        return False
    connection.execute("UPDATE responses SET deleted = 1, unfinished = 0 WHERE seq = ?", found)
    connection.execute("DELETE FROM response_bodies WHERE response = ?", found)
    return True


def _put(
    connection: sqlite3.Connection, owner: str, row: int, side: int, items: Sequence[StoredItem]
) -> list[ListEntry]:
    held = [keep(connection, owner, item) for item in items]
    try:
        connection.executemany(
            "INSERT INTO response_items VALUES (?, ?, ?, ?, ?, ?)",
            ((row, side, position, each.row, each.id, each.visible) for position, each in enumerate(held)),
        )
    except sqlite3.IntegrityError as error:
        raise StoreConflict("id_taken", "two items of one response have the same id") from error
    return held


def _rows(connection: sqlite3.Connection, row: int, side: int) -> list[int]:
    found = connection.execute(
        "SELECT item FROM response_items WHERE response = ? AND side = ?", (row, side)
    ).fetchall()
    return [each[0] for each in found]


def _held_entries(connection: sqlite3.Connection, row: int) -> list[ListEntry]:
    found = connection.execute(
        "SELECT item, item_id, visible, length(json) + length(raw)"
        " FROM response_items JOIN items ON items.seq = item WHERE response = ? ORDER BY side, position",
        (row,),
    ).fetchall()
    return [ListEntry(item, id, bool(visible), size) for item, id, visible, size in found]


# --- events of background streams ---------------------------------------------------------------


def append_frames(
    connection: sqlite3.Connection, owner: str, response_id: str, frames: Sequence[Frame]
) -> None:
    _put_frames(connection, row_of(connection, "response", owner, response_id), frames)


def _put_frames(connection: sqlite3.Connection, row: int, frames: Sequence[Frame]) -> None:
    connection.executemany(
        "INSERT INTO frames (response, number, data, data_sum) VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING",
        ((row, number, data, checksum(data)) for number, data in frames),
    )
