"""The work of a session as a patch."""

from __future__ import annotations

import json
import os
import subprocess
from base64 import b64decode
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.commands.store import export
from codex_proxy.parts.snapshots import server_part
from codex_proxy.settings.fields import Settings
from tests.http.serving import settings_of
from tests.parts.snapshots.test_forks import fork
from tests.parts.snapshots.working import SETTINGS, Worker, snapshot_proxy


async def test_the_patch_of_a_fork_brings_its_work_back(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "text").write_text("one\ntwo\n")
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "first").write_text("1\n"))
        target = folder / "forked"
        made = await fork(client, worker.session, folder=str(target))
        copy = Worker(client, target)
        copy.session = made.body["id"]
        await copy.turn(lambda: (target / "text").write_text("one\n2\n"))
        await copy.turn(lambda: (target / "binary").write_bytes(b"\0\xff\1"))
        await copy.turn((target / "first").unlink)
        with open(target / "left out", "wb") as file:
            file.truncate(1 << 30)
        await copy.turn(lambda: (target / "sp ace").write_text("x"))
        answer = await client.proxy.session.get(
            f"{client.proxy.url}/v1/agents/sessions/{copy.session}/patch",
            headers={"OpenAI-Beta": "agents=v1"},
        )
        assert (answer.status, answer.content_type) == (200, "text/x-patch")
        patch = await answer.read()
        assert b"left out" not in patch
        (target / "left out").unlink()
        subprocess.run(["git", "apply", "-"], cwd=folder, input=patch, check=True)
        found = {path: (folder / path).read_bytes() for path in ("text", "binary", "sp ace")}
        assert found == {"text": b"one\n2\n", "binary": b"\0\xff\1", "sp ace": b"x"}
        assert not (folder / "first").exists()


async def test_a_file_that_has_become_too_large_is_not_in_the_patch(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, snapshot_max_file_bytes=100) as (client, folder):
        (folder / "grown").write_text("small")
        worker = Worker(client, folder)

        def work() -> None:
            (folder / "grown").write_text("x" * 101)
            (folder / "a" / "b").mkdir(parents=True)
            (folder / "a" / "b" / "c").write_text("1\n")

        await worker.turn(work)
        answer = await client.proxy.session.get(
            f"{client.proxy.url}/v1/agents/sessions/{worker.session}/patch",
            headers={"OpenAI-Beta": "agents=v1"},
        )
        patch = await answer.text()
        assert (answer.status, patch.count("diff --git")) == (200, 1), patch
        assert "+++ b/a/b/c\n" in patch


async def test_a_session_without_kept_files_has_no_patch(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, sandbox="read-only") as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: None)
        assert (await client.ask("GET", f"/sessions/{worker.session}/patch")).status == 409


async def test_an_export_of_the_store_has_the_patch_of_each_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("one\n")
        worker = Worker(client, folder)
        ids = [
            await worker.turn(lambda: (folder / "a").write_text("two\n")),
            await worker.turn(lambda: (folder / "b").write_bytes(b"\xff\n")),
            await worker.turn(lambda: None),
        ]
        settings = settings_of(folder, **SETTINGS, state_dir=tmp_path / "state")
    found = await exported_turns(settings)
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "a").write_text("one\n")
    for patch in (found[ids[0]]["patch"].encode(), b64decode(found[ids[1]]["patch_base64"])):
        subprocess.run(["git", "apply"], input=patch, cwd=tmp_path / "copy", check=True)
    assert (tmp_path / "copy" / "a").read_text() == "two\n"
    assert (tmp_path / "copy" / "b").read_bytes() == b"\xff\n"
    assert found[ids[2]]["patch"] == ""

    monkeypatch.setattr(server_part, "MAX_PATCH", 10)
    assert (await exported_turns(settings))[ids[0]]["patch_missing"] == "it has more than 10 bytes"
    monkeypatch.setenv("PATH", "")
    assert "there is no git" in (await exported_turns(settings))[ids[0]]["patch_missing"]


async def exported_turns(settings: Settings) -> dict[str, Any]:
    """The exported lines of the files of turns, by the turn."""
    lines: list[bytes] = []
    await export(settings, lines.append, os.environ)
    found = [json.loads(line) for line in lines]
    return {each["parent"]: each for each in found if each.get("kind") == "turn_files"}
