"""What differs between two trees: the changes as values, and as clients see them, with the hunks of their texts."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Final, Literal, NamedTuple

from codex_proxy.core.shown_text import escape, escape_lines
from codex_proxy.files.changes import FileChange, FileState, digest_of
from codex_proxy.files.writing import write_changes
from codex_proxy.parts.snapshots import ignored
from codex_proxy.parts.snapshots.git import GitDirectory, GitError, ObjectReader
from codex_proxy.parts.snapshots.ignored import Rules
from codex_proxy.parts.snapshots.objects import NewObjects, TreeEntry, add_tree, decode_tree
from codex_proxy.parts.snapshots.walk import MAX_LEFT_OUT
from codex_proxy.parts.snapshots.wire import PathChange

MAX_SHOWN: Final = 1000
"""Maximum paths of an answer."""
MAX_DIFF: Final = 256 << 10
"""Maximum bytes of the hunks of a path."""
MAX_DIFFS: Final = 4 << 20
"""Maximum bytes of all hunks of an answer."""
_NUMBER: Final = re.compile(rb"a/(\d+) b/")
_EMPTY: Final = digest_of(b"").encode()
"""The digest of an empty file."""


class Difference(NamedTuple):
    """A path with other entries; None where nothing was."""

    path: bytes
    before: TreeEntry | None
    after: TreeEntry | None


class FilesDifferError(Exception):
    """A folder has other files at these paths than it must have; nothing was written."""

    def __init__(self, paths: Sequence[bytes]) -> None:
        super().__init__(paths)
        self.paths = paths


def differences(reader: ObjectReader, before: str, after: str) -> list[Difference]:
    """Returns the files and links that differ between two trees, by path. What is not kept in one of them is left out,
    a folder with all that the other tree has of it: it may have been there in both. Raises `GitError`.
    """
    return sorted(_in_folder(reader, b"", _entries(reader, before), _entries(reader, after)))


def _entries(reader: ObjectReader, digest: str) -> dict[bytes, TreeEntry]:
    return decode_tree(reader.read(digest)) if digest else {}


def _in_folder(
    reader: ObjectReader, path: bytes, before: dict[bytes, TreeEntry], after: dict[bytes, TreeEntry]
) -> Iterator[Difference]:
    for name in before.keys() | after.keys():
        old, new = before.get(name), after.get(name)
        if old == new or not all(each is None or each.is_kept for each in (old, new)):
            continue
        below = path + name
        old_file, new_file = (None if each is None or each.is_folder else each for each in (old, new))
        if old_file is not None or new_file is not None:
            yield Difference(below, old_file, new_file)
        inside = [
            _entries(reader, each.digest.hex()) if each is not None and each.is_folder else {}
            for each in (old, new)
        ]
        if any(inside):
            yield from _in_folder(reader, below + b"/", *inside)


def entries_at(reader: ObjectReader, tree: str, paths: Iterable[bytes]) -> dict[bytes, TreeEntry]:
    """Returns what a tree has at paths: files and links, and what is not kept, also a folder in which a path would be.
    Raises `GitError`.
    """
    folders: dict[bytes, dict[bytes, TreeEntry]] = {b"": _entries(reader, tree)}
    found: dict[bytes, TreeEntry] = {}
    for path in paths:
        above, names = b"", path.split(b"/")
        for index, name in enumerate(names):
            entry = folders[above].get(name)
            if entry is None or not entry.is_folder or index == len(names) - 1:
                if entry is not None and (
                    not entry.is_kept or (index == len(names) - 1 and not entry.is_folder)
                ):
                    found[path] = entry
                break
            above += name + b"/"
            if above not in folders:
                folders[above] = _entries(reader, entry.digest.hex())
    return found


def file_changes(reader: ObjectReader, found: Iterable[Difference]) -> list[FileChange]:
    """Returns the differences as changes of files. Raises `GitError`."""
    found = list(found)
    digests = {
        entry.digest.hex() for each in found for entry in (each.before, each.after) if entry is not None
    }
    sizes = reader.sizes(digests) if digests else {}

    def state(entry: TreeEntry | None) -> FileState | None:
        if entry is None:
            return None
        digest = entry.digest.hex()
        if digest not in sizes:
            raise GitError(f"the object {digest} is missing")
        kind: Literal["file", "link"] = "link" if entry.is_link else "file"
        mode = 0o644 if entry.is_link else stat.S_IMODE(entry.mode)
        return FileState(kind, digest, sizes[digest], mode)

    return [FileChange(each.path, state(each.before), state(each.after)) for each in found]


def write_files(reader: ObjectReader, folder: str, changes: Sequence[FileChange]) -> list[bytes]:
    """Writes changes as `files.writing.write_changes` does, with the contents that the reader has."""
    ordered = sorted(changes, key=lambda change: change.path)
    reader.plan(
        change.after.digest
        for change in ordered
        if change.after is not None and change.before != change.after
    )
    return write_changes(folder, ordered, lambda state: [reader.read(state.digest)])


def patch(git: GitDirectory, before: str, after: str, limit: int) -> bytes:
    """Returns the patch of what is kept in both trees. Raises `OverflowError` if it has more than `limit` bytes,
    `GitError`, and `OSError`.
    """
    with git.reader() as reader:
        found = differences(reader, before, after)
    with git.beside() as own:
        objects = NewObjects(git.path)
        try:
            old = add_tree(objects, [(each.path, each.before) for each in found if each.before is not None])
            new = add_tree(objects, [(each.path, each.after) for each in found if each.after is not None])
            objects.save(own)
        finally:
            objects.close()
        return own.patch(old, new, limit)


def shown_changes(
    git: GitDirectory, reader: ObjectReader, before: str, after: str
) -> tuple[list[PathChange], bool]:
    """Returns what a client sees of the differences, and whether some of it is missing. Raises `GitError`."""
    found = differences(reader, before, after)
    changes = file_changes(reader, found[:MAX_SHOWN])
    texts = [index for index, each in enumerate(changes) if _content_differs(each)]
    pairs = [
        tuple(_digest(side) for side in (changes[index].before, changes[index].after)) for index in texts
    ]
    patches = _patches(git.diff(pairs, MAX_DIFFS)) if pairs else {}  # type: ignore[arg-type]
    truncated = len(found) > MAX_SHOWN or any(place not in patches for place in range(len(texts)))
    places = {index: place for place, index in enumerate(texts)}
    return [_shown(each, patches.get(places.get(index, -1))) for index, each in enumerate(changes)], truncated


def _content_differs(change: FileChange) -> bool:
    return _digest(change.before) != _digest(change.after)


def _digest(state: FileState | None) -> bytes:
    return _EMPTY if state is None else state.digest.encode()


def _patches(sections: Sequence[bytes]) -> dict[int, bytes]:
    """Returns the patches by the number of the pair."""
    found: dict[int, bytes] = {}
    for section in sections:
        if (number := _NUMBER.match(section)) is not None:
            found[int(number[1])] = section
    return found


def _shown(change: FileChange, patch: bytes | None) -> PathChange:
    before, after = change.before, change.after
    hunks = b"" if patch is None else patch[patch.index(b"\n@@ ") + 1 :] if b"\n@@ " in patch else b""
    lines = hunks.split(b"\n")
    return PathChange(
        path=escape(os.fsdecode(change.path)),
        kind=_kind(change),
        mode_before=_mode(before),
        mode_after=_mode(after),
        size_before=None if before is None else before.size,
        size_after=None if after is None else after.size,
        binary=patch is not None and b"\nBinary files " in patch,
        additions=sum(line.startswith(b"+") for line in lines),
        deletions=sum(line.startswith(b"-") for line in lines),
        diff=escape_lines(hunks.decode("utf-8", "backslashreplace")) if 0 < len(hunks) <= MAX_DIFF else None,
    )


def _kind(change: FileChange) -> Literal["added", "modified", "deleted", "mode", "link"]:
    before, after = change.before, change.after
    if any(each is not None and each.kind == "link" for each in (before, after)):
        return "link"
    if before is None:
        return "added"
    if after is None:
        return "deleted"
    return "modified" if before.digest != after.digest else "mode"


def _mode(state: FileState | None) -> str | None:
    if state is None:
        return None
    return "120000" if state.kind == "link" else f"{stat.S_IFREG | state.mode:o}"


def newly_ignored(
    reader: ObjectReader, found: Sequence[Difference], after: str, before: Rules, outside: Rules
) -> list[bytes]:
    """Returns the first paths of files, one more than are told, that today's rules leave out, if one of these rules has
    changed: those of the tree `after`, and those from `outside` of the folder, which were `before`. Raises `GitError`.
    """
    in_folder = any(each.path.rpartition(b"/")[2] == os.fsencode(ignored.FILE) for each in found)
    if not in_folder and before.digest == outside.digest:
        return []
    paths = (
        each.path
        for each in found
        if each.after is not None and _is_ignored(reader, each.path, after, outside)
    )
    return [*islice(paths, MAX_LEFT_OUT + 1)]


def _is_ignored(reader: ObjectReader, path: bytes, tree: str, rules: Rules) -> bool:
    names = os.fsdecode(path).split("/")
    for index, name in enumerate(names):
        entries = _entries(reader, tree)
        own = entries.get(os.fsencode(ignored.FILE))
        if own is not None and stat.S_ISREG(own.mode):
            rules = rules.with_file(ignored.parse(reader.read(own.digest.hex())))
        is_folder = index < len(names) - 1
        if rules.leave_out(name, is_folder=is_folder):
            return True
        if is_folder:
            tree, rules = entries[os.fsencode(name)].digest.hex(), rules.below(name)
    return False
