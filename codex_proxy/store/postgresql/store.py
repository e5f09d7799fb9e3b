"""The store in PostgreSQL: its parts in one class, and its maintenance."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from codex_proxy.core.interfaces import Clock
from codex_proxy.core.step_memory import StepMemorySettings
from codex_proxy.store import copying
from codex_proxy.store.checksums import ROWS_AT_ONCE, CheckedTable, Part, check_tables
from codex_proxy.store.copying import CopiedTable, Row
from codex_proxy.store.export import AT_ONCE, conversation_line, response_line
from codex_proxy.store.interface import (
    Checked,
    ContextLimits,
    Pruned,
    Retention,
    StoredItem,
    StoreStats,
)
from codex_proxy.store.postgresql.conversations import PostgresConversations
from codex_proxy.store.postgresql.database import Database
from codex_proxy.store.postgresql.keyed_rows import PostgresKeyedRows
from codex_proxy.store.postgresql.leases import PostgresLeases
from codex_proxy.store.postgresql.listing import PostgresLists
from codex_proxy.store.postgresql.migration import LOCK, migrate, version_of
from codex_proxy.store.postgresql.removal import USED_BYTES
from codex_proxy.store.postgresql.responses import CHAIN_OF_CHILD, PostgresResponses
from codex_proxy.store.postgresql.team import PostgresTeam
from codex_proxy.store.postgresql.writing import parameters
from codex_proxy.store.retention import NOTHING, prune
from codex_proxy.store.rows import (
    CONVERSATION,
    INPUT,
    ITEM,
    OUTPUT,
    RESPONSE,
    conversation_of,
    item_of,
    response_of,
)

PRUNE_LOCK: Final = LOCK + 1
"""The number of the lock that lets one server at a time apply the limits of retention."""

_STATS: Final = f"""
SELECT ({USED_BYTES}) AS bytes_used,
    (SELECT count(*) FROM codex_proxy.responses WHERE NOT deleted) AS responses,
    (SELECT count(*) FROM codex_proxy.responses WHERE unfinished) AS unfinished,
    (SELECT count(*) FROM codex_proxy.conversations WHERE NOT deleted) AS conversations,
    (SELECT count(*) FROM codex_proxy.items) AS items,
    (SELECT count(*) FROM codex_proxy.frames) AS frames,
    (SELECT count(*) FROM codex_proxy.steps) AS steps,
    (SELECT min(created) FROM codex_proxy.responses WHERE NOT deleted) AS oldest"""
_WRITE: Final = "UPDATE codex_proxy.schema SET version = version"


_EXPORTS: Final = {
    "response": f"""
SELECT seq, {RESPONSE} FROM codex_proxy.responses JOIN codex_proxy.response_bodies ON response = seq
WHERE seq > $1 AND NOT deleted ORDER BY seq LIMIT {AT_ONCE}""",
    "conversation": f"""
SELECT seq, {CONVERSATION} FROM codex_proxy.conversations
WHERE seq > $1 AND NOT deleted ORDER BY seq LIMIT {AT_ONCE}""",
}
_ITEMS: Final = {
    kind: f"""
