"""Trees of files for tests: what they look like on disk, and how one becomes another."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

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
