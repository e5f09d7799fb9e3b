"""The stores that every test of the interface runs over, and a clock whose hands the test turns."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import TypeAlias

import pytest

from codex_proxy.core.step_memory import StepMemorySettings
from codex_proxy.store.interface import Retention, Store
from codex_proxy.store.sqlite.opening import connect
from codex_proxy.store.sqlite.store import SqliteStore
from tests.store.stored import Hands

Make: TypeAlias = Callable[..., Awaitable[Store]]


class Opened(list[sqlite3.Connection]):
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
def opened() -> Opened:
    return Opened()


@pytest.fixture(params=["file", "memory"])
async def make(
    request: pytest.FixtureRequest, path: Path, clock: Hands, opened: Opened
) -> AsyncIterator[Make]:
    """Makes a store with settings; the test makes one."""
    made: list[Store] = []

    async def with_settings(
        retention: Retention | None = None, memory: StepMemorySettings | None = None
    ) -> Store:
        if request.param == "file":
            store: Store = await SqliteStore.open(
                path, clock=clock, retention=retention, memory=memory, opener=opened
            )
        else:
            store = SqliteStore.in_memory(clock=clock, retention=retention, memory=memory, opener=opened)
        made.append(store)
        return store

    yield with_settings
    for store in made:
        await store.close()


@pytest.fixture
async def store(make: Make) -> Store:
    return await make()


@pytest.fixture
async def file_store(path: Path, clock: Hands, opened: Opened) -> AsyncIterator[SqliteStore]:
    """A store in a file, for what only files do; it does not wait long for locks."""
    store = await SqliteStore.open(path, clock=clock, lock_wait=0.05, opener=opened)
    yield store
    await store.close()
