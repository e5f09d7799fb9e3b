"""Compares every row of a store that has a checksum with it, in small reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from codex_proxy.store.checksums import checksum, item_digest
from codex_proxy.store.store import Store
from codex_proxy.store.tables import TABLES, CopiedTable, Row
from codex_proxy.store.values import CheckResult

CHECKED: Final = {
    "items": "the item",
    "response_bodies": "the response",
    "frames": "an event of the response",
    "conversations": "the metadata of the conversation",
    "steps": "the tool step",
}
"""The tables whose rows have checksums, and what a row is called in messages."""


async def check(store: Store) -> CheckResult:
    rows, damaged = 0, []
    for table in filter(lambda table: table.name in CHECKED, TABLES):
        last = None
        while part := await rows_after(store, table, last):
            for last in part:
                row = dict(zip(table.columns, last, strict=True))
                if not _is_sound(row):
                    damaged.append(f"{CHECKED[table.name]} {await _id_of(row, store)}")
            rows += len(part)
    return CheckResult(rows, tuple(damaged))


async def rows_after(source: Store, table: CopiedTable, last: Row | None) -> Sequence[Row]:
    """Returns the next rows behind `last` (None: the first ones), `at_once` of them."""
    if last is None:
        return await source.rows_from(table, None, table.at_once)
    key = last[: len(table.key)]
    found = await source.rows_from(table, key, table.at_once + 1)
    return [row for row in found if row[: len(key)] != key]  # `last` may have been deleted since


def _is_sound(row: Mapping[str, Any]) -> bool:
    if "digest" in row:
        return bool(row["digest"] == item_digest(row["json"], row["raw"]))
    sums = [name for name in row if name.endswith("_sum")]
    return all(checksum(row[name.removesuffix("_sum")]) == row[name] for name in sums)


async def _id_of(row: Mapping[str, Any], store: Store) -> object:
    if "response" in row:
        [table] = (table for table in TABLES if table.name == "responses")
        found = await store.rows_from(table, (row["response"],), 1)
        ids = {seq: id for seq, _, id, *_ in found}
        return ids.get(row["response"], row["response"])  # it may have been deleted since
    return row["id"] if "id" in row else row["key"].hex().upper()
