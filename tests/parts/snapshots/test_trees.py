"""Random folders: what is kept of them is what they were, bit by bit."""

from __future__ import annotations

import os
import random
import shutil
import stat
import time
from pathlib import Path

import pytest

from codex_proxy.parts.snapshots.difference import differences
from codex_proxy.parts.snapshots.folders import FolderName, FolderSnapshots
from codex_proxy.parts.snapshots.forking import write_tree
from codex_proxy.parts.snapshots.records import TurnFiles
from codex_proxy.parts.snapshots.reverting import revert
from codex_proxy.parts.snapshots.walk import Limits
from tests.waiting import PATIENCE

LIMITS = Limits(files=10_000, bytes=1 << 26, file_bytes=1 << 20)
NAMES = [b"a", b"b.txt", b"\xff", b"new\nline", b"sub", b"deep", b"-x", b"z z"]


def change(folder: bytes, choose: random.Random) -> None:
    """Makes, changes and removes files, folders and links."""
    for _ in range(choose.randrange(1, 12)):
        path = folder
        for name in choose.choices(NAMES, k=choose.randrange(3)):
            if os.path.isdir(path + b"/" + name) and not os.path.islink(path + b"/" + name):
                path += b"/" + name
        path += b"/" + choose.choice(NAMES)
        remove(path)
        match choose.randrange(5):
            case 0:
                os.symlink(choose.choice(NAMES), path)
            case 1:
                os.mkdir(path)
                Path(os.fsdecode(path), "inner").write_bytes(choose.randbytes(3))
            case 2 | 3:
                Path(os.fsdecode(path)).write_bytes(choose.randbytes(choose.choice([0, 1, 5000])))
                os.chmod(path, choose.choice([0o600, 0o644, 0o664, 0o755, 0o700]))


def remove(path: bytes) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)


def files_in(folder: Path) -> dict[bytes, tuple[int, bytes]]:
    """Returns the files and links with modes and contents."""
    found: dict[bytes, tuple[int, bytes]] = {}
    for place, folders, files in os.walk(os.fsencode(folder)):
        for name in (*folders, *files):
            path = place + b"/" + name
            mode = os.lstat(path).st_mode
            if stat.S_ISLNK(mode):
                found[os.path.relpath(path, os.fsencode(folder))] = (0, os.readlink(path))
            elif stat.S_ISREG(mode):
                content = Path(os.fsdecode(path)).read_bytes()
                found[os.path.relpath(path, os.fsencode(folder))] = (stat.S_IMODE(mode), content)
    return found


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
