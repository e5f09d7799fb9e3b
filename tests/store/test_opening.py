"""Opening a file: what is made, what is refused and left alone, and every earlier version brought up."""

from __future__ import annotations

import asyncio
import os
import random
import sqlite3
import stat
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from codex_proxy.store.sqlite import opening
from codex_proxy.store.sqlite.opening import FILES, LATEST_VERSION, connect, migrate
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.store import Store
from codex_proxy.store.values import (
    ContextLimits,
    ContextTooLarge,
    StoreRefused,
    StoreUnavailable,
)
from tests.store.conftest import Connections
from tests.store.stored import OWNER, Hands, turn
from tests.waiting import PATIENCE


def schema(path: Path) -> list[tuple[str, ...]]:
    connection = connect(str(path), 0.0)
    rows = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master ORDER BY name").fetchall()
    connection.close()
    return rows


async def opened_and_closed(path: Path) -> None:
    await (await SqliteStore.open(path, clock=Hands(), lock_wait=0.05)).close()


async def refusal_of(path: Path) -> str:
    """Why; and that the file is as it was."""
    before = path.read_bytes()
    with pytest.raises(StoreRefused) as refusal:
        await opened_and_closed(path)
    assert path.read_bytes() == before
    assert str(path) in str(refusal.value)
    return str(refusal.value)


# --- what is made -------------------------------------------------------------------------------


