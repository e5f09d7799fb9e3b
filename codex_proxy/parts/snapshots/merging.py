"""Brings what was done in a worktree into the folder that it was made of: what both have changed is merged by lines,
and nothing is written if that leaves a conflict.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from codex_proxy.files.changes import FileChange, FileState, digest_of
from codex_proxy.files.writing import PERMISSIONS, write_changes
from codex_proxy.parts.snapshots.difference import (
    Difference,
    FilesDifferError,
    differences,
    entries_at,
    file_changes,
)
from codex_proxy.parts.snapshots.folders import FolderName, FolderSnapshots
from codex_proxy.parts.snapshots.git import ObjectReader
from codex_proxy.parts.snapshots.keeper import SNAPSHOT_SECONDS
from codex_proxy.parts.snapshots.objects import TreeEntry
from codex_proxy.parts.snapshots.records import Worktree
from codex_proxy.parts.snapshots.walk import Limits, SnapshotError

MAX_MERGED_FILE: Final = 4 << 20
"""The largest file whose lines are merged, in bytes."""
MAX_MERGED: Final = 64 << 20
"""Maximum bytes of all files whose lines are merged."""


class Done(NamedTuple):
    """What a worktree has changed. `tree`: its files now, without those that are `left_out`."""

    changes: list[Difference]
    tree: str
    left_out: list[bytes]


class Merged(NamedTuple):
    paths: list[bytes]
    """What the worktree has changed since it was made, or last merged."""
    tree: str
    """The worktree's files now."""
    kept: str
    """The tree with the folder's files from before; empty if nothing was written."""
    left_out: list[bytes]
    """What is in the worktree and cannot be merged: too large, not to be read, or neither a file nor a link."""


def work_in(snapshots: FolderSnapshots, limits: Limits, owner: str, worktree: Worktree, ref: str) -> Done:
    """Returns what was done in a worktree, whose files the ref keeps: also with those that it had and whose names are
    ignored by now, for they are not deleted. Raises `SnapshotError`, `GitError`, `OSError`.
    """
    if not snapshots.has(worktree.base):
        raise SnapshotError("the worktree was made at another machine, which alone can merge it")
    name, until = FolderName(owner, worktree.folder), time.monotonic() + SNAPSHOT_SECONDS
    with snapshots.git.reader() as reader:
        had = [each.path for each in differences(reader, "", worktree.base)]
        kept = snapshots.take_with(name, limits, until, ref, had)
        return Done(differences(reader, worktree.base, kept.tree), kept.tree, kept.not_kept)


def merge(
    own: FolderSnapshots,
    snapshots: FolderSnapshots,
    limits: Limits,
    owner: str,
    worktree: Worktree,
    done: Done,
    ref: str,
) -> Merged:
    """Writes what was done in a worktree into the folder that it was made of. The ref keeps the files of that from
    before. `own`: the snapshots of the worktree; `snapshots`: those of the folder. Raises `FilesDifferError`,
    `SnapshotError`, `GitError`, and `OSError`.
    """
    paths = [each.path for each in done.changes]
    if not paths:
        return Merged([], done.tree, "", done.left_out)
    until = time.monotonic() + SNAPSHOT_SECONDS
    kept = snapshots.take_with(FolderName(owner, worktree.source), limits, until, ref, paths).tree
    with own.git.reader() as mine, snapshots.git.reader() as theirs:
        merging = _Merging(own, mine, theirs)
        changes = [*merging.changes(done.changes, entries_at(theirs, kept, paths))]
        if merging.conflicts:
            raise FilesDifferError(merging.conflicts)
        differing = write_changes(worktree.source, changes, merging.content_of)
    if differing:
        raise FilesDifferError(differing)
    return Merged(paths, done.tree, kept, done.left_out)


class _Merging:
    def __init__(self, own: FolderSnapshots, mine: ObjectReader, theirs: ObjectReader) -> None:
        self.conflicts: list[bytes] = []
        self._own, self._mine, self._theirs = own, mine, theirs
        self._merged: dict[str, bytes] = {}
        """The contents that are in no snapshot, by digest."""
        self._room = MAX_MERGED

    def changes(self, done: Iterable[Difference], there: dict[bytes, TreeEntry]) -> Iterator[FileChange]:
        """Yields what has to be written for what was done in the worktree. `there`: what the folder has."""
        for each in done:
            found = there.get(each.path)
            if found is not None and not found.is_kept:
                self.conflicts.append(each.path)
                continue
            [now] = file_changes(self._theirs, [Difference(each.path, found, None)])
            [own] = file_changes(self._mine, [each])
            before, wanted, current = own.before, own.after, now.before
            if current == wanted:
                continue
            if current != before:
                wanted = self._by_lines(before, wanted, current)
                if wanted is None:
                    self.conflicts.append(each.path)
                    continue
            yield FileChange(each.path, current, wanted)

    def _by_lines(
        self, before: FileState | None, own: FileState | None, current: FileState | None
    ) -> FileState | None:
        """Returns a file with the changes of both; None if they conflict."""
        if before is None or own is None or current is None:
            return None
        states = (current, before, own)
        sizes = [each.size for each in states]
        if (
            {each.kind for each in states} != {"file"}
            or max(sizes) > MAX_MERGED_FILE
            or sum(sizes) > self._room
        ):
            return None
        mode = own.mode if current.mode == before.mode else current.mode
        if own.mode not in (mode, before.mode):
            return None
        texts = [
            self._theirs.read(current.digest),
            self._mine.read(before.digest),
            self._mine.read(own.digest),
        ]
        merged = None if any(b"\0" in text for text in texts) else self._own.git.merge(*texts)
        if merged is None:
            return None
        self._room -= len(merged)
        state = FileState("file", digest_of(merged), len(merged), mode & PERMISSIONS)
        self._merged[state.digest] = merged
        return state

    def content_of(self, state: FileState) -> list[bytes]:
        merged = self._merged.get(state.digest)
        return [self._mine.read(state.digest) if merged is None else merged]
