"""How many bytes snapshots may have, beside those of worktrees, and where worktrees may be."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.faults import FaultKind, UserError
from codex_proxy.parts.snapshots.difference import Difference
from codex_proxy.parts.snapshots.folders import FolderSnapshots
from codex_proxy.parts.snapshots.git import MANY_REFS, GitDirectory, GitError, git_on_path, write_fault
from codex_proxy.parts.snapshots.handlers import KEEPER
from codex_proxy.parts.snapshots.objects import TreeEntry
from codex_proxy.parts.snapshots.repositories import commit_to_branch
from codex_proxy.parts.snapshots.server_part import checks, server_part
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


def test_many_refs_become_one_file_and_locks_of_killed_servers_go(tmp_path: Path) -> None:
    snapshots = FolderSnapshots(git_on_path(os.environ), tmp_path, "place")
    git = snapshots.git
    git.prepare()
    (snapshots.path / "lock").touch()
    empty = git.run("hash-object", "--stdin").decode().strip()
    git.set_refs({f"refs/turns/{number}/before": empty for number in range(MANY_REFS + 1)})
    for name in ("refs/turns/0/before.lock", "refs/turns/1/before.lock"):
        (git.path / name).touch()
    git.set_refs({"refs/turns/0/before": None})
    git.set_refs({"refs/turns/0/after": empty})
    snapshots.tidy()
    assert (git.loose_refs, len(git.refs())) == (0, MANY_REFS + 1)


def test_a_client_learns_of_a_full_disk_and_no_path() -> None:
    line = "git index-pack failed: fatal: cannot write /state/snapshots/x: No space left on device"
    fault = write_fault("The session cannot be merged", GitError(line))
    assert fault.failure.kind is FaultKind.UNAVAILABLE
    assert str(fault) == "The session cannot be merged: No space left."
    other = write_fault("The session cannot be merged", GitError("git mktree failed: /state/x is wrong"))
    assert "/state" not in str(other)


async def test_worktrees_where_no_turn_may_write_are_refused(tmp_path: Path) -> None:
    state, work = tmp_path / "state", tmp_path / "work"
    work.mkdir()
    settings: dict[str, Any] = {**SETTINGS, "state_dir": state, "worktrees": state / "trees"}
    wrong = settings_of(work, **settings)
    with pytest.raises(UserError, match=r"PROXY_WORKTREES .*trees cannot be used.*the state folder"):
        server_part(wrong, os.environ)
    assert not (state / "trees").exists()
    [_, found] = await checks(wrong, os.environ)
    assert (found.name, found.status) == ("worktrees", "failed")


def test_a_fault_of_the_server_is_not_told_as_one_of_the_repository(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, work = git_on_path(os.environ), tmp_path / "work"
    subprocess.run([program, "init", "-q", str(work)], check=True)
    objects = GitDirectory(program, tmp_path / "objects")
    objects.prepare()
    change = Difference(b"a", None, TreeEntry(0o100600, bytes(20)))

    def commit() -> None:
        commit_to_branch(program, str(work), objects, [change], "b", "m")

    with pytest.raises(GitError, match="pack-objects"):  # the server has no such object
        commit()

    def full(git: GitDirectory, *_: object) -> None:
        raise GitError("git index-pack failed: No space left on device", 128, git.path)

    monkeypatch.setattr(GitDirectory, "copy_objects", lambda _, __, to: full(to))
    with pytest.raises(GitError, match="No space left"):
        commit()


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
