"""Row 16: a snapshot of a large folder in which nothing has changed, and one in which a file has, against `git status`
in the same folder.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from codex_proxy.parts.snapshots.folders import FolderName, FolderSnapshots
from codex_proxy.parts.snapshots.walk import Limits
from scripts.bench_lib.figures import Figure, quantile

GIT = "/usr/bin/git"
FILES_OF_FOLDER = 20
LIMITS = Limits(files=200_000, bytes=2 << 30, file_bytes=32 << 20)
SECONDS = 600.0
"""Seconds after which a snapshot is given up."""


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    files, rounds = (2_000, 3) if quick else (100_000, 10)
    tree = folder / "tree"
    _make(tree, files)
    name = FolderName("bench", str(tree))
    snapshots = FolderSnapshots(GIT, folder / "snapshots", name.place)

    def take() -> None:
        snapshots.take(name, LIMITS, time.monotonic() + SECONDS, ["refs/turns/1/after"])

    first = _seconds(take)
    take()  # reads those again that were new just now
    unchanged, changed, status = [], [], []
    for turn in range(rounds):
        status.append(_seconds(lambda: _git(tree, "status", "--porcelain")))
        unchanged.append(_seconds(take))
        (tree / "folder_0" / "file_0.py").write_text(f"changed = {turn}\n")
        changed.append(_seconds(take))
    against, paired = "git status", quantile(status, 0.5)
    for what, taken in (("nothing", unchanged), ("a file", changed)):
        mean = quantile(taken, 0.5)
        what = f"a snapshot of {files} files, {what} has changed, p50"
        yield Figure("16", what, against, mean / paired, "1.3", rounds, f"{mean:.2f} s")
    yield Figure("16", "the first one", against, first / paired, "", 1, f"{first:.1f} s")


def _make(tree: Path, files: int) -> None:
    """Makes a repository with so many files, all of them committed."""
    for number in range(files // FILES_OF_FOLDER):
        below = tree / f"folder_{number}"
        below.mkdir(parents=True)
        for place in range(FILES_OF_FOLDER):
            (below / f"file_{place}.py").write_text(f"number = {number}\n" * (place + 1))
    (tree / ".gitignore").write_text("*.pyc\n__pycache__/\nbuild/\nnode_modules/\n")
    _git(tree, "init", "-q")
    _git(tree, "add", "-A")
    _git(tree, "-c", "user.name=a", "-c", "user.email=a@example.org", "commit", "-qm", "begin")


def _git(tree: Path, *arguments: str) -> None:
    subprocess.run([GIT, *arguments], cwd=tree, check=True, stdout=subprocess.DEVNULL)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began
