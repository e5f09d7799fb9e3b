"""The tables that are copied and checked, and the statements (as in `queries`) that read them in the order of keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from codex_proxy.core.tokens import FIGURES

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
    CopiedTable("frames", ("response", "number"), ("data", "data_sum"), at_once=20),
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