SELECT {kind}, {side} AS side, {ITEM} FROM codex_proxy.{kind}_items JOIN codex_proxy.items ON items.seq = item
WHERE {kind} = ANY ($1::bigint[]) ORDER BY {kind}, side, position"""
    for kind, side in (("response", "side"), ("conversation", str(INPUT)))
}


class PostgresStore(PostgresResponses, PostgresLists, PostgresConversations, PostgresKeyedRows):
    """Implements `store.interface.Store` with a PostgreSQL database, which several servers may use."""

    def __init__(
        self,
        database: Database,
        *,
        clock: Clock,
        retention: Retention | None = None,
        memory: StepMemorySettings | None = None,
        limits: ContextLimits | None = None,
    ) -> None:
        super().__init__(clock=clock, retention=retention, memory=memory, limits=limits)
        self._database = database
        self._one_sweep = asyncio.Lock()
        self.leases = PostgresLeases(database)
        self.team = PostgresTeam(database)

    @classmethod
    async def open(
        cls,
        url: str,
        *,
        clock: Clock,
        retention: Retention | None = None,
        memory: StepMemorySettings | None = None,
        limits: ContextLimits | None = None,
    ) -> PostgresStore:
        """Connects to the database of a `postgresql://` URL and creates the tables. `memory`: the settings of the step
        memory. Raises `StoreRefused` or `StoreUnavailable`, saying what to do.
        """
        database = await Database.open(url)
        try:
            await migrate(database)
        except BaseException:
            await database.close()
            raise
        return cls(database, clock=clock, retention=retention, memory=memory, limits=limits)

    # --- maintenance ----------------------------------------------------------------------------

    async def stats(self) -> StoreStats:
        (row,) = await self._database.read(_STATS)
        found = dict(row.items())
        return StoreStats(
            location=self._database.location,
            schema_version=await version_of(self._database),
            bytes_free=0,
            **{**found, "steps": found["steps"] + len(self._ram)},
        )

    async def check_writable(self) -> None:
        await self._database.write(_WRITE)

    async def prune(self, now: float | None = None) -> Pruned:
        """See `StoreMaintenance.prune`. Removes nothing while another server does."""
        now = self._now if now is None else now
        self._ram.expire(now)
        async with self._database.transaction() as connection:
            # Idle, but for this lock: it sees no rows, so that it does not keep PostgreSQL from removing dead ones.
            await connection.execute("SET LOCAL idle_in_transaction_session_timeout = 0")
            if not await connection.fetchval("SELECT pg_try_advisory_xact_lock($1)", PRUNE_LOCK):
                return NOTHING
            return await prune(self._apply, self.sweep, self._retention, self._memory.age, now)

    async def export(self, write: Callable[[bytes], object]) -> int:
        total = 0
        for kind, sql in _EXPORTS.items():
            last = 0
            while rows := await self._database.read(sql, last):
                items = await self._items_of(kind, [row["seq"] for row in rows])
                for seq, *columns in rows:
                    write(_line(kind, columns, items.get(seq, ())))
                total, last = total + len(rows), rows[-1]["seq"]
        return total

    async def _items_of(self, kind: str, lists: Sequence[int]) -> dict[int, list[tuple[int, StoredItem]]]:
        """Returns the sides and items of responses or conversations by their rows."""
        found: dict[int, list[tuple[int, StoredItem]]] = {}
        for row, side, *columns in await self._database.read(_ITEMS[kind], lists):
            found.setdefault(row, []).append((side, item_of(columns)))
        return found

    async def check(self) -> Checked:
        async def read(table: CheckedTable, key: tuple[int, ...]) -> Part:
            rows = await self._database.read(table.query("codex_proxy.", "${0}"), *key, ROWS_AT_ONCE)
            return await asyncio.to_thread(table.check, rows)

        return await check_tables(read)

    async def rows_from(self, table: CopiedTable, key: Row | None, limit: int) -> Sequence[Row]:
        sql = copying.select(table, "codex_proxy.", "${0}", first=key is None)
        return [tuple(row) for row in await self._database.read(sql, *(key or ()), limit)]

    async def last_row(self, table: CopiedTable) -> Row | None:
        rows = await self._database.read(copying.select_last(table, "codex_proxy."))
        return tuple(rows[0]) if rows else None

    async def add_rows(self, table: CopiedTable, rows: Sequence[Row]) -> None:
        flags = [name in copying.FLAGS for name in table.columns]
        converted = [
            [bool(value) if flag else value for value, flag in zip(row, flags, strict=True)] for row in rows
        ]
        sequence = f"codex_proxy.{table.name}_seq_seq" if table.key == ("seq",) else None
        await self._database.add_rows(_insert(table), converted, sequence, rows[-1][0])

    async def vacuum(self) -> int:
        """Returns 0: PostgreSQL does this itself."""
        return 0

    async def close(self) -> None:
        """Waits for the statements that have begun, and closes the connections. Raises `StoreUnavailable`."""
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])
        await self.leases.close()
        await self._database.close()


def _insert(table: CopiedTable) -> str:
    """Returns the statement that adds a row."""
    columns, values = ", ".join(table.columns), ", ".join(parameters(1, len(table.columns)))
    if table.name != "responses":
        return f"INSERT INTO codex_proxy.{table.name} ({columns}) VALUES ({values})"
    parent = f"${table.columns.index('parent') + 1}"
    return f"""
INSERT INTO codex_proxy.responses ({columns}, chain)
SELECT {values}, {CHAIN_OF_CHILD}
FROM (SELECT) AS one LEFT JOIN codex_proxy.responses AS parent ON parent.seq = {parent}"""


def _line(kind: str, columns: Iterable[Any], items: Sequence[tuple[int, StoredItem]]) -> bytes:
    """Returns the line of an export for a response or conversation with its sides and items."""
    if kind == "conversation":
        return conversation_line(conversation_of(columns), (item for _, item in items))
    sides = ([item for side, item in items if side == which] for which in (INPUT, OUTPUT))
    return response_line(response_of(columns), *sides)
