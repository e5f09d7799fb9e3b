"""The fake agent changes files where its thread may write, and nowhere else."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fake_proto.workspace import change_files


def change(folder: Path, *changes: dict[str, Any], sandbox: str = "workspace-write") -> None:
    change_files(str(folder), sandbox, json.dumps(changes))


def test_files_and_links_are_made_changed_and_removed(tmp_path: Path) -> None:
    change(tmp_path, {"path": "d/a", "text": "1\udcff", "mode": 0o755}, {"path": "l", "link": "d/a"})
    assert ((tmp_path / "l").read_bytes(), (tmp_path / "d" / "a").stat().st_mode & 0o777) == (b"1\xff", 0o755)
    change(tmp_path, {"path": "d/a"}, {"path": "d", "text": "now a file"})
    assert (tmp_path / "d").read_text() == "now a file"


@pytest.mark.parametrize("path", ["../a", "/a", "l/a", "d/../../a", ".."])
def test_nothing_is_written_outside_of_the_folder(tmp_path: Path, path: str) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "l").symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        change(folder, {"path": path, "text": ""})
    assert [each.name for each in tmp_path.iterdir()] == ["folder"]


def test_nothing_is_written_with_a_read_only_sandbox(tmp_path: Path) -> None:
    with pytest.raises(PermissionError, match="read-only"):
        change(tmp_path, {"path": "a", "text": ""}, sandbox="read-only")
    assert list(tmp_path.iterdir()) == []
