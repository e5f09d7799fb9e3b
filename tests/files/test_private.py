"""Files and folders for their owner alone, whatever the umask and whatever stands in their place."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from codex_proxy.files import private
from tests.waiting import PATIENCE


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


@pytest.fixture(autouse=True, params=[0o000, 0o022, 0o277])
def umask(request: pytest.FixtureRequest) -> Iterator[None]:
    before = os.umask(request.param)
    yield
    os.umask(before)


def test_every_folder_that_has_to_be_made_is_closed(tmp_path: Path) -> None:
    os.umask(0)
    private.make_folder(tmp_path / "a" / "b" / "c")
    assert [mode_of(tmp_path / each) for each in ("a", "a/b", "a/b/c")] == [0o700] * 3
    private.make_folder(tmp_path / "a" / "b" / "c")


def test_a_new_file_is_closed_and_never_made_through_a_link(tmp_path: Path) -> None:
    os.close(private.create(tmp_path / "file"))
    assert mode_of(tmp_path / "file") == 0o600
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(FileExistsError):
        private.create(tmp_path / "link")
    assert not (tmp_path / "elsewhere").exists()


def test_a_file_is_replaced_as_a_whole_and_closed(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"old")
    file.chmod(0o644)
    with private.replace_file(file) as out:
        out.write(b"new")
        assert file.read_bytes() == b"old"
    assert (file.read_bytes(), mode_of(file)) == (b"new", 0o600)


def test_a_file_that_cannot_be_written_to_its_end_leaves_the_old_one_and_nothing_else(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def write_half() -> None:
        with private.replace_file(tmp_path / "file") as out:
            out.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write_half()
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_bytes() == b"old"


def test_a_pipe_is_written_to_as_it_is(tmp_path: Path) -> None:
    os.umask(0)
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    with private.replace_file(tmp_path / "pipe") as out:
        out.write(b"line")
    reader.join(PATIENCE)
    assert read == [b"line"]


def test_a_file_open_to_others_is_closed_to_them_but_never_a_links_target(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o644)
    (tmp_path / "link").symlink_to(tmp_path / "file")
    assert not private.close_to_others(tmp_path / "link")
    assert mode_of(tmp_path / "file") == 0o644
    assert private.close_to_others(tmp_path / "file")
    assert mode_of(tmp_path / "file") == 0o600
    assert not private.close_to_others(tmp_path / "file")


def test_a_file_of_another_user_is_left_alone_and_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o644)
    monkeypatch.setattr(os, "geteuid", lambda: 4242)
    assert not private.close_to_others(tmp_path / "file")
    assert "another user" in private.file_problem(tmp_path / "file")


def test_a_link_a_folder_and_a_file_with_two_names_are_unfit(tmp_path: Path) -> None:
    os.umask(0)
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "file")
    (tmp_path / "folder").mkdir()
    assert private.file_problem(tmp_path / "missing") == ""
    assert private.file_problem(tmp_path / "file") == ""
    assert "is a symbolic link" in private.file_problem(tmp_path / "link")
    assert private.file_problem(tmp_path / "folder") == "is no file"
    os.link(tmp_path / "file", tmp_path / "other")
    assert "second name" in private.file_problem(tmp_path / "file")
