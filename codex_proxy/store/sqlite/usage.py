"""Sums of what was spent, as statements on a connection."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from codex_proxy.store.usage import Figures, UsageEntry, UsageQuery, UsageSum

_FIGURES: Final = ("turns", "failed", "estimated", "input", "cached", "output", "reasoning")
_ADD: Final = (
    f"INSERT INTO usage (owner, hour, model, {', '.join(_FIGURES)}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (owner, hour, model) DO UPDATE SET "
    + ", ".join(f"{name} = {name} + excluded.{name}" for name in _FIGURES)
)


def add(connection: sqlite3.Connection, entries: Sequence[UsageEntry]) -> None:
    connection.executemany(
        _ADD,
        (
            (entry.owner, entry.hour, entry.model, *(getattr(entry.figures, name) for name in _FIGURES))
            for entry in entries
        ),
    )


def sums(connection: sqlite3.Connection, query: UsageQuery) -> list[UsageSum]:
    model = "model" if query.by_model else "''"
    whose, wanted = ("''", "owner = ? AND") if query.owner is not None else ("owner", "? IS NULL AND")
    rows = connection.execute(
        f"SELECT hour - hour % ? AS bucket, {whose} AS whose, {model} AS name,"
        f" {', '.join(f'sum({each})' for each in _FIGURES)} FROM usage WHERE {wanted} hour >= ? AND hour < ?"
        " GROUP BY bucket, whose, name ORDER BY bucket, whose, name",
        (query.width, query.owner, query.start, query.end),
    )
    return [
        UsageSum(bucket, name, Figures(**dict(zip(_FIGURES, figures, strict=True))), owner)
        for bucket, owner, name, *figures in rows
    ]


def prune(connection: sqlite3.Connection, before: float, most: int) -> int:
    """Removes at most `most` sums of hours before this time; how many."""
    deleted = connection.execute(
        "DELETE FROM usage WHERE (owner, hour, model) IN"
        " (SELECT owner, hour, model FROM usage WHERE hour < ? LIMIT ?)",
        (before, most),
    )
    return deleted.rowcount
