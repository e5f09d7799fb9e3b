"""Random folders: what is kept of them is what they were, bit by bit."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from codex_proxy.files.changes import digest_of
from codex_proxy.parts.snapshots.difference import differences
from codex_proxy.parts.snapshots.folders import FolderName, FolderSnapshots
from codex_proxy.parts.snapshots.forking import write_tree
from codex_proxy.parts.snapshots.git import GitError
from codex_proxy.parts.snapshots.known import device_with_times
from codex_proxy.parts.snapshots.records import TurnFiles
from codex_proxy.parts.snapshots.reverting import revert
from codex_proxy.parts.snapshots.walk import Limits
from tests.parts.snapshots.random_files import change, files_in
from tests.waiting import PATIENCE, eventually

GIT = "/usr/bin/git"
LIMITS = Limits(files=10_000, bytes=1 << 26, file_bytes=1 << 20)


@pytest.mark.parametrize("seed", range(4))
def test_random_turns_are_reverted_and_forked_bit_by_bit(seed: int, tmp_path: Path) -> None:
    choose, folder = random.Random(seed), tmp_path / "work"
    folder.mkdir()
    name = FolderName("owner", str(folder))
    snapshots = FolderSnapshots(GIT, tmp_path / "state", name.place)

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


def test_objects_are_read_in_any_order_whatever_was_planned(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    contents = {digest_of(b"%d" % number): b"%d" % number for number in range(300)}
    for number, content in enumerate(contents.values()):
        (folder / f"{number}").write_bytes(content)
    name, missing = FolderName("owner", str(folder)), "0" * 40
    snapshots = FolderSnapshots(GIT, tmp_path / "state", name.place)
    snapshots.take(name, LIMITS, time.monotonic() + PATIENCE, [])
    choose, planned = random.Random(1), [*contents, missing]
    with snapshots.git.reader() as reader:
        for read in ([*contents], choose.sample([*contents], 50), [*contents][::3], [*contents][:2] * 2):
            choose.shuffle(planned)
            reader.plan(planned)
            assert [reader.read(digest) for digest in read] == [contents[digest] for digest in read]
            reader.plan(read)
            assert [reader.read(digest) for digest in read] == [contents[digest] for digest in read]
            with pytest.raises(GitError, match="is missing"):
                reader.read(missing)


async def test_folders_whose_names_are_not_read_again_are_kept_bit_by_bit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.files.reading.FRESH", 0)
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / ".gitignore").write_text("")
    name, until = FolderName("owner", str(folder)), time.monotonic() + PATIENCE
    snapshots = FolderSnapshots(GIT, tmp_path / "state", name.place)
    for seed in range(24):
        choose = random.Random(seed)
        match seed % 4:
            case 1:  # in place, so that the folders' times stay
                files = [file for file in folder.rglob("*") if file.is_file() and not file.is_symlink()]
                choose.choice(files).write_text(f"{seed}")
            case 3:
                (folder / ".gitignore").write_text(choose.choice(["-x", "a", "inner", "b.txt", "sub/"]))
            case _:
                change(os.fsencode(folder), choose)
        await clock_of_files_goes_on(tmp_path)
        anew = FolderSnapshots(GIT, tmp_path / f"state{seed}", name.place)
        tree = anew.take(name, LIMITS, until, []).tree
        assert [snapshots.take(name, LIMITS, until, []).tree for _ in range(2)] == [tree, tree], seed


@pytest.mark.parametrize(("where", "expected"), [("settled", 0), ("changed just now", 2), ("far away", 2)])
async def test_names_are_read_again_only_where_a_folders_times_do_not_tell_of_them(
    where: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if where != "changed just now":
        monkeypatch.setattr("codex_proxy.files.reading.FRESH", 0)
    device = None if where == "far away" else tmp_path.stat().st_dev
    monkeypatch.setattr("codex_proxy.parts.snapshots.walk.device_with_times", lambda _: device)
    folder = tmp_path / "work"
    (folder / "below").mkdir(parents=True)
    (folder / "below" / "file").write_text("1")
    await clock_of_files_goes_on(tmp_path)
    name, until = FolderName("owner", str(folder)), time.monotonic() + PATIENCE
    snapshots = FolderSnapshots(GIT, tmp_path / "state", name.place)
    read, scandir = [0], os.scandir

    def read_names(folder: int | str) -> object:
        read[0] += isinstance(folder, int)
        return scandir(folder)

    before = snapshots.take(name, LIMITS, until, []).tree
    monkeypatch.setattr(os, "scandir", read_names)
    assert snapshots.take(name, LIMITS, until, []).tree == before
    assert read[0] == expected
    (folder / "below" / "new").write_text("2")
    assert snapshots.take(name, LIMITS, until, []).tree != before


def test_a_folder_of_another_kind_of_file_system_is_not_relied_on() -> None:
    folder = os.open("/dev/fd", os.O_RDONLY)  # its names change without any change of its times
    try:
        assert device_with_times(folder) is None
    finally:
        os.close(folder)


async def clock_of_files_goes_on(folder: Path) -> None:
    """Returns once a file that is changed gets another time than one that was changed before this call."""
    first, probe = time.time_ns(), folder / "probe"

    def goes_on() -> bool:
        probe.write_text("")
        return probe.stat().st_mtime_ns > first

    await eventually(goes_on)
