"""`codex-proxy store`: what it prints, and what it says when it cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from codex_proxy.store.sqlite.opening import StoreLock
from codex_proxy.store.sqlite.store import SqliteStore
from tests.commands.codexes import command
from tests.store.stored import Hands, turn


async def test_the_oldest_response_has_a_date_and_json_the_seconds(tmp_path: Path) -> None:
    store = await SqliteStore.open(tmp_path / "a.db", clock=Hands())
    await turn(store, "root")
    await store.close()
    place = {"PROXY_STORE": str(tmp_path / "a.db")}
    shown = await command(tmp_path, "store", "stats", more=place)
    assert "oldest          19" in shown.out or "oldest          20" in shown.out
    assert isinstance((await command(tmp_path, "store", "stats", "--json", more=place)).json["oldest"], float)


@pytest.mark.part("machines")
async def test_a_store_that_a_server_uses_is_not_copied_and_it_says_what_to_stop(tmp_path: Path) -> None:
    source = tmp_path / "a.db"
    await (await SqliteStore.open(source, clock=Hands())).close()
    lock = await StoreLock.take(source)
    done = await command(tmp_path, "store", "copy", str(source), str(tmp_path / "b.db"))
    lock.release()
    assert done.status == 1
    assert f"keeps its responses in {source}: stop it first" in done.err
