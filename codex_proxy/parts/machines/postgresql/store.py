"""The store in PostgreSQL: its tables, its parts in one class, and its maintenance.

The files in `migrations` create the tables, in the order of their numbers. A published file never changes.
`codex_proxy.schema` has the version of the tables, and the oldest program that may use them, since servers of two
versions run while they are replaced. So a file only adds; a later one removes, and raises `MIN_COMPATIBLE`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Unpack

import asyncpg
from msgspec.structs import astuple

from codex_proxy.core.keys import Key
from codex_proxy.core.tokens import FIGURES
from codex_proxy.parts.machines.postgresql.conversations import PostgresConversations
from codex_proxy.parts.machines.postgresql.database import Database
from codex_proxy.parts.machines.postgresql.leases import PostgresLeases
from codex_proxy.parts.machines.postgresql.records import PostgresRecords
from codex_proxy.parts.machines.postgresql.removal import USED_BYTES
from codex_proxy.parts.machines.postgresql.responses import CHAIN_OF_CHILD, PostgresResponses
from codex_proxy.parts.machines.postgresql.statements import placeholders
from codex_proxy.parts.machines.postgresql.team import PostgresTeam
from codex_proxy.store.retention import NOTHING_REMOVED
from codex_proxy.store.rows import FLAGS, CopiedTable, Row, checksum
from codex_proxy.store.store import StoreOptions
from codex_proxy.store.usage import UsageEntry
from codex_proxy.store.values import DELIVERY_SECONDS, PendingWebhook, PruneResult, StoreRefused

FILES: Final = sorted((Path(__file__).parent / "migrations").glob("*.sql"))
LATEST_VERSION: Final = len(FILES)
KEYS_VERSION: Final = 3
"""The first version with the table of keys."""
MIN_COMPATIBLE: Final = 1
"""The oldest version of the tables whose programs may use the newest ones."""
LOCK: Final = 0x63787078
"""The number of the advisory lock that lets one server at a time change the tables ("cxpx")."""

_SCHEMA: Final = "SELECT FROM pg_namespace WHERE nspname = 'codex_proxy'"
_TABLES: Final = """
CREATE TABLE codex_proxy.schema (version integer NOT NULL, min_compatible integer NOT NULL);
INSERT INTO codex_proxy.schema VALUES (0, 0);"""


async def migrate(database: Database) -> None:
    """Creates what is missing. Raises `StoreRefused` if the tables are of a newer version that this program does not
    know, or another program's.
    """
    async with database.transaction() as connection:
        await connection.execute("SELECT pg_advisory_xact_lock($1)", LOCK)
        version = await existing_version(connection, database.location)
        if not version:
            # Asked first, because a user who may use the schema need not have the right to create one.
            if not await connection.fetch(_SCHEMA):
                await connection.execute("CREATE SCHEMA codex_proxy")
            await connection.execute(_TABLES)
        for file in FILES[version:]:
            await connection.execute(file.read_text())
        if version < LATEST_VERSION:
            sql = "UPDATE codex_proxy.schema SET version = $1, min_compatible = $2"
            await connection.execute(sql, LATEST_VERSION, MIN_COMPATIBLE)
            # Without statistics the plans for new tables are those for tables of any size.
            await connection.execute(
                "ANALYZE codex_proxy.items, codex_proxy.responses, codex_proxy.response_items"
            )


async def version_of(database: Database) -> int:
    (row,) = await database.read("SELECT version FROM codex_proxy.schema")
    return int(row["version"])


async def existing_version(connection: asyncpg.Connection, location: str) -> int:
    """Returns the version of the tables; 0 if there are none. Raises `StoreRefused` as `migrate` does."""
    if await connection.fetchval("SELECT to_regclass('codex_proxy.schema')") is None:
        if await connection.fetch("SELECT FROM pg_tables WHERE schemaname = 'codex_proxy'"):
            raise StoreRefused(
                f"the schema codex_proxy in {location} is another program's; name another database"
            )
        return 0
    version, min_compatible = await connection.fetchrow(
        "SELECT version, min_compatible FROM codex_proxy.schema"
    )
    if min_compatible > LATEST_VERSION:
        raise StoreRefused(
            f"the store {location} was written by a newer version (its schema is {version}, for programs from"
            f" {min_compatible} on; this one has {LATEST_VERSION}); run that version, or name another database"
        )
    return int(version)


_REMEMBER: Final = """
INSERT INTO codex_proxy.steps (owner, key, created, value, value_sum)
SELECT $1, given.key, $2, given.value, given.value_sum
FROM unnest($3::bytea[], $4::bytea[], $5::bigint[]) AS given (key, value, value_sum) ORDER BY key
ON CONFLICT (owner, key) DO UPDATE
SET created = excluded.created, value = excluded.value, value_sum = excluded.value_sum"""
# In order, since two statements that lock the same rows in another order would wait for each other.
_ADD_USAGE: Final = f"""
INSERT INTO codex_proxy.usage (owner, hour, model, {", ".join(FIGURES)})
SELECT owner, hour, model, {", ".join(f"sum({name})" for name in FIGURES)}
FROM unnest($1::text[], $2::bigint[], $3::text[], {", ".join(f"${n}::bigint[]" for n in range(4, 4 + len(FIGURES)))})
    AS given (owner, hour, model, {", ".join(FIGURES)})
