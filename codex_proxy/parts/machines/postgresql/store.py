"""The store in PostgreSQL: its parts in one class, and its maintenance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Unpack

from codex_proxy.core.keys import Key
from codex_proxy.parts.machines.postgresql.conversations import PostgresConversations
from codex_proxy.parts.machines.postgresql.database import Database
from codex_proxy.parts.machines.postgresql.keyed_rows import PostgresKeyedRows
from codex_proxy.parts.machines.postgresql.leases import PostgresLeases
from codex_proxy.parts.machines.postgresql.migration import (
    KEYS_VERSION,
    LOCK,
    existing_version,
    migrate,
    version_of,
)
from codex_proxy.parts.machines.postgresql.removal import USED_BYTES
from codex_proxy.parts.machines.postgresql.responses import CHAIN_OF_CHILD, PostgresResponses
from codex_proxy.parts.machines.postgresql.team import PostgresTeam
from codex_proxy.parts.machines.postgresql.writing import placeholders
from codex_proxy.store.retention import NOTHING_REMOVED
from codex_proxy.store.store import StoreOptions
from codex_proxy.store.tables import FLAGS, CopiedTable, Row
from codex_proxy.store.values import PruneResult

PRUNE_LOCK: Final = LOCK + 1
"""The number of the advisory lock that lets one server at a time apply the limits of retention."""

_WRITE: Final = "UPDATE codex_proxy.schema SET version = version"


class PostgresStore(PostgresResponses, PostgresConversations, PostgresKeyedRows):
    """A store that several servers may use."""

    def __init__(self, database: Database, **options: Unpack[StoreOptions]) -> None:
        super().__init__(**options)
        self._database = database
        self.leases = PostgresLeases(database)
        self.team = PostgresTeam(database)

    @classmethod
    async def inspect(cls, url: str) -> tuple[Key, ...]:
        """Returns the keys in a database, and changes nothing. Raises what `open` would raise."""
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
