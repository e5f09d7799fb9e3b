"""The SQL that several parts of the store share: what `store.queries` leaves to the engine, the parts of the statements
that write items, and what their results mean.

The expressions of a statement see the rows as they were when it began, except those that they lock, so what others may
change meanwhile is locked. Nothing is written unless `permitted` has a row.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import asyncpg

from codex_proxy.parts.machines.postgresql.database import UNDONE_TRIES, Database, Row
from codex_proxy.parts.machines.postgresql.leases import PostgresLeases
from codex_proxy.parts.machines.postgresql.team import PostgresTeam
from codex_proxy.store.queries import Query, SqlDialect
from codex_proxy.store.rows import ITEM_COLUMNS, item_digest
from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    NotStored,
    StoreConflict,
    StoredItem,
    StoreUnavailable,
    UnsureWrite,
    turn_lost,
)

SCHEMA: Final = "codex_proxy."

CHAIN: Final = """
WITH RECURSIVE part (chain) AS (
    SELECT chain || seq FROM codex_proxy.responses WHERE owner = $1 AND id = $2 AND NOT deleted
    UNION ALL
    SELECT earlier.chain FROM part JOIN codex_proxy.responses AS earlier ON earlier.seq = part.chain[1]
    WHERE cardinality(earlier.chain) > 0
), chain AS (
    SELECT unnest(chain) AS seq FROM part
)"""
"""The SQL for the rows of a chain. If a chain is longer than an array, the array's first response has an array with
those before it.
"""
# By nested loops, whatever the planner thinks of tables that it has no statistics of: a chain is a small part of all.
HELD: Final = """
LEFT JOIN LATERAL (
    SELECT side, position, item FROM codex_proxy.response_items WHERE response = chain.seq OFFSET 0
) AS held ON true LEFT JOIN LATERAL (
    SELECT * FROM codex_proxy.items WHERE items.seq = held.item OFFSET 0
) AS items ON true"""
"""The SQL for the items of the rows of a chain."""
CONTEXT: Final = f"""{CHAIN}
SELECT responses.id, side, {ITEM_COLUMNS} FROM chain CROSS JOIN LATERAL (
    SELECT responses.id FROM codex_proxy.responses WHERE responses.seq = chain.seq OFFSET 0
) AS responses {HELD}
ORDER BY chain.seq, side, position"""

UNCONTINUED: Final = (
    "NOT EXISTS (SELECT FROM codex_proxy.responses AS child WHERE child.parent = responses.seq)"
)

DIALECT: Final = SqlDialect(
    prefix=SCHEMA,
    parameter="$",
    listed=r"$\1",
    chain=CHAIN,
    context=CONTEXT,
    # As Latin-1 every byte is a character, and "C" has lower case for ASCII only. What is searched for remains bytes,
    # because it may have a character 0.
    has_text="""position(?3 in convert_to(lower(convert_from({0}, 'LATIN1') COLLATE "C"), 'LATIN1')) > 0""",
    as_bytes="convert_to({0}, 'UTF8')",
    ended=f"NOT unfinished AND {UNCONTINUED}",
)


T = TypeVar("T")

FEW_ROWS: Final = 20
"""Maximum rows that are converted on the event loop; more would hold it up."""

ENTRIES: Final = """
given AS (
    SELECT * FROM unnest({0}::smallint[], {1}::integer[], {2}::text[], {3}::bytea[], {4}::float8[], {5}::bytea[],
        {6}::bytea[]) AS given (side, position, id, digest, created, json, raw)
), known AS (
    SELECT seq, id, digest FROM codex_proxy.items
    WHERE owner = $1 AND (id, digest) IN (SELECT id, digest FROM given)
    FOR KEY SHARE
), kept AS (
    INSERT INTO codex_proxy.items (owner, id, digest, created, json, raw)
    SELECT DISTINCT ON (id, digest) $1, id, digest, created, json, raw FROM given, permitted
    WHERE (id, digest) NOT IN (SELECT id, digest FROM known)
    ORDER BY id, digest
    ON CONFLICT (owner, id, digest) DO UPDATE SET created = items.created
    RETURNING seq, id, digest
), entries AS (
    SELECT side, position, held.seq AS item, given.id AS item_id, octet_length(json) > 0 AS visible,
        octet_length(json) + octet_length(raw) AS size
    FROM given JOIN (SELECT * FROM known UNION ALL SELECT * FROM kept) AS held USING (id, digest)
)"""
"""The SQL that stores the items of `arrays_of` (seven parameters), and selects their rows. It locks items that are
stored already, so that they are not removed meanwhile. All statements add items in one order, so that two that add the
same ones do not wait for each other.
"""

CONVERSATION: Final = """
conversation AS (
    SELECT seq, next_position, items, bytes FROM codex_proxy.conversations
    WHERE owner = $1 AND id = {0} AND NOT deleted FOR NO KEY UPDATE
)"""
"""The SQL for the conversation with the id in a parameter, which it locks."""

TURN: Final = """
turn AS (
    SELECT FROM codex_proxy.conversation_turns JOIN codex_proxy.conversations ON conversation = seq
    WHERE owner = $1 AND id = {id} AND NOT deleted AND epoch = {epoch} AND node = {node}
    FOR SHARE OF conversation_turns
)"""
"""The SQL for the lease of the conversation's turn that writes. It stays locked, so that no other turn can begin, and
read what was before this write, until the write is committed.
"""
IN_TURN: Final = "{0}::bigint IS NULL OR EXISTS (SELECT FROM turn) AS in_turn"
"""The SQL for whether the turn has its lease."""

LISTED: Final = """
listed AS (
    INSERT INTO codex_proxy.conversation_items (conversation, position, item, item_id, visible)
    SELECT seq, next_position + row_number() OVER (ORDER BY side, position) - 1, item, item_id, visible
    FROM {new}, conversation, permitted
), counted AS (
    UPDATE codex_proxy.conversations SET version = conversations.version + 1, touched = {now},
        next_position = conversations.next_position + added.items,
        items = conversations.items + added.items, bytes = conversations.bytes + added.bytes
    FROM conversation, permitted,
        (SELECT count(*) AS items, coalesce(sum(size), 0)::bigint AS bytes FROM {new}) AS added
    WHERE conversations.seq = conversation.seq
)"""
"""The SQL that appends the entries `{new}` to the locked conversation."""

END_TURN: Final = (
    """
