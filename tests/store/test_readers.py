"""The reading threads: bounded like the writing one, and each job on one state of the file."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from codex_proxy.store.sqlite import connections as readers_module
from codex_proxy.store.sqlite.connections import THREADS, Readers
from codex_proxy.store.sqlite.opening import connect, open_reader, open_writer
from codex_proxy.store.values import StoreUnavailable
from tests.waiting import PATIENCE


@pytest.fixture
def writer_connection(path: Path) -> Iterator[sqlite3.Connection]:
    connection = open_writer(path, 1.0)
    connection.execute("CREATE TABLE words (word TEXT)")
    yield connection
    connection.close()


@pytest.fixture
def readers(path: Path, writer_connection: sqlite3.Connection) -> Iterator[Readers]:
    readers = Readers(partial(open_reader, path, 1.0), "test.db")
    yield readers
    readers.close()


class PausedJob:
    """A job that counts twice, and waits in between until the test lets it go on."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self.free = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> tuple[int, int]:
        before = count(connection)
        self.begun.set()
        assert self.free.wait(PATIENCE)
        return before, count(connection)


def count(connection: sqlite3.Connection) -> int:
    return int(connection.execute("SELECT count(*) FROM words").fetchone()[0])


async def test_a_read_sees_one_state_and_the_next_one_what_was_written_meanwhile(
    readers: Readers, writer_connection: sqlite3.Connection
) -> None:
    reading = PausedJob()
    task = asyncio.create_task(readers.run(reading))
    await asyncio.to_thread(reading.begun.wait, 30)
    writer_connection.execute("INSERT INTO words VALUES ('new')")
    assert await readers.run(count) == 1
    reading.free.set()
    assert await task == (0, 0)


async def test_connections_are_used_again(path: Path, writer_connection: sqlite3.Connection) -> None:
    opened: list[sqlite3.Connection] = []

    def opener() -> sqlite3.Connection:
        opened.append(connect(str(path), 1.0))
        return opened[-1]

    readers = Readers(opener, "test.db")
    await asyncio.gather(*(readers.run(count) for _ in range(100)))
    assert 1 <= len(opened) <= THREADS
    readers.close()


async def test_a_read_that_fails_harms_no_other(readers: Readers) -> None:
    for _ in range(THREADS * 2):
        with pytest.raises(sqlite3.OperationalError):
            await readers.run(lambda connection: connection.execute("SELEKT"))
    assert await readers.run(count) == 0


async def test_too_many_reads_are_refused(readers: Readers, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(readers_module, "MAX_WAITING", 1)
    reading = PausedJob()
    task = asyncio.create_task(readers.run(reading))
    await asyncio.to_thread(reading.begun.wait, 30)
    with pytest.raises(StoreUnavailable, match="too far behind"):
        await readers.run(count)
    reading.free.set()
    await task
    assert await readers.run(count) == 0


async def test_a_disk_that_hangs_does_not_hang_the_reader(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(readers_module, "ANSWER_WAIT", 0.01)
    reading = PausedJob()
    with pytest.raises(StoreUnavailable, match="did not answer"):
        await readers.run(reading)
    reading.free.set()


async def test_a_file_that_can_no_longer_be_opened_is_unavailable(path: Path) -> None:
    readers = Readers(partial(open_reader, path.parent / "gone" / "store.db", 0.0), "test.db")
    with pytest.raises(StoreUnavailable, match="cannot be opened"):
        await readers.run(count)
    readers.close()
