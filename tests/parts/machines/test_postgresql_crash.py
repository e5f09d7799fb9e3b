"""What was acknowledged survives crashes of PostgreSQL and of those who write, at any moment, and is whole."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import signal
import sys
from collections.abc import Iterator

import asyncpg
import pytest

from codex_proxy.commands.store import check_rows
from codex_proxy.parts.machines.postgresql.store import PostgresStore
from codex_proxy.store.values import StoreUnavailable
from tests.postgres import PostgresServer, server
from tests.store.stored import Hands, context_ids, conversation, turn, whole_turns
from tests.waiting import PATIENCE, poll

WRITERS = 6

_CHILD = """
import asyncio, os, sys
from codex_proxy.parts.machines.postgresql.store import PostgresStore
from tests.store.stored import Hands, turn

async def caller(store, number):
    before = None
    for step in range(1000):
        id = f"resp_{sys.argv[2]}_{number}_{step}"
        await turn(store, id, after=before, append="conv_1", size=300 * number)
        before = id
        os.write(1, id.encode() + b"\\n")

async def live():
    store = await PostgresStore.open(sys.argv[1], clock=Hands())
    await asyncio.gather(*(caller(store, number) for number in range(6)))

asyncio.run(live())
"""


@pytest.fixture
def database() -> Iterator[PostgresServer]:
    with server() as started:
        yield started


class Writers:
    """Adds chains of turns to one conversation, and takes note of what was acknowledged."""

    def __init__(self, store: PostgresStore) -> None:
        self.acknowledged: list[str] = []
        self.failed = 0
        self._store = store
        self._tasks = [asyncio.create_task(self._write(number)) for number in range(WRITERS)]

    async def _write(self, number: int) -> None:
        before, step = None, 0
        while True:
            id = f"resp_{number}_{step}"
            step += 1
            try:
                await turn(self._store, id, after=before, append="conv_1", size=300 * number)
            except StoreUnavailable:
                self.failed += 1
                before = None  # the next one begins a chain of its own
            else:
                self.acknowledged.append(id)
                before = id

    async def go_on(self, count: int) -> None:
        """Returns when so many more turns were acknowledged."""
        wanted = len(self.acknowledged) + count

        async def are_there() -> bool:
            return len(self.acknowledged) >= wanted

        await poll(are_there)

    async def stop(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


async def backends(url: str) -> list[int]:
    """Returns the processes that serve the writers; none while the database recovers."""
    try:
        connection = await asyncpg.connect(url)
        rows = await connection.fetch(
            "SELECT pid FROM pg_stat_activity WHERE application_name = 'codex-proxy' AND pid <> pg_backend_pid()"
        )
        await connection.close()
    except (asyncpg.PostgresError, OSError):
        return []
    return [row["pid"] for row in rows]


async def chained_turns(store: PostgresStore, acknowledged: list[str]) -> None:
    """Everything acknowledged is there, as whole turns, chained, and in the conversation."""
    for id in (await whole_turns(store, acknowledged))[-20:]:
        chain = await context_ids(store, id)
        assert chain[-2:] == [f"in-{id}", f"out-{id}"]
    assert (await check_rows(store)).damaged == ()


@pytest.mark.parametrize("crashes", [1, pytest.param(10, marks=pytest.mark.exhaustive)])
async def test_every_acknowledged_write_survives_crashes_of_the_database(
    database: PostgresServer, crashes: int
) -> None:
    store = await PostgresStore.open(database.url, clock=Hands())
    await store.add_conversation(conversation("conv_1"))
    writers = Writers(store)
    chance = random.Random(7)
    for _ in range(crashes):
        await writers.go_on(chance.randrange(30))
        await asyncio.to_thread(database.stop, "immediate")
        await asyncio.to_thread(database.start)
        await writers.go_on(1)
        # A process of PostgreSQL that is killed makes it end all others and recover.
        os.kill(chance.choice(await poll(lambda: backends(database.url))), signal.SIGKILL)
        await writers.go_on(chance.randrange(1, 30))
        for backend in await poll(lambda: backends(database.url)):
            with contextlib.suppress(ProcessLookupError):
                os.kill(backend, signal.SIGTERM)  # as pg_terminate_backend does
        await writers.go_on(1)
    await writers.stop()
    await chained_turns(store, writers.acknowledged)
    await store.close()


@pytest.mark.exhaustive
@pytest.mark.parametrize("kills", [2, 30])
async def test_every_acknowledged_write_survives_kills_of_those_who_write(
    database: PostgresServer, kills: int
) -> None:
    store = await PostgresStore.open(database.url, clock=Hands())
    await store.add_conversation(conversation("conv_1"))
    acknowledged: list[str] = []
    chance = random.Random(8)
    for life in range(kills):
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", _CHILD, database.url, str(life), stdout=asyncio.subprocess.PIPE
        )
        assert child.stdout is not None
        async with asyncio.timeout(PATIENCE):
            lines = [await child.stdout.readline() for _ in range(chance.randrange(1, 40))]
        child.kill()
        rest = await child.stdout.read()
        acknowledged += (b"".join(lines) + rest).decode().splitlines()
        await child.wait()
    await chained_turns(store, acknowledged)
    await store.close()
