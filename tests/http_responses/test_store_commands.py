"""`codex-proxy store`: over a store that a server has filled."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.forking import run_command
from tests.http_responses.asking import create, prompt_for, proxy_and_client


@dataclass(frozen=True)
class CommandResult:
    """A command that has ended."""

    returncode: int
    stdout: str
    stderr: str


def store_command(folder: Path, *arguments: str) -> CommandResult:
    environment = {
        "PATH": os.defpath,
        "HOME": str(folder),
        "PROXY_STATE_DIR": str(folder / "state"),
        "PROXY_STORE_MAX_AGE": "60",
    }
    done = run_command(("store", *arguments), env=environment, cwd=folder)
    return CommandResult(done.returncode, done.stdout.decode(), done.stderr.decode())


async def test_stats_and_export_show_what_a_server_has_stored(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path) as (proxy, client):
        response = (await create(proxy, prompt_for("Hello."))).body
        conversation = await client.conversations.create()
        stats = store_command(tmp_path, "stats", "--json")  # while the server runs
    assert json.loads(stats.stdout)["responses"] == 1
    exported = store_command(tmp_path, "export")
    lines = [json.loads(line) for line in exported.stdout.splitlines()]
    assert "2 objects" in exported.stderr
    assert response["id"] in json.dumps(lines[0])
    assert conversation.id in json.dumps(lines[1])


async def test_an_exported_file_is_for_its_owner_alone_also_in_the_place_of_an_open_one(
    tmp_path: Path,
) -> None:
    async with proxy_and_client(tmp_path) as (proxy, _):
        await create(proxy, prompt_for("Hello."))
    before = os.umask(0)
    try:
        for name in ("new", "open"):
            (tmp_path / "open").touch(0o666)
            done = store_command(tmp_path, "export", "--output", str(tmp_path / name))
            assert "1 objects" in done.stderr
            assert (tmp_path / name).stat().st_mode & 0o777 == 0o600
            assert len((tmp_path / name).read_text().splitlines()) == 1
        failed = store_command(tmp_path, "export", "--output", str(tmp_path / "nowhere" / "file"))
        assert (failed.returncode, "cannot be written" in failed.stderr) == (1, True)
    finally:
        os.umask(before)


async def test_an_export_replaces_none_of_the_servers_own_files(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path) as (proxy, _):
        await create(proxy, prompt_for("Hello."))
    state = tmp_path / "state"
    (tmp_path / "link").symlink_to(state / "store.sqlite3")
    own = [state / f"store.sqlite3{end}" for end in ("", "-wal", ".lock")]
    for output in (*own, state / "keys.toml", tmp_path / "link"):
        refused = store_command(tmp_path, "export", "--output", str(output))
        assert (refused.returncode, "Name a file elsewhere" in refused.stderr) == (1, True)
    assert "1 objects" in store_command(tmp_path, "export").stderr


async def test_an_export_to_a_closed_standard_output_is_refused(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path):
        pass
    done = subprocess.run(
        ["sh", "-c", '"$0" -m codex_proxy store export >&-', sys.executable],
        env={"PATH": os.defpath, "PROXY_STATE_DIR": str(tmp_path / "state")},
        capture_output=True,
    )
    assert (done.returncode, b"standard output is closed" in done.stderr) == (1, True)


async def test_data_damaged_on_the_disk_is_a_500_and_the_operator_finds_it(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path) as (proxy, _):
        first, second = [(await create(proxy, prompt_for(text))).body["id"] for text in ("One.", "Two.")]
        assert "rows are intact" in store_command(tmp_path, "check").stdout
        database = sqlite3.connect(tmp_path / "state" / "store.sqlite3")
        database.execute("UPDATE response_bodies SET json = x'7b7d' WHERE response = 1")
        database.commit()
        database.close()
        answer = await proxy.send("GET", f"/v1/responses/{first}")
        assert (answer.status, answer.error["code"]) == (500, "store_damaged")
        assert "codex-proxy store check" in answer.error["message"]
        assert (await proxy.send("GET", f"/v1/responses/{second}")).status == 200
        checked = store_command(tmp_path, "check")
    assert checked.returncode == 1
    assert f"the response {first}" in checked.stderr


async def test_prune_removes_what_is_too_old(tmp_path: Path) -> None:
    async with proxy_and_client(tmp_path) as (proxy, _):
        await create(proxy)
    database = sqlite3.connect(tmp_path / "state" / "store.sqlite3")
    database.execute("UPDATE responses SET created = created - 3600")
    database.commit()
    database.close()
    assert "removed: 1 responses" in store_command(tmp_path, "prune").stdout
    assert json.loads(store_command(tmp_path, "stats", "--json").stdout)["responses"] == 0


def test_without_a_store_every_command_says_where_it_looked(tmp_path: Path) -> None:
    for command in ("stats", "prune", "check", "export"):
        done = store_command(tmp_path, command)
        assert done.returncode == 1
        assert str(tmp_path / "state" / "store.sqlite3") in done.stderr
    assert not (tmp_path / "state").exists()
