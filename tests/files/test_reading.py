"""Reading files in a folder in which others write."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from codex_proxy.files.changes import status_mark
from codex_proxy.files.reading import READS, lasting, read_file


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    descriptor = os.open(tmp_path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def write_old(path: Path, text: str) -> None:
    """Writes a file whose content seems to be old: only the time of its last change of state says that it is new."""
    path.write_text(text)
    os.utime(path, (1, 1))


def test_a_file_that_was_changed_just_now_is_read_again_the_next_time(folder: int, tmp_path: Path) -> None:
    write_old(tmp_path / "a", "text")
    content, mark = read_file(folder, "a", 4)
    assert content == b"text"
    found = status_mark((tmp_path / "a").stat())
    assert mark != found
    assert mark[2:] == found[2:]


def test_a_mark_with_old_times_lasts() -> None:
    assert lasting((0o100644, 7, 4, 1, 1)) == (0o100644, 7, 4, 1, 1)


def test_a_file_that_changes_while_it_is_read_is_read_anew(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_old(tmp_path / "a", "old")
    real, texts = os.pread, ["longer", "new"]

    def change_first(descriptor: int, size: int, place: int) -> bytes:
        content = real(descriptor, size, place)
        if texts:
            (tmp_path / "a").write_text(texts.pop(0))
        return content

    monkeypatch.setattr(os, "pread", change_first)
    assert read_file(folder, "a", 10)[0] == b"new"


def test_a_file_that_never_rests_is_read_a_few_times(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("0")
    real, reads = os.pread, 0

    def change(descriptor: int, size: int, place: int) -> bytes:
        nonlocal reads
        reads += 1
        with (tmp_path / "a").open("a") as file:
            file.write("x")
        return real(descriptor, size, place)

    monkeypatch.setattr(os, "pread", change)
    _, mark = read_file(folder, "a", 100)
    assert (reads, mark[1]) == (READS, -1)


def test_what_is_too_large_or_no_file_is_refused(folder: int, tmp_path: Path) -> None:
    (tmp_path / "large").write_text("12345")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("large")
    for name, error in (("large", errno.EFBIG), ("pipe", errno.EINVAL), ("link", errno.ELOOP)):
        with pytest.raises(OSError, match=os.strerror(error)):
            read_file(folder, name, 4)
