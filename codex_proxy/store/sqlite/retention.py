"""Removes objects that are too old or too many, in writes so small that turns do not wait.

First what is too old, then responses above their number; then, while the store is too large, entries of the step
memory, stream events, and the oldest responses and least recently used conversations. A chain is removed from its end.
Objects younger than `Retention.spared` stay. The number of chains is limited by each write that may add one (`trim`).
"""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable, Callable, Collection, Iterator
from functools import partial
from typing import Final, TypeAlias

from codex_proxy.store.interface import Pruned, Retention
from codex_proxy.store.sqlite import conversations, keyed_rows, removal, responses

Job: TypeAlias = Callable[[sqlite3.Connection], Pruned]
"""One small write; returns how much it removed, nothing at the end."""

OBJECTS_AT_ONCE: Final = 50
"""The most objects that one write removes (fewer with more rows than `removal.PIECE`), in some ms."""
ROWS_AT_ONCE: Final = 1000
"""The most remembered steps or frames that one write removes."""

NOTHING: Final = Pruned()
_LAST_OF_CHAIN: Final = "children = 0 AND unfinished = 0 AND deleted = 0 AND conversation_id IS NULL"


def used_bytes(connection: sqlite3.Connection) -> int:
    """Returns the bytes in use, without free pages."""
    pages, free, size = (
        connection.execute(f"PRAGMA {name}").fetchone()[0]
        for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


async def prune(
    run: Callable[[Job], Awaitable[Pruned]],
    sweep: Callable[[], Awaitable[None]],
    retention: Retention,
    step_age: float,
    now: float,
) -> Pruned:
    """Removes what `retention` does not permit at `now` (seconds since 1970), and steps older than `step_age` seconds.
    Returns how many. `run` executes a job in one write; `sweep` removes the rows of marked objects.
    """
    total = NOTHING
    await sweep()
    for job in _jobs(retention, step_age, now):
        while (gone := await run(job)) != NOTHING:
            total = _sum(total, gone)
            await sweep()
    return total


def _jobs(retention: Retention, step_age: float, now: float) -> Iterator[Job]:
    yield partial(_steps, before=now - step_age)
    yield partial(_frames, before=now - retention.frames_age)
    if retention.usage_age is not None:
        yield partial(_usage, before=now - retention.usage_age)
    if retention.age is not None:
        yield partial(_responses, before=now - retention.age)
    if retention.conversation_age is not None:
        yield partial(_conversations, before=now - retention.conversation_age)
    spared_since = now - retention.spared
    if retention.max_responses is not None:
        yield partial(_too_many, before=spared_since, limit=retention.max_responses)
    if retention.max_bytes is not None:
        for job in (_steps, _frames, _oldest_objects):
            yield partial(_too_much, job=partial(job, before=spared_since), limit=retention.max_bytes)


def _sum(one: Pruned, other: Pruned) -> Pruned:
    return Pruned(
        responses=one.responses + other.responses,
        conversations=one.conversations + other.conversations,
        frames=one.frames + other.frames,
        steps=one.steps + other.steps,
        usage=one.usage + other.usage,
    )


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


def _too_much(connection: sqlite3.Connection, job: Job, limit: int) -> Pruned:
    return job(connection) if used_bytes(connection) > limit else NOTHING


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
