"""Makes the files that a turn has changed what they were before it."""

from __future__ import annotations

import time
from typing import NamedTuple

from codex_proxy.files.changes import FileChange
from codex_proxy.parts.snapshots.difference import (
    Difference,
    FilesDifferError,
    differences,
    entries_at,
    file_changes,
    write_files,
)
from codex_proxy.parts.snapshots.folders import FolderName, FolderSnapshots
from codex_proxy.parts.snapshots.keeper import SNAPSHOT_SECONDS, ref_of
from codex_proxy.parts.snapshots.records import TurnFiles
from codex_proxy.parts.snapshots.walk import Limits


class Reverted(NamedTuple):
    paths: list[bytes]
    """The paths that the turn had changed."""
    kept: str
    """The tree with what was overwritten; empty if nothing had changed since."""


def revert(
    snapshots: FolderSnapshots,
    own: FolderSnapshots,
    limits: Limits,
    files: TurnFiles,
    owner: str,
    *,
    force: bool,
) -> Reverted:
    """Writes the files of a turn as they were before it. `force`: also those that were changed since, which a snapshot
    keeps. `snapshots`: those that have the turn's trees; `own`: those of the folder, which is another one in a fork.
    Raises `FilesDifferError`, `SnapshotError`, `GitError`, and `OSError`.
    """
    with snapshots.git.reader() as reader:
        wanted = file_changes(reader, differences(reader, files.after, files.before))
        differing = write_files(reader, files.folder, wanted)
        paths = [change.path for change in wanted]
        if not differing:
            return Reverted(paths, "")
        if not force:
            raise FilesDifferError(differing)
        ref = ref_of(files.turn, f"overwritten-{time.time_ns()}")
        kept = own.take_with(
            FolderName(owner, files.folder), limits, time.monotonic() + SNAPSHOT_SECONDS, ref, paths
        ).tree
        with own.git.reader() as there:
            found = entries_at(there, kept, paths)
            lost = [path for path, entry in found.items() if not entry.is_kept]
            if lost:
                raise FilesDifferError(lost)
            now = file_changes(there, [Difference(path, found.get(path), None) for path in paths])
        # All paths are compared once more, also those that are now as they were before the turn.
        changes = [FileChange(old.path, old.before, new.after) for old, new in zip(now, wanted, strict=True)]
        differing = write_files(reader, files.folder, changes)
    if differing:
        raise FilesDifferError(differing)
    return Reverted(paths, kept)
