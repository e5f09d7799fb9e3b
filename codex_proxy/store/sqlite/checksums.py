"""A checksum for each row, so that damaged data is never returned.

Items have a digest, which also finds equal items; other rows have a CRC-32. Both detect accidents, not tampering.
"""

from __future__ import annotations

import sqlite3
import zlib
from collections.abc import Callable
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from codex_proxy.store.interface import StoreDamaged

ROWS_AT_ONCE: Final = 200
"""The most rows checked in one read of some ms, during which the write-ahead log cannot be emptied."""


def checksum(data: object) -> int:
    """Returns the checksum of bytes; -1 for another type, which only damage can cause."""
    return zlib.crc32(data) if isinstance(data, bytes) else -1


def item_digest(json: object, raw: object) -> bytes:
    """Returns the digest of an item's JSON and raw form; empty if one is not bytes, which only damage can cause."""
    if not (isinstance(json, bytes) and isinstance(raw, bytes)):
        return b""
    length = len(json).to_bytes(8, "big")
    return blake2b(length + json + raw, digest_size=16).digest()


def add_function(connection: sqlite3.Connection) -> None:
    """Defines the SQL function `checksum(blob)` on a connection."""
    connection.create_function("checksum", 1, checksum, deterministic=True)


def checked(data: bytes, stored: int, what: str) -> bytes:
    """Returns `data`; raises `StoreDamaged` with the name `what` if its checksum is another."""
    if checksum(data) != stored:
        raise damaged(what)
    return data


def damaged(what: str) -> StoreDamaged:
    return StoreDamaged(
        f"{what} in the store is damaged: its checksum does not match; see `codex-proxy store check`"
    )


class _Table(NamedTuple):
    """How a table is checked. `query` selects rows after a key: the key columns, the id for messages, then the
    arguments of `sound`, which says whether the row is undamaged. `what` names such rows.
    """

    query: str
    first_key: tuple[int, ...]
    """A key that sorts before every row, to begin with."""
    sound: Callable[..., bool]
    what: str


def _checksums_match(*bodies_and_sums: Any) -> bool:
    """Whether each body matches its checksum; the arguments are such pairs."""
    pairs = zip(bodies_and_sums[::2], bodies_and_sums[1::2], strict=True)
    return all(checksum(data) == stored for data, stored in pairs)


TABLES: Final = (
    _Table(
        "SELECT seq, id, json, raw, digest FROM items WHERE seq > ? ORDER BY seq LIMIT ?",
        (0,),
        lambda json, raw, digest: item_digest(json, raw) == digest,
        "the item",
    ),
    _Table(
        "SELECT seq, id, json, json_sum, recovery, recovery_sum FROM response_bodies"
        " JOIN responses ON seq = response WHERE response > ? ORDER BY response LIMIT ?",
        (0,),
        _checksums_match,
        "the response",
    ),
    _Table(
        "SELECT response, number, id, data, data_sum FROM frames JOIN responses ON seq = response"
        " WHERE (response, number) > (?, ?) ORDER BY response, number LIMIT ?",
        (0, -1),
        _checksums_match,
        "an event of the response",
    ),
    _Table(
        "SELECT seq, id, metadata, metadata_sum FROM conversations WHERE seq > ? ORDER BY seq LIMIT ?",
        (0,),
        _checksums_match,
        "the metadata of the conversation",
    ),
    _Table(
        "SELECT seq, hex(key), value, value_sum FROM steps WHERE seq > ? ORDER BY seq LIMIT ?",
        (0,),
        _checksums_match,
        "the tool step",
    ),
)
"""All tables whose rows have a checksum."""


def damaged_after(
    connection: sqlite3.Connection, table: _Table, key: tuple[int, ...]
) -> tuple[int, list[str], tuple[int, ...]]:
    """Checks at most `ROWS_AT_ONCE` rows after `key`. Returns their number, the names of damaged ones, and the last
    key.
    """
    rows, found = 0, []
    for row in connection.execute(table.query, (*key, ROWS_AT_ONCE)):
        rows += 1
        key, (id, *bodies) = row[: len(key)], row[len(key) :]
        if not table.sound(*bodies):
            found.append(f"{table.what} {id}")
    return rows, found, key
