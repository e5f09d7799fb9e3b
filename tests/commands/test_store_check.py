"""What `doctor` says about the store: what the start would say, without a change."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.app.store_lifecycle import open_store, open_store_lifecycle
from codex_proxy.app.system import SystemClock
from codex_proxy.commands.checks import keys_check, store_check
from codex_proxy.core.checks import Check
from codex_proxy.core.keys import Key, digest_of
from codex_proxy.settings.fields import Settings
from tests.missing import require
from tests.postgres import PostgresServer


def settings_of(folder: Path, **more: Any) -> Settings:
    given: dict[str, Any] = {"agent": "fake", "state_dir": folder / "state"}
    return Settings(**(given | more))


async def check_of_store(folder: Path, store: str) -> Check:
    check, _ = await store_check(settings_of(folder, store=store))
    return check


def files_below(folder: Path) -> set[Path]:
    return set(folder.rglob("*"))


async def test_a_file_that_is_no_store_fails_and_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "notes.txt"
    file.write_text("Buy milk, and a long enough text for a header of SQLite. " * 3)
    file.chmod(0o600)
    check = await check_of_store(tmp_path, str(file))
    assert (check.status, "not a database" in check.message) == ("failed", True)
    assert files_below(tmp_path) == {file}


async def test_another_programs_database_fails(tmp_path: Path) -> None:
    file = tmp_path / "other.sqlite3"
    with sqlite3.connect(file) as connection:
        connection.execute("CREATE TABLE t (x)")
    connection.close()
    check = await check_of_store(tmp_path, str(file))
    assert (check.status, "another program's" in check.message) == ("failed", True)


async def test_what_to_do_about_a_store_is_the_advice_and_not_a_part_of_the_message(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    lifecycle = await open_store_lifecycle(settings, SystemClock())
    assert lifecycle is not None
    try:
        check = await check_of_store(tmp_path, "sqlite")
    finally:
        await lifecycle.close()
    assert check.message.startswith("The server would not start: another server (process")
    assert check.message.endswith("store.sqlite3.")
    assert check.advice.startswith("Use or stop that server, or start this one with another port (--port)")


async def test_a_file_below_a_file_cannot_be_created(tmp_path: Path) -> None:
    (tmp_path / "file").touch(mode=0o700)
    check = await check_of_store(tmp_path, str(tmp_path / "file" / "store.sqlite3"))
    assert (check.status, "cannot be created" in check.message) == ("failed", True)


@pytest.mark.parametrize("store", ["sqlite", "memory", "off"])
async def test_a_store_that_does_not_exist_yet_is_fine_and_is_not_created(tmp_path: Path, store: str) -> None:
    assert (await check_of_store(tmp_path, store)).status == "ok"
    assert not files_below(tmp_path)


async def test_a_store_is_fine_while_a_server_uses_it_and_afterwards(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    opened = await open_store(settings, SystemClock())
    assert (await check_of_store(tmp_path, "sqlite")).status == "ok"
    await opened.close()
    before = files_below(tmp_path)
    assert (await check_of_store(tmp_path, "sqlite")).status == "ok"
    assert files_below(tmp_path) == before


@pytest.mark.part("machines")
async def test_a_database_that_cannot_be_reached_fails(tmp_path: Path) -> None:
    require("asyncpg")
    settings = settings_of(tmp_path, store=f"postgresql://ann:secret@/db?host={tmp_path}")
    check, keys = await store_check(settings)
    assert (check.status, "cannot be reached" in check.message) == ("failed", True)
    assert "secret" not in check.message
    assert keys_check(settings, keys).status == "skipped"


@pytest.mark.part("machines")
@pytest.mark.parametrize(
    "password", ["my/secret", "my?secret", "my#secret", "my@secret", "my[secret", "my%zzsecret"]
)
async def test_a_password_is_not_shown_whatever_its_characters_do_to_the_url(
    tmp_path: Path, password: str
) -> None:
    check = await check_of_store(tmp_path, f"postgresql://ann:{password}@localhost:1/db")
    assert check.status == "failed"
    assert "secret" not in f"{check.message} {check.advice}"


@pytest.mark.part("machines")
async def test_the_keys_of_a_database_are_named_and_its_tables_are_not_made(
    tmp_path: Path, postgres_server: PostgresServer
) -> None:
    import asyncpg  # a package that only some tests need

    connection = await asyncpg.connect(postgres_server.url)
    await connection.execute("CREATE DATABASE fresh")
    await connection.close()
    settings = settings_of(tmp_path, store=postgres_server.url.replace("/postgres?", "/fresh?"))
    check, keys = await store_check(settings)
    assert (check.status, keys) == ("ok", ())
    import asyncpg  # a package that only some tests need

    connection = await asyncpg.connect(settings.store)
    assert not await connection.fetch("SELECT FROM pg_namespace WHERE nspname = 'codex_proxy'")
    await connection.close()
    store = await open_store(settings, SystemClock())
    assert store.team is not None
    await store.team.put_key(Key(name="laptop", sha256=digest_of("a")), replace=False)
    await store.close()
    check, keys = await store_check(settings)
    assert check.status == "ok"
    assert "laptop" in keys_check(settings, keys).message
