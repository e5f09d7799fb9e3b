"""The writing thread: what it gathers, what it takes back, what it never lets a caller wait for."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator

import pytest

from codex_proxy.store.sqlite import connections as writer_module
from codex_proxy.store.sqlite.connections import Job, Writer
from codex_proxy.store.sqlite.opening import connect
from codex_proxy.store.values import StoreConflict, StoreUnavailable, UnsureWrite
from tests.waiting import PATIENCE


class BlockingJob:
    """A job that keeps the writer busy until the test lets it go on."""

    def __init__(self) -> None:
        self.begun = threading.Event()
        self._free = threading.Event()

    def __call__(self, connection: sqlite3.Connection) -> None:
        self.begun.set()
        assert self._free.wait(PATIENCE)

    def let_go(self) -> None:
        self._free.set()


class Desk:
    """A writer on a table of one column, and the statements that it ran."""

    def __init__(self) -> None:
        self.connection = connect(":memory:", 0.0)
        self.connection.execute("CREATE TABLE words (word TEXT UNIQUE)")
        self.statements: list[str] = []
        self.connection.set_trace_callback(self.statements.append)
        self.writer = Writer(self.connection, "test.db")

    @property
    def words(self) -> list[str]:
        return [row[0] for row in self.connection.execute("SELECT word FROM words ORDER BY rowid")]

    async def busy(self) -> tuple[BlockingJob, asyncio.Task[None]]:
        held = BlockingJob()
        task = asyncio.create_task(self.writer.run(held))
        await asyncio.to_thread(held.begun.wait, 30)
        return held, task


@pytest.fixture
def desk() -> Iterator[Desk]:
    desk = Desk()
    yield desk
    desk.writer.close()


def insert_job(word: str) -> Job[str]:
    def job(connection: sqlite3.Connection) -> str:
        connection.execute("INSERT INTO words VALUES (?)", (word,))
        return word.upper()

    return job


def put_then_raise(connection: sqlite3.Connection) -> None:
    connection.execute("INSERT INTO words VALUES ('half')")
    raise StoreConflict("id_taken", "no")


async def submit_all(*coroutines: object) -> list[asyncio.Task[object]]:
    """Tasks that have all reached the writer's queue."""
    tasks = [asyncio.ensure_future(each) for each in coroutines]  # type: ignore[call-overload]
    await asyncio.sleep(0)
    return tasks


async def test_a_write_gives_its_value_after_its_commit(desk: Desk) -> None:
    assert await desk.writer.run(insert_job("one")) == "ONE"
    assert desk.statements[-1] == "COMMIT"


async def test_writes_that_arrive_during_a_commit_share_the_next_one(desk: Desk) -> None:
    held, first = await desk.busy()
    tasks = await submit_all(*(desk.writer.run(insert_job(str(number))) for number in range(50)))
    held.let_go()
    await asyncio.gather(first, *tasks)
    assert desk.statements.count("COMMIT") == 2
    assert len(desk.words) == 50


async def test_a_write_that_raises_takes_only_itself_back(desk: Desk) -> None:
    held, first = await desk.busy()
    tasks = await submit_all(
        *(desk.writer.run(job) for job in (insert_job("before"), put_then_raise, insert_job("after")))
    )
    held.let_go()
    outcomes = await asyncio.gather(first, *tasks, return_exceptions=True)
    assert [outcomes[1], type(outcomes[2]), outcomes[3]] == ["BEFORE", StoreConflict, "AFTER"]
    assert desk.words == ["before", "after"]


async def test_a_mistake_in_a_statement_is_raised_as_it_is_and_harms_no_other(desk: Desk) -> None:
    held, first = await desk.busy()
    tasks = await submit_all(
        desk.writer.run(lambda connection: connection.execute("SELEKT")), desk.writer.run(insert_job("after"))
    )
    held.let_go()
    outcomes = await asyncio.gather(first, *tasks, return_exceptions=True)
    assert type(outcomes[1]) is sqlite3.OperationalError
    assert desk.words == ["after"]


