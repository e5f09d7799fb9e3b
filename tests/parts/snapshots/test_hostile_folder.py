"""A folder in which everything is set up to run a program, to be written to, or to be read from outside of it."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.parts.snapshots.working import Worker, snapshot_proxy

ODD_NAMES = (
    *(b"line\nbreak", b'"quoted"', b"tab\there", b"\xff\xfe not UTF-8", b"-rf", b" space ", b":(glob)*"),
    *(b"back\\slash", b"x" * 250, "caf\u00e9".encode(), "\u202egnp.exe".encode(), b"...", b"git~1"),
)


@pytest.fixture
def planted(tmp_path: Path) -> tuple[str, Path]:
    """Returns a program, and the file that exists as soon as it has run."""
    ran, program = tmp_path / "ran", tmp_path / "planted"
    program.write_text(f"#!/bin/sh\ntouch '{ran}'\ncat\n")
    program.chmod(0o755)
    return str(program), ran


def make_repository(folder: Path, program: str) -> None:
    """Makes a repository whose configuration, attributes and hooks run the program."""
    folder.mkdir(parents=True, exist_ok=True)
    git(folder, "init", "-q")
    for key in ("core.fsmonitor", "core.pager", "core.sshCommand", "diff.external", "gpg.program"):
        git(folder, "config", key, program)
    for key in ("clean", "smudge", "process"):
        git(folder, "config", f"filter.planted.{key}", program)
    for key in ("command", "textconv"):
        git(folder, "config", f"diff.planted.{key}", program)
    git(folder, "config", "filter.planted.required", "true")
    hooks = folder / ".git" / "hooks"
    for name in ("pre-commit", "post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc"):
        (hooks / name).write_text(f"#!/bin/sh\n{program}\n")
        (hooks / name).chmod(0o755)
    rules = "* filter=planted diff=planted text=auto ident working-tree-encoding=UTF-16\n"
    (folder / ".gitattributes").write_text(rules)
    (folder / "dollar.txt").write_bytes(b"$Id$\r\n")
    (folder / "lines.txt").write_bytes(b"one\r\ntwo\n")


def git(folder: Path, *arguments: str) -> None:
    own = {"PATH": "/usr/bin:/bin", "HOME": "/nonexistent"}
    subprocess.run(["git", *arguments], cwd=folder, env=own, check=False, capture_output=True)


def make_hostile(folder: Path, program: str, outside: Path) -> None:
    make_repository(folder, program)
    make_repository(folder / "nested", program)
    make_repository(folder / "nested" / "deeper", program)
    (folder / ".gitmodules").write_text('[submodule "nested"]\n\tpath = nested\n\turl = ext::planted\n')
    outside.mkdir()
    (outside / "secret").write_text("secret")
    (folder / "link-to-folder").symlink_to(outside)
    (folder / "link-to-file").symlink_to(outside / "secret")
    (folder / "link-to-nothing").symlink_to("nothing")
    (folder / "loop").symlink_to("loop")
    os.mkfifo(folder / "pipe")
    for name in ODD_NAMES:
        (Path(os.fsdecode(os.fsencode(folder) + b"/" + name))).write_bytes(name)


def look(folder: Path) -> dict[str, tuple[object, ...]]:
    """Returns all that can be seen of a folder, with its `.git`."""
    found: dict[str, tuple[object, ...]] = {}
    for place, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = os.path.join(place, name)
            status = os.lstat(path)
            content = os.readlink(path) if os.path.islink(path) else ""
            if stat.S_ISREG(status.st_mode):
                content = hashlib.sha256(Path(path).read_bytes()).hexdigest()
            times = (status.st_mtime_ns, status.st_ctime_ns) if not stat.S_ISDIR(status.st_mode) else ()
            found[os.path.relpath(path, folder)] = (status.st_mode, status.st_ino, content, *times)
    return found


def content_of(folder: Path) -> dict[str, tuple[object, ...]]:
    """Returns modes and contents alone."""
    return {path: (each[0], each[2]) for path, each in look(folder).items()}


def test_the_planted_program_runs_with_an_ordinary_git(tmp_path: Path, planted: tuple[str, Path]) -> None:
    program, ran = planted
    make_hostile(tmp_path / "work", program, tmp_path / "outside")
    git(tmp_path / "work", "add", "-A")
    assert ran.exists()


async def test_nothing_of_a_hostile_folder_is_run_changed_or_followed(
    tmp_path: Path, planted: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    program, ran = planted
    folder = tmp_path / "work"
    make_hostile(folder, program, tmp_path / "outside")
    ran.unlink(missing_ok=True)
    for name in ("GIT_EXTERNAL_DIFF", "GIT_PAGER", "GIT_SSH_COMMAND", "GIT_PROXY_COMMAND"):
        monkeypatch.setenv(name, program)
    monkeypatch.setenv("GIT_DIR", str(folder / ".git"))
    monkeypatch.setenv("GIT_WORK_TREE", str(folder))
    monkeypatch.setenv("GIT_INDEX_FILE", str(folder / ".git" / "index"))
    async with snapshot_proxy(tmp_path) as (client, _):
        worker = Worker(client, folder)
        before = look(folder)
        first = await worker.turn(lambda: None)
        changes = await worker.changes(first)
        assert (changes["state"], changes["data"], changes["left_out"]) == ("kept", [], ["pipe"])
        assert look(folder) == before
        at_start = content_of(folder)

        def work() -> None:
            for repository in (".git", "nested/.git"):
                (folder / repository / "planted").write_text(program)
            (folder / "nested" / "lines.txt").write_bytes(b"three\r\n")
            (folder / "nested" / "dollar.txt").write_bytes(b"$Id: 1 $")
            (folder / "link-to-file").unlink()
            (folder / "link-to-file").symlink_to("/etc/passwd")
            (folder / "link-to-folder").unlink()
            shutil.copytree(tmp_path / "outside", folder / "link-to-folder")
            for name in ODD_NAMES:
                os.unlink(os.fsencode(folder) + b"/" + name)

        second = await worker.turn(work)
        changed = look(folder)
        changes = await worker.changes(second)
        paths = [each["path"] for each in changes["data"]]
        assert len(paths) == 5 + len(ODD_NAMES)
        assert all(path.isprintable() for path in paths)
        assert {"nested/lines.txt", "nested/dollar.txt", "link-to-folder/secret"} < set(paths)
        diffs = {each["path"]: each["diff"] for each in changes["data"]}
        assert diffs["nested/lines.txt"] == "@@ -1,2 +1 @@\n-one\\r\n-two\n+three\\r\n"
        assert "secret" not in (diffs["link-to-file"] or "").replace("outside/secret", "")
        assert look(folder) == changed
        answer = await worker.revert(second)
        assert answer.status == 200, answer.text
        for repository in (".git", "nested/.git"):
            (folder / repository / "planted").unlink()
        assert content_of(folder) == at_start
    assert not ran.exists()
    assert (tmp_path / "outside" / "secret").read_text() == "secret"


def hides(folder: Path) -> None:
    (folder / "hidden").write_text("hidden")
    (folder / ".gitignore").write_text("hidden\nshown\n")
    (folder / "shown").write_text("changed")


def excludes(folder: Path) -> None:
    (folder / ".git" / "info" / "exclude").write_text("hidden\nshown\n")
    (folder / "hidden").write_text("hidden")
    (folder / "shown").write_text("changed")


@pytest.mark.parametrize("hide", [hides, excludes])
async def test_rules_that_a_turn_writes_hide_nothing_of_it(
    hide: Callable[[Path], None], tmp_path: Path
) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / ".git" / "info").mkdir(parents=True)
        (folder / "shown").write_text("1")
        worker = Worker(client, folder)
        changes = await worker.changes(await worker.turn(lambda: hide(folder)))
        assert {"hidden", "shown"} <= {each["path"] for each in changes["data"]}
        assert changes["newly_ignored"] == ["hidden", "shown"]


async def test_what_is_ignored_before_a_turn_is_not_kept(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path / "above") as (client, folder):
        (tmp_path / "above" / ".git" / "info").mkdir(parents=True)
        (tmp_path / "above" / ".git" / "info" / "exclude").write_text("excluded\n")
        (tmp_path / "above" / ".gitignore").write_text("work/above\n*.log\n")
        (folder / ".gitignore").write_text("/build/\n!kept.log\n")
        worker = Worker(client, folder)

        def work() -> None:
            for name in ("excluded", "above", "a.log", "kept.log", "build/x", "sub/build", "sub/above"):
                (folder / name).parent.mkdir(exist_ok=True)
                (folder / name).write_text(name)

        changes = await worker.changes(await worker.turn(work))
        assert [each["path"] for each in changes["data"]] == ["kept.log", "sub/above", "sub/build"]
