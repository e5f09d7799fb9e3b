"""How many bytes snapshots may have, beside those of worktrees, and where worktrees may be."""

from __future__ import annotations

import os
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts.snapshots.checks import checks
from codex_proxy.parts.snapshots.git import GitDirectory, git_on_path
from codex_proxy.parts.snapshots.handlers import KEEPER
from tests.http.serving import settings_of
from tests.parts.snapshots.test_alone import proxy_at, writing
from tests.parts.snapshots.test_worktrees import in_worktree
from tests.parts.snapshots.working import SETTINGS, Worker, snapshot_proxy


async def test_worktrees_and_other_folders_have_their_bytes_together(tmp_path: Path) -> None:
    bytes_of = random.Random(1).randbytes
    async with snapshot_proxy(tmp_path, snapshot_max_total_bytes=100_000) as (client, folder):
        for name in ("plain", "copied"):
            (folder / name).mkdir()
        (folder / "copied" / "large").write_bytes(bytes_of(20_000))
        await in_worktree(client, folder / "copied")
        plain = Worker(client, folder / "plain")
        turns = [
            await plain.turn(lambda: (folder / "plain" / "a").write_bytes(bytes_of(20_000))) for _ in range(3)
        ]
        await client.proxy.app[KEEPER].prune()
        assert [(await plain.changes(turn))["state"] for turn in turns] == ["failed", "failed", "kept"]


def test_refs_are_found_without_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    git = GitDirectory(git_on_path(os.environ), tmp_path / "git")
    git.prepare()
    empty = git.run("hash-object", "--stdin").decode().strip()
    assert not git.has_refs("refs/worktrees/")
    git.set_refs({"refs/turns/worktrees": empty})
    assert not git.has_refs("refs/worktrees/")
    git.set_refs({"refs/worktrees/1/base": empty})
    assert git.has_refs("refs/worktrees/")
    git.repack()
    assert not list((git.path / "refs").rglob("base"))
    assert git.has_refs("refs/worktrees/")
    git.set_refs({"refs/worktrees/1/base": None})
    assert not git.has_refs("refs/worktrees/")


async def test_doctor_names_worktrees_in_the_folder_of_the_turns(tmp_path: Path) -> None:
    settings: dict[str, Any] = {**SETTINGS, "state_dir": tmp_path / "state"}
    environ = {"PATH": os.path.dirname(shutil.which("git") or "")}
    work = tmp_path / "work"
    work.mkdir()
    [git] = await checks(settings_of(work, **settings), environ)
    assert (git.name, git.status) == ("snapshots", "ok")
    below = settings_of(work, **settings, worktrees=work / "trees")
    [_, found] = await checks(below, environ)
    assert (found.name, found.status) == ("worktrees", "failed")
    assert "no turn that may write works there" in found.message


async def test_a_turn_above_the_worktrees_is_refused_with_their_setting(tmp_path: Path) -> None:
    async with proxy_at(tmp_path, worktrees=tmp_path / "work" / "trees") as (proxy, _):
        answer = await proxy.send("POST", "/v1/responses", {"model": "codex-5", "input": writing(a="1")})
        assert answer.status in (400, 403)
        assert "the folder of all worktrees (PROXY_WORKTREES) is" in answer.body["error"]["message"]
        assert "which its commands could change" in answer.body["error"]["message"]
