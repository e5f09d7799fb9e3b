"""Copies a store into another one of any engine: all rows, with their numbers and checksums, in the order of their
keys, so that an interrupted copy goes on where it ended.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

from codex_proxy.core.usage_sums import FIGURES
from codex_proxy.store.values import StoreRefused

if TYPE_CHECKING:
    from codex_proxy.store.store import Store

Row: TypeAlias = Sequence[Any]
"""A row's values, in the order of `CopiedTable.columns`."""


class CopiedTable(NamedTuple):
    name: str
    key: tuple[str, ...]
    others: tuple[str, ...]
    """The other columns, but those that an engine fills itself."""
    at_once: int = 500
    """Maximum rows in memory at a time."""

    @property
    def columns(self) -> tuple[str, ...]:
        return self.key + self.others


TABLES: Final = (
    CopiedTable("items", ("seq",), ("owner", "id", "digest", "created", "json", "raw"), at_once=20),
    CopiedTable(
        "responses",
        ("seq",),
        (
            *("owner", "id", "parent", "previous_id", "conversation_id", "status", "background", "created"),
            *("unfinished", "deleted"),
        ),
    ),
    CopiedTable(
        "response_bodies", ("response",), ("json", "json_sum", "recovery", "recovery_sum"), at_once=20
    ),
    CopiedTable("response_items", ("response", "side", "position"), ("item", "item_id", "visible")),
    CopiedTable("frames", ("response", "number"), ("data", "data_sum")),
    CopiedTable(
        "conversations",
        ("seq",),
        (
            *("owner", "id", "created", "touched", "version", "next_position", "metadata", "metadata_sum"),
            *("items", "bytes", "deleted"),
        ),
    ),
    CopiedTable("conversation_items", ("conversation", "position"), ("item", "item_id", "visible")),
    CopiedTable("steps", ("seq",), ("owner", "key", "created", "value", "value_sum"), at_once=20),
    CopiedTable("usage", ("owner", "hour", "model"), FIGURES),
    CopiedTable("webhooks", ("seq",), ("event_id", "url", "body", "tries")),
)
"""The tables, each after those that it refers to."""

FLAGS: Final = frozenset({"background", "unfinished", "deleted", "visible"})
"""Boolean columns, which SQLite has as numbers."""


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


# --- statements (as in `queries`) -----------------------------------------------------------------


def select(table: CopiedTable, *, first: bool) -> str:
    """Returns the SQL statement of `rows_from`: with `first` from the first row, else from a key on. Its parameters
    are the key and the limit.
    """
    count = 0 if first else len(table.key)
    *key, limit = (f"?{number}" for number in range(1, count + 2))
    where = "" if first else f" WHERE ({', '.join(table.key)}) >= ({', '.join(key)})"
    order = ", ".join(table.key)
    return f"SELECT {', '.join(table.columns)} FROM @{table.name}{where} ORDER BY {order} LIMIT {limit}"


def select_last(table: CopiedTable) -> str:
    order = ", ".join(f"{name} DESC" for name in table.key)
    return f"SELECT {', '.join(table.columns)} FROM @{table.name} ORDER BY {order} LIMIT 1"
