"""Random folders: what is kept of them is what they were, bit by bit."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from codex_proxy.parts.snapshots.difference import differences
from codex_proxy.parts.snapshots.folders import FolderName, FolderSnapshots
from codex_proxy.parts.snapshots.forking import write_tree
from codex_proxy.parts.snapshots.records import TurnFiles
from codex_proxy.parts.snapshots.reverting import revert
from codex_proxy.parts.snapshots.walk import Limits
from tests.parts.snapshots.random_files import change, files_in
from tests.waiting import PATIENCE

LIMITS = Limits(files=10_000, bytes=1 << 26, file_bytes=1 << 20)


@pytest.mark.parametrize("seed", range(4))
def test_random_turns_are_reverted_and_forked_bit_by_bit(seed: int, tmp_path: Path) -> None:
    choose, folder = random.Random(seed), tmp_path / "work"
    folder.mkdir()
    name = FolderName("owner", str(folder))
    snapshots = FolderSnapshots("/usr/bin/git", tmp_path / "state", name.place)

    def take(ref: str) -> str:
        return snapshots.take(name, LIMITS, time.monotonic() + PATIENCE, [ref]).tree

    for number in range(12):
        change(os.fsencode(folder), choose)
        before, tree = files_in(folder), take(f"refs/turns/{number}/before")
        change(os.fsencode(folder), choose)
        after, changed = files_in(folder), take(f"refs/turns/{number}/after")
        with snapshots.git.reader() as reader:
            paths = {each.path for each in differences(reader, tree, changed)}
        assert paths == {path for path in before.keys() | after if before.get(path) != after.get(path)}
        files = TurnFiles(
            turn=str(number), folder=str(folder), place=name.place, state="kept", before=tree, after=changed
        )
        revert(snapshots, snapshots, LIMITS, files, "owner", force=False)
        assert files_in(folder) == before
        fork = tmp_path / f"fork{number}"
        fork.mkdir()
        write_tree(snapshots, changed, str(fork))
        assert files_in(fork) == after