GROUP BY owner, hour, model ORDER BY owner, hour, model
ON CONFLICT (owner, hour, model) DO UPDATE
SET {", ".join(f"{name} = usage.{name} + excluded.{name}" for name in FIGURES)}"""
_CLAIM: Final = """
UPDATE codex_proxy.webhooks SET due = clock_timestamp() + $2::float8 * interval '1 second' WHERE seq IN (
    SELECT seq FROM codex_proxy.webhooks WHERE due <= clock_timestamp() ORDER BY seq LIMIT $1 FOR UPDATE SKIP LOCKED
) RETURNING seq, event_id, url, body, tries, due::text"""
_RETRY: Final = """
UPDATE codex_proxy.webhooks SET tries = $3, due = clock_timestamp() + $4::float8 * interval '1 second'
WHERE event_id = $1 AND url = $2 AND ($5::text IS NULL OR due = $5::text::timestamptz)"""
_DROP: Final = "DELETE FROM codex_proxy.webhooks WHERE event_id = $1 AND url = $2"


PRUNE_LOCK: Final = LOCK + 1
"""The number of the advisory lock that lets one server at a time apply the limits of retention."""

_WRITE: Final = "UPDATE codex_proxy.schema SET version = version"


class PostgresStore(PostgresResponses, PostgresConversations, PostgresRecords):
    """A store that several servers may use."""

    def __init__(self, database: Database, **options: Unpack[StoreOptions]) -> None:
        super().__init__(**options)
        self._database = database
        self.leases = PostgresLeases(database)
        self.team = PostgresTeam(database)

    @classmethod
    async def read_keys(cls, url: str) -> tuple[Key, ...]:
        """Returns the API keys in a database, and changes nothing. Raises what `open` would raise."""
        database = await Database.open(url)
        try:
            async with database.transaction() as connection:
                version = await existing_version(connection, database.location)
            return await PostgresTeam(database).keys() if version >= KEYS_VERSION else ()
        finally:
            await database.close()

    @classmethod
    async def open(cls, url: str, **options: Unpack[StoreOptions]) -> PostgresStore:
        """Connects to a `postgresql://` URL and creates the tables. Raises `StoreRefused` or `StoreUnavailable`, saying
        what to do.
        """
        database = await Database.open(url)
        try:
            await migrate(database)
        except BaseException:
            await database.close()
            raise
        return cls(database, **options)

    # --- rows that are found by a key, and to which no other row refers -------------------------

    async def _save_steps(self, owner: str, entries: Mapping[bytes, bytes]) -> None:
        columns = list(entries), list(entries.values()), [checksum(each) for each in entries.values()]
        await self._database.read(_REMEMBER, owner, self._now(), *columns)

    async def add_usage(self, entries: Sequence[UsageEntry]) -> None:
        rows = [(entry.owner, entry.hour, entry.model, *astuple(entry.figures)) for entry in entries]
        if rows:
            await self._database.write(_ADD_USAGE, *(list(column) for column in zip(*rows, strict=True)))

    async def claim_webhooks(self, limit: int) -> list[PendingWebhook]:
        rows = await self._database.write(_CLAIM, limit, DELIVERY_SECONDS)
        return [PendingWebhook(*columns) for _, *columns in sorted(rows)]

    async def retry_webhook(self, pending: PendingWebhook, delay: float) -> None:
        await self._database.read(_RETRY, pending.event_id, pending.url, pending.tries, delay, pending.claim)

    async def drop_webhook(self, event_id: str, url: str) -> None:
        await self._database.read(_DROP, event_id, url)

    # --- maintenance ----------------------------------------------------------------------------

    async def _sizes(self) -> tuple[str, int, int, int]:
        (row,) = await self._database.read(USED_BYTES)
        return self._database.location, await version_of(self._database), row["bytes"], 0

    async def check_writable(self) -> None:
        await self._database.write(_WRITE)

    async def _prune(self, now: float) -> PruneResult:
        async with self._database.transaction() as connection:
            # Idle, but for this lock: it sees no rows, so that it does not keep PostgreSQL from removing dead ones.
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            if not await connection.fetchval("SELECT pg_try_advisory_xact_lock($1)", PRUNE_LOCK):
                return NOTHING_REMOVED  # another server does it
            return await super()._prune(now)

    async def add_rows(self, table: CopiedTable, rows: Sequence[Row]) -> None:
        flags = [name in FLAGS for name in table.columns]
        converted = [
            [bool(value) if flag else value for value, flag in zip(row, flags, strict=True)] for row in rows
        ]
        sequence = f"codex_proxy.{table.name}_seq_seq" if table.key == ("seq",) else None
        await self._database.add_rows(_insert(table), converted, sequence, rows[-1][0])

    async def vacuum(self) -> int:
        """Returns 0: PostgreSQL frees space itself."""
        return 0

    async def close(self) -> None:
        """Waits for operations that have begun. Raises `StoreUnavailable`."""
        await self._end_sweeping()
        await self.leases.close()
        await self._database.close()


def _insert(table: CopiedTable) -> str:
    columns, values = ", ".join(table.columns), ", ".join(placeholders(1, len(table.columns)))
    if table.name != "responses":
        return f"INSERT INTO codex_proxy.{table.name} ({columns}) VALUES ({values})"
    parent = f"${table.columns.index('parent') + 1}"
    return f"""
INSERT INTO codex_proxy.responses ({columns}, chain)
SELECT {values}, {CHAIN_OF_CHILD}
FROM (SELECT) AS one LEFT JOIN codex_proxy.responses AS parent ON parent.seq = {parent}"""
