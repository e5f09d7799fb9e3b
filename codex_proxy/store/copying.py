"""Copies a store into another one of any engine: all rows, with their numbers and checksums, in the order of their
keys, so that an interrupted copy goes on where it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from codex_proxy.store.store import Store
from codex_proxy.store.tables import TABLES, CopiedTable, Row
from codex_proxy.store.values import StoreRefused


async def copy(source: Store, target: Store, on_copied: Callable[[str, int], object]) -> int:
    """Copies what the target does not have, and returns how many rows. Calls `on_copied` with a table and its number of
    copied rows. Raises `StoreRefused`, before any change, if the target has other data.
    """
    lasts = [await target.last_row(table) for table in TABLES]
    for table, last in zip(TABLES, lasts, strict=True):
        if last is not None:
            await _require_same(source, table, last)
    total = 0
    for table, last in zip(TABLES, lasts, strict=True):
        copied = 0
        while rows := await rows_after(source, table, last):
            await target.add_rows(table, rows)
            last, copied = rows[-1], copied + len(rows)
            on_copied(table.name, copied)
        total += copied
    return total


async def _require_same(source: Store, table: CopiedTable, last: Row) -> None:
    found = await source.rows_from(table, last[: len(table.key)], 1)
    if not found or list(found[0]) != list(last):
        raise StoreRefused(
            f"the target has {table.name} that are not of the source; copy into an empty store, or into one to which "
            "a copy of this source was begun and that no server has used"
        )


async def rows_after(source: Store, table: CopiedTable, last: Row | None) -> Sequence[Row]:
    """Returns the next rows behind `last` (None: the first ones), `at_once` of them."""
    if last is None:
        return await source.rows_from(table, None, table.at_once)
    key = last[: len(table.key)]
    found = await source.rows_from(table, key, table.at_once + 1)
    return [row for row in found if row[: len(key)] != key]  # `last` may have been deleted since
