"""A store in trouble: locked, full, damaged, shared with another process, asked by many, left by its callers."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from codex_proxy.store.sqlite.opening import as_store_error, connect
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.values import StoreConflict, StoreUnavailable
from tests.store.conftest import Connections
from tests.store.stored import OWNER, Hands, context_ids, conversation, conversation_ids, turn
from tests.waiting import PATIENCE


@contextmanager
def locked_by_another(path: Path) -> Iterator[None]:
    """As if another process were in the middle of a write."""
    other = connect(str(path), 0.0)
    other.execute("BEGIN IMMEDIATE")
    yield
    other.execute("ROLLBACK")
    other.close()


# --- locked -------------------------------------------------------------------------------------


async def test_a_locked_file_makes_writes_unavailable_and_reads_go_on(
    file_store: SqliteStore, path: Path
) -> None:
    await turn(file_store, "resp_1")
    with locked_by_another(path):
        with pytest.raises(StoreUnavailable, match="locked by another process"):
            await turn(file_store, "resp_2")
        assert await file_store.response(OWNER, "resp_1") is not None
    await turn(file_store, "resp_3")
    assert [await file_store.response(OWNER, id) is None for id in ("resp_2", "resp_3")] == [True, False]


async def test_all_who_wait_on_a_locked_file_fail_after_one_wait(path: Path, file_store: SqliteStore) -> None:
    with locked_by_another(path):
        outcomes = await asyncio.gather(
            *(turn(file_store, f"resp_{number}") for number in range(100)), return_exceptions=True
        )
    assert {type(each) for each in outcomes} == {StoreUnavailable}


async def test_a_write_whose_caller_left_during_a_lock_is_done_as_a_whole(path: Path) -> None:
    store = await SqliteStore.open(path, clock=Hands(), lock_wait=30.0)
    await store.add_conversation(conversation("conv_1"))
    with locked_by_another(path):
        leaving = asyncio.create_task(turn(store, "resp_1", append="conv_1"))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
    await turn(store, "resp_2", after="resp_1")  # in the queue behind it
    assert await conversation_ids(store, "conv_1") == ["in-resp_1", "out-resp_1"]
    assert len(await context_ids(store, "resp_2")) == 4
    await store.close()


# --- full ---------------------------------------------------------------------------------------


async def test_a_full_disk_loses_nothing_and_the_store_works_again_when_there_is_room(
    file_store: SqliteStore, connections: Connections
) -> None:
    pages = connections[0].execute("PRAGMA page_count").fetchone()[0]
    connections[0].execute(f"PRAGMA max_page_count = {pages + 20}")
    done: list[str] = []

    async def fill() -> None:
        for number in range(1000):
            await turn(file_store, f"resp_{number}", size=2000)
            done.append(f"resp_{number}")

    with pytest.raises(StoreUnavailable, match="disk is full"):
        await fill()
    assert 0 < len(done) < 1000
    connections[0].execute("PRAGMA max_page_count = 1000000")
    await turn(file_store, "afterwards", after=done[-1])
    assert await file_store.response(OWNER, f"resp_{len(done)}") is None
    for id in (*done, "afterwards"):
        assert await file_store.response(OWNER, id) is not None
    assert connections[0].execute("PRAGMA integrity_check").fetchone() == ("ok",)


_FILLS_ITS_DISK = """
import asyncio, json, resource, sys
from pathlib import Path
from codex_proxy.store.values import StoreUnavailable
from codex_proxy.store.sqlite.store import SqliteStore
from tests.store.stored import Hands, turn

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]), clock=Hands())
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600_000, hard))
    done, told = [], ""
    for number in range(1000):
        try:
            await turn(store, f"resp_{number}", size=5000)
        except StoreUnavailable as error:
            told = str(error)
            break
        done.append(f"resp_{number}")
    resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    await turn(store, "afterwards")
    print(json.dumps([told, done + ["afterwards"]]))
    await store.close()