new AS (
    SELECT DISTINCT ON (item_id) * FROM {held} WHERE item_id NOT IN (
        SELECT item_id FROM codex_proxy.conversation_items WHERE conversation = (SELECT seq FROM conversation)
    ) ORDER BY item_id, side, position
),"""
    + LISTED
)
"""The SQL that appends the entries `{held}`, without those that the conversation has already."""


def arrays_of(*sides: tuple[int, Sequence[StoredItem]]) -> list[list[Any]]:
    """Returns seven columns of arrays for the items of a response's sides: its input and output."""
    rows = [
        (side, position, item.id, item_digest(item.json, item.raw), item.created, item.json, item.raw)
        for side, items in sides
        for position, item in enumerate(items)
    ]
    return [list(column) for column in zip(*rows, strict=True)] if rows else [[] for _ in range(7)]


def placeholders(first: int, count: int) -> Iterable[str]:
    """Returns the placeholders of `count` parameters, from number `first` on: `$1`, `$2`."""
    return (f"${number}" for number in range(first, first + count))


def check_conversation(row: Row, id: str) -> None:
    """Checks the row of a statement about a conversation. Raises `NotStored` or `StoreConflict` if it says so."""
    if not row["has_conversation"]:
        raise NotStored("conversation", id)
    if not row["in_turn"]:
        raise turn_lost(id)


class StorePart(Store):
    """The connections and helpers of all parts of the store."""

    _dialect = DIALECT
    _database: Database
    leases: PostgresLeases
    team: PostgresTeam

    async def _ask(self, query: Query[T]) -> T:
        rows = await self._database.read(DIALECT.write(query.sql), *query.values)
        if len(rows) <= FEW_ROWS and not query.is_slow:
            return query.convert(iter(rows))
        return await asyncio.to_thread(query.convert, iter(rows))

    async def _ask_both(self, one: Query[T], other: Query[T]) -> tuple[T, T]:
        return await self._ask(one), await self._ask(other)

    async def _write_row(
        self,
        sql: str,
        values: Sequence[object],
        taken: Mapping[str, str],
        is_stored: Callable[[], Awaitable[bool]],
    ) -> Row | None:
        """Runs a statement and returns its row; None if the connection was lost and `is_stored` says that it was
        committed. Raises `StoreConflict` if an id is taken: `taken` has a text for each table where that may be; and
        `UnsureWrite` if `is_stored` cannot be asked.
        """
        for _ in range(UNDONE_TRIES):
            try:
                (row,) = await self._database.write(sql, *values)
            except UnsureWrite as unsure:
                try:
                    if await is_stored():
                        return None
                except StoreUnavailable:
                    raise unsure from None
            except asyncpg.UniqueViolationError as error:
                if error.table_name in taken:
                    raise StoreConflict("id_taken", taken[error.table_name]) from error
            else:
                return row
        raise StoreUnavailable(f"the store {self._database.location} has too many writers")
