"""Trees of files for tests: what they look like on disk, and how one becomes another."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from codex_proxy.files.changes import FileChange, FileState, digest_of


class Entry(NamedTuple):
    """A file (with its mode), or a link (without)."""

    content: bytes
    mode: int | None = 0o644

    @property
    def state(self) -> FileState:
        kind, mode = ("link", 0o644) if self.mode is None else ("file", self.mode)
        return FileState(
            "link" if kind == "link" else "file", digest_of(self.content), len(self.content), mode
        )


Tree = Mapping[bytes, Entry]


def link(target: bytes) -> Entry:
    return Entry(target, None)


def put(folder: Path, tree: Tree) -> None:
    """Writes a tree, by the simplest means."""
    for name, entry in tree.items():
        path = os.path.join(os.fsencode(folder), name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        if entry.mode is None:
            os.symlink(entry.content, path)
        else:
            with open(path, "xb") as out:
                out.write(entry.content)
            os.chmod(path, entry.mode)


def tree_at(folder: Path) -> dict[bytes, Entry]:
    """Returns all files and links below a folder; a folder without any is an entry with the mode 0."""
    found = dict[bytes, Entry]()
    top = os.fsencode(folder)
    for place, folders, files in os.walk(top):
        below = os.path.relpath(place, top)
        if not folders and not files and place != top:
            found[below + b"/"] = Entry(b"", 0)
        for name in folders + files:
            path = os.path.join(place, name)
            key = os.path.normpath(os.path.join(below, name))
            status = os.lstat(path)
            if stat.S_ISLNK(status.st_mode):
                found[key] = link(os.readlink(path))
            elif stat.S_ISREG(status.st_mode):
                with open(path, "rb") as file:
                    found[key] = Entry(file.read(), stat.S_IMODE(status.st_mode))
    return found


def changes_between(before: Tree, after: Tree) -> list[FileChange]:
    return [
        FileChange(
            path,
            before[path].state if path in before else None,
            after[path].state if path in after else None,
        )
        for path in sorted({*before, *after})
        if before.get(path) != after.get(path)
    ]


class Contents:
    """The contents of trees, by their digest: what `write_changes` asks for them."""

    def __init__(self, *trees: Tree) -> None:
        self._of = {entry.state.digest: entry.content for tree in trees for entry in tree.values()}

    def __call__(self, state: FileState) -> list[bytes]:
        content = self._of[state.digest]
        return [content[:1], content[1:]]


def count_no_case(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets the calls of the operating system that name a file in an open folder find it also with other case."""

    def found(name: Any, folder: int) -> Any:
        there = os.listdir(os.fsencode(f"/proc/self/fd/{folder}"))
        given = os.fsencode(name)
        alike = [each for each in there if os.fsdecode(each).casefold() == os.fsdecode(given).casefold()]
        return given if given in there or not alike or given == b"." else alike[0]

    def with_one_name(call: Callable[..., Any]) -> Callable[..., Any]:
        def do(name: Any, *rest: Any, dir_fd: int | None = None, **more: Any) -> Any:
            name = name if dir_fd is None else found(name, dir_fd)
            return call(name, *rest, dir_fd=dir_fd, **more)

        return do

    def with_two_names(call: Callable[..., Any]) -> Callable[..., Any]:
        def do(old: Any, new: Any, *, src_dir_fd: int, dst_dir_fd: int, **more: Any) -> Any:
            names = found(old, src_dir_fd), found(new, dst_dir_fd)
            return call(*names, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd, **more)

        return do

    for name in ("open", "stat", "mkdir", "rmdir", "unlink", "readlink"):
        monkeypatch.setattr(os, name, with_one_name(getattr(os, name)))
    for name in ("rename", "link"):
        monkeypatch.setattr(os, name, with_two_names(getattr(os, name)))
