"""The stores that every test of the interface runs over, and a clock whose hands the test turns."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codex_proxy.store.base import Store
from codex_proxy.store.sqlite import SqliteStore
from tests.store.stored import Hands


@pytest.fixture
def clock() -> Hands:
    return Hands()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "store.db"


@pytest.fixture(params=["file", "memory"])
async def store(request: pytest.FixtureRequest, path: Path, clock: Hands) -> AsyncIterator[Store]:
    made: Store
    if request.param == "file":
        made = await SqliteStore.open(path, clock=clock)
    else:
        made = SqliteStore.in_memory(clock=clock)
    yield made
    await made.close()
