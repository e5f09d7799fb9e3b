"""Step memory and event frames: two lists of bytes by key, as statements on a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from codex_proxy.store.base import Frame, StepEntry, StoreConflict
from codex_proxy.store.sqlite.items import BEYOND
from codex_proxy.store.sqlite.responses import row_of


def remember(connection: sqlite3.Connection, owner: str, entries: Sequence[StepEntry], now: float) -> None:
    connection.executemany(
        "INSERT INTO steps (owner, key, created, value) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (owner, key) DO UPDATE SET created = excluded.created, value = excluded.value",
        ((owner, entry.key, now, entry.value) for entry in entries),
    )


def recall(
    connection: sqlite3.Connection, owner: str, keys: Sequence[bytes], since: float
) -> dict[bytes, StepEntry]:
    """Those that were remembered after `since`. One prepared statement for each key, one trip for all."""
    found: dict[bytes, StepEntry] = {}
    for key in dict.fromkeys(keys):
        row = connection.execute(
            "SELECT value, created FROM steps WHERE owner = ? AND key = ? AND created > ?",
            (owner, key, since),
        ).fetchone()
        if row is not None:
            found[key] = StepEntry(key, *row)
    return found


def append_frames(
    connection: sqlite3.Connection, owner: str, response_id: str, frames: Sequence[Frame]
) -> None:
    row = row_of(connection, owner, response_id)
    try:
        connection.executemany(
            "INSERT INTO frames VALUES (?, ?, ?)", ((row, frame.number, frame.data) for frame in frames)
        )
    except sqlite3.IntegrityError as error:
        raise StoreConflict("id_taken", "an event with this sequence number is stored already") from error


def frames(
    connection: sqlite3.Connection, owner: str, response_id: str, after: int, limit: int
) -> list[Frame]:
    """A client names `after`: any whole number is taken, though the database's end at 64 bits."""
    rows = connection.execute(
        "SELECT number, data FROM frames WHERE response = ? AND number > ? ORDER BY number LIMIT ?",
        (row_of(connection, owner, response_id), max(-1, min(after, BEYOND)), limit),
    )
    return [Frame(*row) for row in rows]
