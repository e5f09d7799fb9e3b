"""A checksum for each row, so that damaged data is never returned: a digest of an item, which also finds equal ones,
and a CRC-32 of other rows. Both detect accidents, not tampering.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple, TypeAlias

from codex_proxy.store.values import StoreDamaged

ROWS_AT_ONCE: Final = 200
"""Maximum rows that are checked in one read, which takes some ms."""


def checksum(data: object) -> int:
    """Returns the CRC-32 of bytes; -1 for another type, which is damage."""
    return zlib.crc32(data) if isinstance(data, bytes) else -1


def item_digest(json: object, raw: object) -> bytes:
    """Returns the digest of JSON and raw form; empty if one is not bytes, which is damage."""
    if not (isinstance(json, bytes) and isinstance(raw, bytes)):
        return b""
    length = len(json).to_bytes(8, "big")
    return blake2b(length + json + raw, digest_size=16).digest()


def verify(data: bytes, stored: int, what: str) -> bytes:
    """Returns `data`; raises `StoreDamaged`, naming it `what`, if its checksum is not `stored`."""
    if checksum(data) != stored:
        raise damage_error(what)
    return data


def damage_error(what: str) -> StoreDamaged:
    return StoreDamaged(
        f"{what} in the store is damaged: its checksum does not match; see `codex-proxy store check`"
    )


def _checksums_match(*bodies_and_sums: Any) -> bool:
    pairs = zip(bodies_and_sums[::2], bodies_and_sums[1::2], strict=True)
    return all(checksum(data) == stored for data, stored in pairs)


class CheckedTable(NamedTuple):
    """A table whose rows have checksums, in SQL of all engines. `what` names a row in errors."""

    what: str
    columns: str
    """The key, the id for error messages, and the arguments of `sound`."""
    source: str
    """The table with its joins, in SQL."""
    key: tuple[str, ...]
    sound: Callable[..., bool] = _checksums_match
    """Returns whether a row is undamaged."""

    @property
    def first_key(self) -> tuple[int, ...]:
        """A key that sorts before every row."""
        return (-1,) * len(self.key)

    @property
    def sql(self) -> str:
        """The statement that selects the rows after a key. Its parameters are this key and the most rows to return."""
        *after, limit = (f"?{number}" for number in range(1, len(self.key) + 2))
        key = ", ".join(self.key)
        where = f"({key}) > ({', '.join(after)})"
        return f"SELECT {self.columns} FROM {self.source} WHERE {where} ORDER BY {key} LIMIT {limit}"

    def check(self, rows: Iterable[Sequence[Any]]) -> CheckedPart:
        """Returns the number of rows, the names of damaged ones, and the last key."""
        count, found, key = 0, [], self.first_key
        for row in rows:
            count += 1
            key, (id, *bodies) = tuple(row[: len(self.key)]), row[len(self.key) :]
            if not self.sound(*bodies):
                found.append(f"{self.what} {id.hex().upper() if isinstance(id, bytes) else id}")
        return count, found, key


def _is_item(json: object, raw: object, digest: object) -> bool:
    return item_digest(json, raw) == digest


TABLES: Final = (
    CheckedTable("the item", "seq, id, json, raw, digest", "@items", ("seq",), _is_item),
    CheckedTable(
        "the response",
        "response, id, json, json_sum, recovery, recovery_sum",
        "@response_bodies JOIN @responses ON seq = response",
        ("response",),
    ),
    CheckedTable(
        "an event of the response",
        "response, number, id, data, data_sum",
        "@frames JOIN @responses ON seq = response",
        ("response", "number"),
    ),
    CheckedTable(
        "the metadata of the conversation", "seq, id, metadata, metadata_sum", "@conversations", ("seq",)
    ),
    CheckedTable("the tool step", "seq, key, value, value_sum", "@steps", ("seq",)),
)

CheckedPart: TypeAlias = tuple[int, list[str], tuple[int, ...]]
"""What `CheckedTable.check` returns."""
