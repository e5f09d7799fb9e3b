"""Applies the rules of `store.retention`, and limits the number of chains (`trim`) in each write that may add one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping
from typing import Final

from codex_proxy.store.queries import Kind
from codex_proxy.store.retention import NOTHING, OBJECTS_AT_ONCE, ROWS_AT_ONCE, Rule
from codex_proxy.store.sqlite import conversations, removal, responses
from codex_proxy.store.sqlite.migration import version_of
from codex_proxy.store.values import PruneResult

_LAST_OF_CHAIN: Final = "children = 0 AND unfinished = 0 AND deleted = 0 AND conversation_id IS NULL"


def sizes(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Returns the version of the tables, the bytes in use, and the bytes of free pages."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return version_of(connection), (pages - free) * size, free * size


def apply(connection: sqlite3.Connection, rule: Rule) -> PruneResult:
    """Applies a rule in one write. Returns how much it removed; nothing is left to remove if that is 0."""
    if rule.max_bytes is not None and sizes(connection)[1] <= rule.max_bytes:
        return NOTHING
    if rule.max_count is not None:
        return _remove_excess(connection, rule.before, rule.max_count)
    return _REMOVERS[rule.what](connection, rule.before)


def trim(connection: sqlite3.Connection, limit: int, in_use: Collection[tuple[str, str]]) -> None:
    """Removes the oldest chains above `limit`, as far as one write may, but for those `in_use`."""
    budget = removal.Budget(removal.PIECE)
    for _ in range(OBJECTS_AT_ONCE):
        count = connection.execute(f"SELECT count(*) FROM responses WHERE {_LAST_OF_CHAIN}").fetchone()[0]
        if count <= limit:
            return
        oldest_first = connection.execute(
            f"SELECT owner, id FROM responses WHERE {_LAST_OF_CHAIN} ORDER BY created, seq LIMIT ?",
            (len(in_use) + 1,),
        )
        oldest = next((row for row in oldest_first.fetchall() if tuple(row) not in in_use), None)
        if oldest is None:
            return
        responses.mark_deleted(connection, *oldest)
        if removal.sweep(connection, budget):
            return


# --- the jobs -----------------------------------------------------------------------------------


def _remove_steps(connection: sqlite3.Connection, before: float) -> PruneResult:
    deleted = connection.execute(
        "DELETE FROM steps WHERE seq IN (SELECT seq FROM steps WHERE created <= ? ORDER BY created LIMIT ?)",
        (before, ROWS_AT_ONCE),
    )
    return PruneResult(steps=deleted.rowcount)


def _remove_usage(connection: sqlite3.Connection, before: float) -> PruneResult:
    deleted = connection.execute(
        "DELETE FROM usage WHERE (owner, hour, model) IN"
        " (SELECT owner, hour, model FROM usage WHERE hour < ? LIMIT ?)",
        (before, ROWS_AT_ONCE),
    )
    return PruneResult(usage=deleted.rowcount)


def _remove_frames(connection: sqlite3.Connection, before: float) -> PruneResult:
    row = connection.execute(
        "SELECT seq FROM responses WHERE background = 1 AND unfinished = 0 AND created <= ?"
        " AND EXISTS (SELECT 1 FROM frames WHERE response = seq) ORDER BY created LIMIT 1",
        (before,),
    ).fetchone()
    if row is None:
        return NOTHING
    deleted = connection.execute(
        "DELETE FROM frames WHERE response = ? AND number IN"
        " (SELECT number FROM frames WHERE response = ? ORDER BY number LIMIT ?)",
        (row[0], row[0], ROWS_AT_ONCE),
    )
    return PruneResult(frames=deleted.rowcount)


def _oldest(connection: sqlite3.Connection, kind: Kind, before: float) -> tuple[float, str, str] | None:
    row: tuple[float, str, str] | None = connection.execute(_OLDEST[kind], (before,)).fetchone()
    return row


def _remove(
    connection: sqlite3.Connection, kind: Kind, before: float, limit: int = OBJECTS_AT_ONCE
) -> PruneResult:
    budget, removed, more = removal.Budget(removal.PIECE), 0, False
    while removed < limit and not more and (oldest := _oldest(connection, kind, before)):
        _MARKS[kind](connection, *oldest[1:])
        removed, more = removed + 1, removal.sweep(connection, budget)
    return PruneResult(**{f"{kind}s": removed})


def _remove_excess(connection: sqlite3.Connection, before: float, limit: int) -> PruneResult:
    count = connection.execute("SELECT count(*) FROM responses").fetchone()[0]
    return _remove(connection, "response", before, max(0, min(count - limit, OBJECTS_AT_ONCE)))


def _remove_one(connection: sqlite3.Connection, before: float) -> PruneResult:
    # Only one, because sizes differ much and the caller compares the total again.
    found = [(*oldest, kind) for kind in _MARKS if (oldest := _oldest(connection, kind, before))]
    if not found:
        return NOTHING
    _, owner, id, kind = min(found, key=lambda each: each[0])
    _MARKS[kind](connection, owner, id)
    return PruneResult(**{f"{kind}s": 1})


_OLDEST: Final[Mapping[Kind, str]] = {
    "response": "SELECT created, owner, id FROM responses"
    " WHERE children = 0 AND unfinished = 0 AND created <= ? AND deleted = 0 ORDER BY created, seq LIMIT 1",
    "conversation": "SELECT touched, owner, id FROM conversations WHERE touched <= ? AND deleted = 0"
    " ORDER BY touched, seq LIMIT 1",
}
_MARKS: Final[Mapping[Kind, removal.Mark]] = {
    "response": responses.mark_deleted,
    "conversation": conversations.mark_deleted,
}

_REMOVERS: Final[Mapping[str, Callable[[sqlite3.Connection, float], PruneResult]]] = {
    "steps": _remove_steps,
    "frames": _remove_frames,
    "usage": _remove_usage,
    "responses": lambda connection, before: _remove(connection, "response", before),
    "conversations": lambda connection, before: _remove(connection, "conversation", before),
    "objects": _remove_one,
}
