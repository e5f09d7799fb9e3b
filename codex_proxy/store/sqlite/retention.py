"""Applies the rules of `store.retention`, and limits the number of chains (`trim`) in each write that may add one."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Collection, Mapping
from typing import Final

from codex_proxy.store.interface import Pruned
from codex_proxy.store.retention import NOTHING, OBJECTS_AT_ONCE, ROWS_AT_ONCE, Rule
from codex_proxy.store.sqlite import conversations, keyed_rows, removal, responses
from codex_proxy.store.sqlite.migrations import version_of

_LAST_OF_CHAIN: Final = "children = 0 AND unfinished = 0 AND deleted = 0 AND conversation_id IS NULL"


def sizes(connection: sqlite3.Connection) -> tuple[int, int, int]:
    """Returns the version of the tables, the bytes in use, and those of free pages."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return version_of(connection), (pages - free) * size, free * size


def apply(connection: sqlite3.Connection, rule: Rule) -> Pruned:
    """Applies a rule in one write. Returns how much it removed, nothing at the end."""
    if rule.max_bytes is not None and sizes(connection)[1] <= rule.max_bytes:
        return NOTHING
    if rule.max_count is not None:
        return _too_many(connection, rule.before, rule.max_count)
    return _REMOVERS[rule.what](connection, rule.before)


def trim(connection: sqlite3.Connection, limit: int, in_use: Collection[tuple[str, str]]) -> None:
    """Removes the chains that were continued the longest time ago until there are at most `limit`, as far as one write
    may. `in_use`: owner and id of responses that a turn is continuing; these stay.
    """
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


def _steps(connection: sqlite3.Connection, before: float) -> Pruned:
    deleted = connection.execute(
        "DELETE FROM steps WHERE seq IN (SELECT seq FROM steps WHERE created <= ? ORDER BY created LIMIT ?)",
        (before, ROWS_AT_ONCE),
    )
    return Pruned(steps=deleted.rowcount)


def _usage(connection: sqlite3.Connection, before: float) -> Pruned:
    return Pruned(usage=keyed_rows.prune_usage(connection, before, ROWS_AT_ONCE))


def _frames(connection: sqlite3.Connection, before: float) -> Pruned:
    """Removes stored events of the oldest response that has ended and was created before `before` (seconds since 1970).
    Returns how many.
    """
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
    return Pruned(frames=deleted.rowcount)


def _responses(connection: sqlite3.Connection, before: float, limit: int = OBJECTS_AT_ONCE) -> Pruned:
    budget = removal.Budget(removal.PIECE)
    for removed in range(limit):
        oldest = _oldest_response(connection, before)
        if oldest is None:
            return Pruned(responses=removed)
        responses.mark_deleted(connection, *oldest[0])
        if removal.sweep(connection, budget):
            return Pruned(responses=removed + 1)
    return Pruned(responses=limit)


def _conversations(connection: sqlite3.Connection, before: float) -> Pruned:
    budget = removal.Budget(removal.PIECE)
    for removed in range(OBJECTS_AT_ONCE):
        oldest = _oldest_conversation(connection, before)
        if oldest is None:
            return Pruned(conversations=removed)
        conversations.mark_deleted(connection, *oldest[0])
        if removal.sweep(connection, budget):
            return Pruned(conversations=removed + 1)
    return Pruned(conversations=OBJECTS_AT_ONCE)


def _too_many(connection: sqlite3.Connection, before: float, limit: int) -> Pruned:
    count = connection.execute("SELECT count(*) FROM responses").fetchone()[0]
    return _responses(connection, before, max(0, min(count - limit, OBJECTS_AT_ONCE)))


def _oldest_objects(connection: sqlite3.Connection, before: float) -> Pruned:
    """Marks one object as deleted, if it is older than `before`: the oldest response or the least recently
    used conversation.
    """
    # Only one, because sizes differ much and the caller compares the total again.
    response = _oldest_response(connection, before)
    conversation = _oldest_conversation(connection, before)
    if response is not None and (conversation is None or response[1] <= conversation[1]):
        responses.mark_deleted(connection, *response[0])
        return Pruned(responses=1)
    if conversation is not None:
        conversations.mark_deleted(connection, *conversation[0])
        return Pruned(conversations=1)
    return NOTHING


def _oldest_response(connection: sqlite3.Connection, before: float) -> tuple[tuple[str, str], float] | None:
    """Returns owner, id and creation time of the oldest response before `before` that no other continues, or None."""
    found = connection.execute(
        "SELECT owner, id, created FROM responses"
        " WHERE children = 0 AND unfinished = 0 AND created <= ? AND deleted = 0"
        " ORDER BY created, seq LIMIT 1",
        (before,),
    ).fetchone()
    return None if found is None else ((found[0], found[1]), found[2])


def _oldest_conversation(
    connection: sqlite3.Connection, before: float
) -> tuple[tuple[str, str], float] | None:
    """Returns owner, id and last use of the least recently used conversation before `before`, or None."""
    found = connection.execute(
        "SELECT owner, id, touched FROM conversations WHERE touched <= ? AND deleted = 0"
        " ORDER BY touched, seq LIMIT 1",
        (before,),
    ).fetchone()
    return None if found is None else ((found[0], found[1]), found[2])


_REMOVERS: Final[Mapping[str, Callable[[sqlite3.Connection, float], Pruned]]] = {
    "steps": _steps,
    "frames": _frames,
    "usage": _usage,
    "responses": _responses,
    "conversations": _conversations,
    "objects": _oldest_objects,
}
"""What removes the rows or objects that a rule names."""
