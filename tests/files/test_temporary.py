"""Temporary folders: nothing is left of them, even of a process that was killed, and nothing else is removed."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from codex_proxy.files import private
from codex_proxy.files.private import remove_left_folders, temporary_folder
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2] / "codex_proxy"
KILLED = """
import os, signal, sys
from codex_proxy.files.private import temporary_folder
with temporary_folder("test", sys.argv[1]) as folder:
    open(os.path.join(folder.path, "file"), "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""
INHERITS = """
import subprocess, sys
from codex_proxy.files.private import temporary_folder
with temporary_folder("test", sys.argv[1]) as folder:
    subprocess.Popen([sys.executable, "-c", "input()"], pass_fds=[folder.lock], stdout=subprocess.DEVNULL)
    print("started", flush=True)
    import os, signal
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_folder_is_empty_for_its_owner_alone_and_gone_afterwards(tmp_path: Path) -> None:
    with temporary_folder("test", tmp_path) as (folder, _):
        assert list(Path(folder).iterdir()) == []
        assert Path(folder).stat().st_mode & 0o077 == 0
        (Path(folder) / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_the_folder_of_one_who_was_killed_is_removed_and_one_in_use_is_not(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=PATIENCE)
    assert len(list(tmp_path.iterdir())) == 1
    with temporary_folder("test", tmp_path) as (folder, _):
        remove_left_folders(tmp_path)
        assert list(tmp_path.iterdir()) == [Path(folder)]


def test_a_child_that_inherits_the_lock_keeps_the_folder(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", INHERITS, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdin is not None
        process.wait(PATIENCE)
        remove_left_folders(tmp_path)
        [folder] = tmp_path.iterdir()
        process.stdin.close()
        ended = os.open(folder, os.O_RDONLY)
        fcntl.flock(ended, fcntl.LOCK_EX)
        os.close(ended)
    remove_left_folders(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_in_the_systems_folder_the_next_one_removes_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    (tmp_path / "codex-proxy-run-abcd1234.temporary").mkdir(0o700)
    with temporary_folder("test") as (folder, _):
        assert list(tmp_path.iterdir()) == [Path(folder)]


def test_a_folder_that_only_looks_like_a_left_one_stays(tmp_path: Path) -> None:
    name = "codex-proxy-run-abcd123{}.temporary"
    (tmp_path / "codex-proxy-run-of-mine.temporary").mkdir(0o700)
    (tmp_path / "codex-proxy-run-abcd1234").mkdir(0o700)
    (tmp_path / name.format(1)).symlink_to("codex-proxy-run-abcd1234")
    (tmp_path / name.format(2)).touch(0o700)
    (tmp_path / name.format(3)).mkdir()
    (tmp_path / name.format(3)).chmod(0o755)
    remove_left_folders(tmp_path)
    assert len(list(tmp_path.iterdir())) == 5
    remove_left_folders(tmp_path / "nowhere")


def test_the_folder_of_another_user_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "codex-proxy-run-abcd1234.temporary").mkdir(0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 123456)
    remove_left_folders(tmp_path)
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process takes it for one that was left: before it is opened, and between opening and locking."""
    open_folder, taken = private._opened, ["before", "between"]

    def opened(path: str) -> int:
        when = taken.pop() if taken else ""
        if when == "before":
            os.rmdir(path)
        lock = open_folder(path)
        if when == "between":
            os.rmdir(path)
        return lock

    monkeypatch.setattr(private, "_opened", opened)
    with temporary_folder("test", tmp_path) as (folder, _):
        assert list(tmp_path.iterdir()) == [Path(folder)]
    assert taken == []


def test_a_file_system_without_locks_has_folders_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(lock: int, how: int) -> None:
        raise OSError(95, "not supported")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with temporary_folder("test", tmp_path) as (folder, _):
        remove_left_folders(tmp_path)
        assert list(tmp_path.iterdir()) == [Path(folder)]


def test_no_other_module_makes_temporary_folders() -> None:
    """Such a folder would stay when its process is killed."""
    makes = ("TemporaryDirectory", "mkdtemp")
    found = {
        file.relative_to(ROOT).as_posix()
        for file in ROOT.rglob("*.py")
        if any(name in file.read_text("utf-8") for name in makes)
    }
    below_such_a_folder = "parts/acp/agent.py"
    assert found - {below_such_a_folder} == {"files/private.py"}