async def test_only_its_owner_may_read_a_store(file_store: Store, path: Path) -> None:
    await turn(file_store, "resp_1")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {"store.db": 0o600, "store.db-wal": 0o600, "store.db-shm": 0o600}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def test_a_file_that_others_may_read_is_closed_to_them(path: Path) -> None:
    await opened_and_closed(path)
    path.chmod(0o644)
    await opened_and_closed(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("foreign", ["no database", "another program's"])
async def test_a_file_that_is_refused_keeps_its_permissions(path: Path, foreign: str) -> None:
    path.parent.mkdir()
    if foreign == "no database":
        path.write_bytes(b"not a database at all\n" * 500)
    else:
        connection = connect(str(path), 0.0)
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
        connection.close()
    path.chmod(0o644)
    await refusal_of(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644


async def test_a_file_with_a_second_name_is_refused_under_both(path: Path, tmp_path: Path) -> None:
    await opened_and_closed(path)
    os.link(path, tmp_path / "other.db")
    assert "second name" in await refusal_of(path)
    assert "second name" in await refusal_of(tmp_path / "other.db")


async def test_a_file_of_another_user_is_refused(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    await opened_and_closed(path)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert "belongs to another user" in await refusal_of(path)


async def test_a_symbolic_link_to_a_store_is_the_store_and_its_log_lies_beside_it(
    path: Path, tmp_path: Path
) -> None:
    await opened_and_closed(path)
    (tmp_path / "link.db").symlink_to(path)
    store = await SqliteStore.open(tmp_path / "link.db", clock=Hands())
    await turn(store, "resp_1")
    assert {each.name for each in tmp_path.iterdir()} == {"state", "link.db"}
    await store.close()


async def test_an_existing_folder_keeps_its_permissions(path: Path) -> None:
    path.parent.mkdir()
    path.parent.chmod(0o755)
    await opened_and_closed(path)
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o755


async def test_commits_are_flushed_to_the_disk(file_store: Store, connections: Connections) -> None:
    writing = connections[0]
    assert writing.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert writing.execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
    assert writing.execute("PRAGMA auto_vacuum").fetchone() == (2,)  # INCREMENTAL


async def test_reading_connections_cannot_write(file_store: Store, connections: Connections) -> None:
    await file_store.response(OWNER, "resp_1")
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connections[1].execute("DELETE FROM responses")


async def test_what_was_stored_is_there_when_it_is_opened_again(path: Path) -> None:
    store = await SqliteStore.open(path, clock=Hands())
    await turn(store, "resp_1")
    await store.close()
    again = await SqliteStore.open(path, clock=Hands())
    assert await again.response(OWNER, "resp_1") is not None
    await again.close()


async def test_a_store_may_be_opened_by_many_at_the_same_moment(path: Path) -> None:
    stores = await asyncio.gather(*(SqliteStore.open(path, clock=Hands()) for _ in range(8)))
    await asyncio.gather(*(turn(store, f"resp_{number}") for number, store in enumerate(stores)))
    assert {(await store.stats()).responses for store in stores} == {8}
    for store in stores:
        await store.close()


async def test_closing_again_is_harmless_and_everything_else_is_refused(path: Path) -> None:
    store = await SqliteStore.open(path, clock=Hands())
    await store.close()
    await store.close()
    with pytest.raises(StoreUnavailable, match="closed"):
        await turn(store, "resp_1")
    with pytest.raises(StoreUnavailable, match="closed"):
        await store.response(OWNER, "resp_1")


def test_the_interface_is_imported_without_a_database() -> None:
    code = (
        "import sys, codex_proxy.store.values; print([m for m in ('sqlite3', 'asyncio') if m in sys.modules])"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=PATIENCE
    )
    assert told.stdout.strip() == "[]"


# --- what is refused ----------------------------------------------------------------------------


async def test_a_file_that_is_no_database_is_refused(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"not a database at all\n" * 500)
    assert "damaged or not a database" in await refusal_of(path)


@pytest.mark.parametrize("damage", ["cut", "header", "inside"])
async def test_a_damaged_file_is_refused(path: Path, damage: str) -> None:
    store = await SqliteStore.open(path, clock=Hands())
    for number in range(50):
        await turn(store, f"resp_{number}", size=3000)
    await store.close()
    data = bytearray(path.read_bytes())
    if damage == "cut":
        del data[len(data) // 2 :]
    elif damage == "header":
        data[:50] = random.Random(1).randbytes(50)
    else:
        data[8192 : 8192 * 8] = random.Random(1).randbytes(8192 * 7)
    path.write_bytes(data)
    assert "move it away" in await refusal_of(path)


async def test_a_copy_beside_the_log_of_another_file_is_refused_and_used_without_it(path: Path) -> None:
    """As when a copy is restored after the server was killed."""
    store = await SqliteStore.open(path, clock=Hands())
    await turn(store, "resp_1")
    copy, log = path.with_name("copy.db"), Path(f"{path}-wal")
    with closing(connect(str(path), 0.0)) as source, closing(connect(str(copy), 0.0)) as target:
        source.backup(target)
        for number in range(2, 60):
            await turn(store, f"resp_{number}")
        source.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    for number in range(60, 90):
        await turn(store, f"resp_{number}")
    left = log.read_bytes()
    await store.close()
    copy.rename(path)
    log.write_bytes(left)
    assert "if it is a copy, remove the -wal and -shm of the old file" in await refusal_of(path)
    log.unlink()
    Path(f"{path}-shm").unlink(missing_ok=True)
    store = await SqliteStore.open(path, clock=Hands())
    assert await store.response(OWNER, "resp_1")
    await store.close()


async def test_a_file_of_a_newer_version_is_refused(path: Path) -> None:
    await opened_and_closed(path)
    connection = connect(str(path), 0.0)
    connection.execute(f"PRAGMA user_version = {LATEST_VERSION + 1}")
    connection.close()
    reason = await refusal_of(path)
    assert f"its schema is {LATEST_VERSION + 1}, this version supports {LATEST_VERSION}" in reason
    assert "run that version" in reason


async def test_a_database_of_another_program_is_refused(path: Path) -> None:
    path.parent.mkdir()
    connection = connect(str(path), 0.0)
    connection.execute("CREATE TABLE bookmarks (url TEXT)")
    connection.close()
    assert "another program's database" in await refusal_of(path)


async def test_a_folder_in_the_place_of_the_file_is_refused(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(StoreRefused, match="is no file"):
        await opened_and_closed(path)


async def test_a_place_where_no_file_can_be_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreRefused, match=r"File exists|Not a directory"):
        await opened_and_closed(tmp_path / "file" / "store.db")


async def test_a_file_that_another_process_holds_is_unavailable(path: Path) -> None:
    path.parent.mkdir()
    other = connect(str(path), 0.0)
    other.execute("BEGIN EXCLUSIVE")
    with pytest.raises(StoreUnavailable, match="locked by another process"):
        await opened_and_closed(path)
    other.execute("ROLLBACK")
    other.close()
    await opened_and_closed(path)


async def test_a_large_file_is_not_looked_through_at_the_start(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statements: list[str] = []

    def traced(name: str, lock_wait: float) -> sqlite3.Connection:
        connection = connect(name, lock_wait)
        connection.set_trace_callback(statements.append)
        return connection

    await opened_and_closed(path)
    monkeypatch.setattr(opening, "CHECKED_BYTES", os.stat(path).st_size - 1)
    await (await SqliteStore.open(path, clock=Hands(), opener=traced)).close()
    assert "PRAGMA user_version" in statements
    assert not [each for each in statements if "quick_check" in each]


# --- versions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(LATEST_VERSION))
async def test_every_earlier_version_becomes_the_same_as_a_new_file(
    path: Path, tmp_path: Path, version: int
) -> None:
    path.parent.mkdir()
    connection = connect(str(path), 0.0)
    migrate(connection, to=version)
    connection.close()
    await opened_and_closed(path)
    await opened_and_closed(tmp_path / "new.db")
    assert schema(path) == schema(tmp_path / "new.db")


async def test_what_the_first_version_remembered_is_still_known(path: Path) -> None:
    path.parent.mkdir()
    clock = Hands()
    connection = connect(str(path), 0.0)
    migrate(connection, to=1)
    connection.execute(
        "INSERT INTO steps (owner, key, created, value) VALUES (?, ?, ?, ?)",
        (OWNER, b"key", clock.now, b"step"),
    )
    connection.close()
    store = await SqliteStore.open(path, clock=clock)
    assert (await store.recall(OWNER, [b"key"]))[b"key"] == b"step"
    await store.close()


async def test_what_a_conversation_of_an_earlier_version_holds_is_counted(path: Path) -> None:
    path.parent.mkdir()
    connection = connect(str(path), 0.0)
    migrate(connection, to=4)
    connection.execute("INSERT INTO conversations VALUES (1, ?, 'conv_1', 0, 0, 1, 2, '{}')", (OWNER,))
    for number in (1, 2):
        values = (number, OWNER, f"item_{number}", bytes([number]), b"x" * 1000)
        connection.execute("INSERT INTO items VALUES (?, ?, ?, ?, 0, ?, x'')", values)
        connection.execute(
            "INSERT INTO conversation_items VALUES (1, ?, ?, ?, 1)", (number, number, f"item_{number}")
        )
    connection.close()
    store = await SqliteStore.open(path, clock=Hands(), limits=ContextLimits(max_bytes=1999))
    with pytest.raises(ContextTooLarge, match="2 items of 2000 bytes"):
        await store.scan_conversation(OWNER, "conv_1", print)
    await store.close()


def test_a_migration_that_fails_leaves_the_file_as_it_was(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path.parent.mkdir()
    connection = connect(str(path), 0.0)
    migrate(connection, to=1)
    before = schema(path)
    wrong = tmp_path / "0002.sql"
    wrong.write_text("CREATE TABLE half (done TEXT);\nNO STATEMENT;\n")
    monkeypatch.setattr("codex_proxy.store.sqlite.opening.FILES", [FILES[0], wrong])
    with pytest.raises(sqlite3.OperationalError):
        migrate(connection, to=2)
    connection.close()
    assert schema(path) == before