async def test_the_one_write_that_does_not_fit_takes_no_other_with_it(desk: Desk) -> None:
    pages = desk.connection.execute("PRAGMA page_count").fetchone()[0]
    desk.connection.execute(f"PRAGMA max_page_count = {pages + 1}")
    held, first = await desk.busy()
    tasks = await submit_all(
        *(desk.writer.run(insert_job(word)) for word in ("before", "x" * 100_000, "after"))
    )
    held.let_go()
    outcomes = await asyncio.gather(first, *tasks, return_exceptions=True)
    assert type(outcomes[2]) is StoreUnavailable
    assert "disk is full" in str(outcomes[2])
    assert desk.words == ["before", "after"]


async def test_a_caller_that_was_cancelled_has_its_write_done_as_a_whole(desk: Desk) -> None:
    held, first = await desk.busy()

    def pair(connection: sqlite3.Connection) -> None:
        insert_job("left")(connection)
        insert_job("right")(connection)

    (task,) = await submit_all(desk.writer.run(pair))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    held.let_go()
    await first
    assert await desk.writer.run(insert_job("later")) == "LATER"
    assert desk.words == ["left", "right", "later"]


async def test_a_queue_that_grows_too_long_refuses_more(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "MAX_QUEUED", 3)
    held, first = await desk.busy()
    tasks = await submit_all(*(desk.writer.run(insert_job(str(number))) for number in range(3)))
    with pytest.raises(StoreUnavailable, match="too far behind"):
        await desk.writer.run(insert_job("one too many"))
    held.let_go()
    await asyncio.gather(first, *tasks)
    assert desk.words == ["0", "1", "2"]


async def test_more_writes_than_a_commit_takes_are_all_done(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MAX_BATCH", 10)
    held, first = await desk.busy()
    tasks = await submit_all(*(desk.writer.run(insert_job(str(number))) for number in range(25)))
    held.let_go()
    await asyncio.gather(first, *tasks)
    assert desk.words == [str(number) for number in range(25)]
    assert desk.statements.count("COMMIT") == 4


@pytest.mark.parametrize("broken", ["_has_file", "_transaction", "_apply"])
async def test_a_fault_of_our_own_is_raised_to_its_caller_and_ends_no_thread(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError

    with monkeypatch.context() as patch:
        patch.setattr(desk.writer, broken, fails)
        with pytest.raises(ZeroDivisionError):
            await asyncio.wait_for(desk.writer.run(insert_job("lost")), PATIENCE)
    assert await asyncio.wait_for(desk.writer.run(insert_job("later")), PATIENCE) == "LATER"
    assert desk.words == ["later"]


async def test_a_disk_that_hangs_does_not_hang_the_caller() -> None:
    writer = Writer(connect(":memory:", 0.0), "test.db", answer_wait=0.01)
    held = BlockingJob()
    with pytest.raises(UnsureWrite, match=r"did not answer within 0\.01 s"):
        await writer.run(held)
    held.let_go()
    writer.close()


async def test_a_disk_that_hangs_does_not_hang_the_end(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writer_module, "CLOSE_WAIT", 0.01)
    held, first = await desk.busy()
    with pytest.raises(StoreUnavailable, match="did not finish"):
        desk.writer.close()
    held.let_go()
    await first


async def test_closing_commits_what_is_queued_and_takes_no_more(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, first = await desk.busy()
    (task,) = await submit_all(desk.writer.run(insert_job("queued")))
    closing = asyncio.create_task(asyncio.to_thread(desk.writer.close))
    held.let_go()
    await closing
    await first
    assert await task == "QUEUED"
    with pytest.raises(StoreUnavailable, match="closed"):
        await desk.writer.run(insert_job("too late"))


def test_an_event_loop_that_is_gone_does_not_stop_the_writer(desk: Desk) -> None:
    held = BlockingJob()

    async def leave() -> None:
        await submit_all(desk.writer.run(held), desk.writer.run(insert_job("left behind")))
        await asyncio.to_thread(held.begun.wait, 30)

    asyncio.run(leave())
    held.let_go()
    assert asyncio.run(desk.writer.run(insert_job("next loop"))) == "NEXT LOOP"
    assert desk.words == ["left behind", "next loop"]
