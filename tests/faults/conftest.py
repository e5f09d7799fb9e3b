"""One server for each dialect, whose store does not wait for locks and whose agent is given up soon."""

from __future__ import annotations

import sqlite3
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import pytest_asyncio

from tests.faults.scene import Scene, scene


@pytest.fixture(scope="package")
def connections() -> Iterator[list[sqlite3.Connection]]:
    """Connections to the stores, which give a lock up at once."""
    connections: list[sqlite3.Connection] = []
    connect: Any = sqlite3.connect

    def hasty(*args: Any, timeout: float = 0.0, **more: Any) -> sqlite3.Connection:
        connections.append(connect(*args, timeout=min(timeout, 0.05), **more))
        return connections[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("codex_proxy.store.sqlite.opening.sqlite3.connect", hasty)
        patch.setattr("codex_proxy.agents.sessions.session.FINISH_SECONDS", 0.5)
        yield connections


@pytest_asyncio.fixture(scope="package", loop_scope="package", params=["proto", "app-server"])
async def there(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    connections: list[sqlite3.Connection],
) -> AsyncIterator[Scene]:
    """The server of one dialect."""
    async with scene(request.param, tmp_path_factory.mktemp("faults"), connections) as running:
        yield running
        assert (await running.proxy.send("GET", "/readyz")).status == 200
