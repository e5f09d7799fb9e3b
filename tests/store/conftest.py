"""The stores that every test of the interface runs over, and a clock whose hands the test turns."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Protocol, TypeAlias

import pytest

from codex_proxy.core.step_memory import StepMemorySettings
from codex_proxy.parts import absent_part
from codex_proxy.store.sqlite.opening import connect
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.store import Store, StoreOptions
from codex_proxy.store.values import ContextLimits, Retention
from tests.postgres import PostgresServer, empty
from tests.store.stored import Hands

Make: TypeAlias = Callable[..., Awaitable[Store]]


class Connections(list[sqlite3.Connection]):
    """Opens connections for a store and remembers them, the writing one first."""

    def __call__(self, name: str, lock_wait: float) -> sqlite3.Connection:
        self.append(connect(name, lock_wait))
        return self[-1]


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "store.db"


@pytest.fixture
def connections() -> Connections:
    return Connections()


IN_MEMORY = pytest.param("memory", marks=pytest.mark.exhaustive)
"""The same code as that of a file, but for how it is opened."""


IN_DATABASE = () if absent_part("stores", "postgresql") else ("postgresql",)


@pytest.fixture(params=["file", IN_MEMORY, *IN_DATABASE])
async def make(
    request: pytest.FixtureRequest, path: Path, clock: Hands, connections: Connections
) -> AsyncIterator[Make]:
    """Makes a store with settings; the test makes one."""
    made: list[Store] = []

    async def with_settings(
        retention: Retention | None = None,
        memory: StepMemorySettings | None = None,
        limits: ContextLimits | None = None,
    ) -> Store:
        options: StoreOptions = {"clock": clock, "retention": retention, "memory": memory, "limits": limits}
        if request.param == "file":
            store: Store = await SqliteStore.open(path, opener=connections, **options)
        elif request.param == "memory":
            store = SqliteStore.in_memory(opener=connections, **options)
        else:
            from codex_proxy.parts.machines.postgresql.store import PostgresStore

            server: PostgresServer = request.getfixturevalue("postgres_server")
            await empty(server.url)
            store = await PostgresStore.open(server.url, **options)
        made.append(store)
        return store

    yield with_settings
    for store in made:
        await store.close()


SQLITE_ONLY = pytest.mark.parametrize("make", ["file", IN_MEMORY], indirect=True)
"""For tests that look into the engine."""


@pytest.fixture
async def store(make: Make) -> Store:
    return await make()


class Overwrite(Protocol):
    """Overwrites a column of all rows of a table, as a damaged disk would. A text is not what SQLite had there."""

    def __call__(self, table: str, column: str, value: bytes | str) -> Awaitable[None]: ...


@pytest.fixture
async def overwrite(request: pytest.FixtureRequest, store: Store, connections: Connections) -> Overwrite:
    async def in_sqlite(table: str, column: str, value: bytes | str) -> None:
        connections[0].execute(f"UPDATE {table} SET {column} = ?", (value,))

    async def in_postgresql(table: str, column: str, value: bytes | str) -> None:
        import asyncpg  # a package that only some tests need

        connection = await asyncpg.connect(request.getfixturevalue("postgres_server").url)
        await connection.execute(
            f"UPDATE codex_proxy.{table} SET {column} = $1",
            bytes(value, "ascii") if isinstance(value, str) else value,
        )
        await connection.close()

    return in_sqlite if connections else in_postgresql


@pytest.fixture
async def file_store(path: Path, clock: Hands, connections: Connections) -> AsyncIterator[SqliteStore]:
    """A store in a file, for what only files do; it does not wait long for locks."""
    store = await SqliteStore.open(path, clock=clock, lock_wait=0.05, opener=connections)
    yield store
    await store.close()
