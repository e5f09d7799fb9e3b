"""Row 16: the CPU of a snapshot of a large folder in which nothing has changed, and of one in which a file has, against
that of `git status` in the same folder.
"""

from __future__ import annotations

import resource
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from codex_proxy.files.changes import FRESH
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

    def status() -> None:
        _git(tree, "status", "--porcelain")

    time.sleep(FRESH / 1e9)  # a file that is new is read again the next time, by git as well
    first = _cpu_seconds(take)
    status()
    compared, unchanged, changed = [], [], []
    for _ in range(rounds):
        compared.append(_cpu_seconds(status))
        unchanged.append(_cpu_seconds(take))
    for turn in range(rounds):
        (tree / "folder_0" / "file_0.py").write_text(f"changed = {turn}\n")
        changed.append(_cpu_seconds(take))
    against, of_status = "CPU of git status", quantile(compared, 0.5)
    for what, taken in (("nothing", unchanged), ("a file", changed)):
        median = quantile(taken, 0.5)
        what = f"a snapshot of {files} files, {what} has changed, p50"
        yield Figure("16", what, against, median / of_status, "1.3", rounds, f"{median:.2f} s")
    yield Figure("16", "the first one", against, first / of_status, "", 1, f"{first:.1f} s")


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


def _cpu_seconds(work: Callable[[], object]) -> float:
    """Returns the seconds of CPU of some work, with those of the programs that it runs."""
    before = _cpu_used()
    work()
    return _cpu_used() - before


def _cpu_used() -> float:
    each = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(used.ru_utime + used.ru_stime for used in each)