asyncio.run(main())
"""


async def test_a_file_that_the_system_lets_grow_no_further_loses_nothing(path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", _FILLS_ITS_DISK, str(path)], capture_output=True, text=True, timeout=PATIENCE
    )
    assert ended.stderr == ""
    reason, done = json.loads(ended.stdout)
    assert "cannot be read or written" in reason
    assert len(done) > 5
    store = await SqliteStore.open(path, clock=Hands())
    assert [id for id in done if await store.response(OWNER, id) is None] == []
    await store.close()


# --- damage, and what is no fault of the world -----------------------------------------------------


async def test_damage_that_is_met_while_reading_is_reported_by_name(
    file_store: SqliteStore, connections: Connections, path: Path
) -> None:
    await turn(file_store, "resp_1")
    connections[0].execute("PRAGMA wal_checkpoint(TRUNCATE)")
    data = path.read_bytes()
    path.write_bytes(data[:4096] + b"\xff" * (len(data) - 4096))
    with pytest.raises(StoreUnavailable, match=r"store\.db is damaged"):
        await file_store.response(OWNER, "resp_1")
    path.write_bytes(data)


@pytest.mark.parametrize(
    "code",
    [
        "BUSY_SNAPSHOT",
        "FULL",
        "IOERR_FSYNC",
        "CANTOPEN",
        "READONLY_DBMOVED",
        "CORRUPT_INDEX",
        "NOTADB",
        "NOMEM",
    ],
)
def test_every_fault_of_the_environment_is_reported_with_the_file_and_what_to_do(code: str) -> None:
    error = sqlite3.OperationalError("x")
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{code}")
    said = as_store_error(error, "/here/store.db")
    assert said is not None
    assert str(said).startswith("the store /here/store.db ")


@pytest.mark.parametrize("code", ["ERROR", "CONSTRAINT_UNIQUE", "MISMATCH", "MISUSE"])
def test_a_mistake_of_this_server_is_no_fault_of_the_environment(code: str) -> None:
    error = sqlite3.OperationalError("x")
    error.sqlite_errorcode = getattr(sqlite3, f"SQLITE_{code}")
    assert as_store_error(error, "/here/store.db") is None
    assert as_store_error(sqlite3.ProgrammingError("closed"), "/here/store.db") is None


# --- many at once -------------------------------------------------------------------------------


async def test_fifty_callers_at_once_lose_nothing_and_share_commits(
    file_store: SqliteStore, connections: Connections
) -> None:
    statements: list[str] = []
    connections[0].set_trace_callback(statements.append)
    await file_store.add_conversation(conversation("conv_1"))

    async def caller(number: int) -> None:
        for step in range(10):
            id = f"resp_{number}_{step}"
            after = f"resp_{number}_{step - 1}" if step else None
            await turn(file_store, id, after=after, append="conv_1")
            assert len(await context_ids(file_store, id)) == 2 * (step + 1)

    await asyncio.gather(*(caller(number) for number in range(50)))
    assert len(await conversation_ids(file_store, "conv_1")) == 1000
    assert (await file_store.conversation(OWNER, "conv_1")).version == 500  # type: ignore[union-attr]
    assert statements.count("COMMIT") < 400


async def test_of_two_turns_with_one_id_one_is_reported(file_store: SqliteStore) -> None:
    await file_store.add_conversation(conversation("conv_1"))
    outcomes = await asyncio.gather(
        *(turn(file_store, "resp_1", append="conv_1") for _ in range(2)),
        return_exceptions=True,
    )
    assert [type(each) for each in outcomes] == [type(None), StoreConflict]
    assert await conversation_ids(file_store, "conv_1") == ["in-resp_1", "out-resp_1"]


async def test_callers_that_leave_at_any_moment_leave_whole_turns(file_store: SqliteStore) -> None:
    await file_store.add_conversation(conversation("conv_1"))
    for rounds in range(40):
        task = asyncio.create_task(turn(file_store, f"resp_{rounds}", append="conv_1"))
        for _ in range(rounds % 8):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await turn(file_store, "last", append="conv_1")
    ids = await conversation_ids(file_store, "conv_1")
    saved = [
        id for rounds in range(40) if await file_store.response(OWNER, id := f"resp_{rounds}") is not None
    ]
    assert ids == [f"{side}-{id}" for id in (*saved, "last") for side in ("in", "out")]
    assert len(saved) >= 35  # only those that left before they asked


_WRITES_BESIDE = """
import asyncio, sys
from pathlib import Path
from codex_proxy.store.sqlite.store import SqliteStore
from tests.store.stored import Hands, turn

async def main():
    store = await SqliteStore.open(Path(sys.argv[1]), clock=Hands())
    print("ready", flush=True)
    for number in range(100):
        await turn(store, f"theirs_{number}")
    await store.close()

asyncio.run(main())
"""


async def test_two_processes_write_to_one_file(path: Path) -> None:
    store = await SqliteStore.open(path, clock=Hands())
    other = await asyncio.create_subprocess_exec(
        sys.executable, "-c", _WRITES_BESIDE, str(path), stdout=asyncio.subprocess.PIPE
    )
    assert other.stdout is not None
    assert await other.stdout.readline() == b"ready\n"
    for number in range(100):
        await turn(store, f"ours_{number}")
    assert await other.stdout.read() == b""
    assert await other.wait() == 0
    assert (await store.stats()).responses == 200
    await store.close()


@pytest.mark.parametrize("replaced", [False, True])
async def test_a_store_whose_file_is_removed_takes_nothing_more_and_says_so(
    file_store: SqliteStore, path: Path, *, replaced: bool
) -> None:
    await turn(file_store, "resp_1")
    path.unlink()
    if replaced:
        path.touch()
    with pytest.raises(StoreUnavailable, match="was removed or replaced; start the server again"):
        await turn(file_store, "resp_2")
    with pytest.raises(StoreUnavailable, match="was removed or replaced"):
        await file_store.check_writable()
    with pytest.raises(StoreUnavailable, match="was removed or replaced"):
        await file_store.response(OWNER, "resp_1")
    assert path.exists() == replaced
