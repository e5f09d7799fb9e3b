"""Step memory and event frames: two lists of bytes by key, as statements on a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence

from codex_proxy.store.base import Frame, StoreConflict
from codex_proxy.store.sqlite.checksums import checked, checksum
from codex_proxy.store.sqlite.items import BEYOND
from codex_proxy.store.sqlite.responses import row_of


def remember(connection: sqlite3.Connection, owner: str, entries: Mapping[bytes, bytes], now: float) -> None:
    connection.executemany(
        "INSERT INTO steps (owner, key, created, value, value_sum) VALUES (?, ?, ?, ?, ?)"
        " ON CONFLICT (owner, key) DO UPDATE"
        " SET created = excluded.created, value = excluded.value, value_sum = excluded.value_sum",
        ((owner, key, now, value, checksum(value)) for key, value in entries.items()),
    )


def recall(
    connection: sqlite3.Connection, owner: str, keys: Sequence[bytes], since: float
) -> dict[bytes, bytes]:
    """Those that were remembered after `since`. One prepared statement for each key, one trip for all."""
    found: dict[bytes, bytes] = {}
    for key in dict.fromkeys(keys):
        row = connection.execute(
            "SELECT value, value_sum FROM steps WHERE owner = ? AND key = ? AND created > ?",
            (owner, key, since),
        ).fetchone()
        if row is not None:
            found[key] = checked(row[0], row[1], "a tool step")
    return found


def append_frames(
    connection: sqlite3.Connection, owner: str, response_id: str, frames: Sequence[Frame]
) -> None:
    row = row_of(connection, owner, response_id)
    try:
        connection.executemany(
            "INSERT INTO frames (response, number, data, data_sum) VALUES (?, ?, ?, ?)",
            ((row, frame.number, frame.data, checksum(frame.data)) for frame in frames),
        )
    except sqlite3.IntegrityError as error:
        raise StoreConflict("id_taken", "an event with this sequence number is stored already") from error


def frames(
    connection: sqlite3.Connection, owner: str, response_id: str, after: int, limit: int
) -> list[Frame]:
    """A client names `after`: any whole number is taken, though the database's end at 64 bits."""
    rows = connection.execute(
        "SELECT number, data, data_sum FROM frames WHERE response = ? AND number > ? ORDER BY number LIMIT ?",
        (row_of(connection, owner, response_id), max(-1, min(after, BEYOND)), limit),
    )
    what = f"an event of the response {response_id}"
    return [Frame(number, checked(data, stored, what)) for number, data, stored in rows]


def write_and_remove(connection: sqlite3.Connection, size: int) -> None:
    """An entry of nobody's that is gone with the commit, for which the file needs this much room."""
    connection.execute(
        "INSERT INTO steps (owner, key, created, value) VALUES ('', x'', 0, zeroblob(?))", (size,)
    )
    connection.execute("DELETE FROM steps WHERE owner = '' AND key = x''")
