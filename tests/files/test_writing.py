"""Changes are written below a folder all or none, and nothing outside of it."""

from __future__ import annotations

import base64
import contextlib
import errno
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.files import writing
from codex_proxy.files.changes import FileChange, FileState, digest_of
from codex_proxy.files.writing import STAGING_PREFIX, PartlyWrittenError, write_changes
from tests.files.trees import Contents, Entry, Tree, changes_between, count_no_case, link, put, tree_at

OLD = {
    b"a.py": Entry(b"old\n"),
    b"run": Entry(b"#!/bin/sh\n", 0o755),
    b"d/e/f": Entry(b"deep"),
    b"l": link(b"a.py"),
    b"x": Entry(b"was a file"),
    b"y/z": Entry(b"was in a folder"),
    b"\xff\n": Entry(b"odd", 0o600),
}
NEW = {
    b"a.py": Entry(b"new\n", 0o640),
    b"run": Entry(b"#!/bin/sh\n", 0o644),
    b"n/m/o": Entry(b"", 0o444),
    b"l": link(b"d/nowhere"),
    b"x/now": Entry(b"is a folder"),
    b"y": Entry(b"is a file"),
    b"\xfe": link(b"\xff\n"),
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the tree `OLD`, beside a file that nothing may touch."""
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "secret").write_bytes(b"untouched")
    put(tmp_path / "folder", OLD)
    return tmp_path / "folder"


def write(folder: Path, before: Tree, after: Tree, **options: bool) -> list[bytes]:
    return write_changes(str(folder), changes_between(before, after), Contents(before, after), **options)


def outside(folder: Path) -> dict[bytes, Entry]:
    return {name: each for name, each in tree_at(folder.parent).items() if not name.startswith(b"folder/")}


def test_a_tree_becomes_another_one_and_back(folder: Path) -> None:
    assert write(folder, OLD, NEW) == []
    assert tree_at(folder) == NEW
    assert write(folder, NEW, OLD) == []
    assert tree_at(folder) == OLD


def test_a_whole_tree_is_written_into_an_empty_folder_and_taken_out_again(tmp_path: Path) -> None:
    assert write(tmp_path, {}, NEW) == []
    assert tree_at(tmp_path) == NEW
    assert write(tmp_path, NEW, {}) == []
    assert tree_at(tmp_path) == {}


def test_new_folders_have_the_mode_that_the_umask_leaves(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path, {}, {b"d/f": Entry(b"", 0o666)})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "d" / "f").stat().st_mode) == 0o666


@pytest.mark.parametrize(
    ("path", "entry"),
    [
        (b"a.py", Entry(b"mine")), (b"a.py", Entry(b"OLD\n")), (b"a.py", Entry(b"old\n", 0o600)),
        (b"a.py", link(b"outside")), (b"l", link(b"else")), (b"l", Entry(b"a.py")), (b"n", Entry(b"mine")),
        (b"n/m/o", Entry(b"mine")), (b"n", link(b"../outside")), (b"y/mine", Entry(b"mine")), (b"x", link(b"a.py")),
        (b"a.py/mine", Entry(b"mine")), (b"d/e", link(b"../../outside")), (b"d", Entry(b"mine")), (b"a.py", None),
    ],
)  # fmt: skip
def test_nothing_is_written_where_something_else_is_and_its_path_is_returned(
    folder: Path, path: bytes, entry: Entry | None
) -> None:
    for name in OLD:
        if name == path or name.startswith(path + b"/") or path.startswith(name + b"/"):
            os.unlink(os.path.join(os.fsencode(folder), name))
    for name in (b"d/e", b"d"):
        if path in (b"d/e", b"d") and name.startswith(path):
            os.rmdir(os.path.join(os.fsencode(folder), name))
    if entry is not None:
        put(folder, {path: entry})
    there = tree_at(folder)
    differing = write(folder, OLD, NEW)
    assert differing
    assert all(each == path or each.startswith(path) or path.startswith(each) for each in differing)
    assert tree_at(folder) == there
    assert outside(folder) == {b"outside/secret": Entry(b"untouched")}


def test_modes_are_compared_by_the_right_to_execute_alone_if_asked(folder: Path) -> None:
    (folder / "a.py").chmod(0o600)
    after = {**OLD, b"a.py": Entry(b"new\n")}
    assert write(folder, OLD, after) == [b"a.py"]
    assert write(folder, OLD, after, exact_modes=False) == []
    assert tree_at(folder)[b"a.py"] == Entry(b"new\n", 0o600)
    (folder / "run").chmod(0o644)
    assert write(folder, OLD, {**OLD, b"run": Entry(b"else", 0o755)}, exact_modes=False) == [b"run"]


@pytest.mark.parametrize("path", [b"", b"/a", b"..", b"a/../b", b"a//b", b"a/", b"./a", b"a\0b", b"/", b"."])
def test_a_path_that_is_none_below_the_folder_is_an_error(folder: Path, path: bytes) -> None:
    change = FileChange(path, None, Entry(b"x").state)
    with pytest.raises(ValueError, match="no path"):
        write_changes(str(folder), [change], Contents())
    assert tree_at(folder) == OLD


def test_paths_that_cannot_exist_together_are_an_error(folder: Path) -> None:
    new = Entry(b"x").state
    for paths in ([b"q", b"q"], [b"q", b"q/r/s"]):
        with pytest.raises(ValueError, match=r"twice|below a file"):
            write_changes(
                str(folder), [FileChange(path, None, new) for path in paths], Contents({b"": Entry(b"x")})
            )


def test_a_content_that_is_not_what_the_change_says_is_not_written(folder: Path) -> None:
    for entry in (Entry(b"x"), link(b"x")):
        change = FileChange(b"q", None, entry.state)
        with pytest.raises(ValueError, match="not what"):
            write_changes(str(folder), [change], lambda _: [b"y"])
    assert tree_at(folder) == OLD


def test_a_link_among_the_folder_s_own_parts_is_an_error(tmp_path: Path, folder: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(OSError, match=r"directory|link"):
        write(tmp_path / "link", OLD, NEW)
    assert tree_at(folder) == OLD


def failing(name: str, at: int, error: Callable[[], BaseException]) -> tuple[Callable[..., Any], list[int]]:
    """Returns the function of `os` that fails once, at its call number `at` (from 0), and the list of its calls."""
    real, calls = getattr(os, name), list[int]()

    def call(*args: Any, **options: Any) -> Any:
        calls.append(1)
        if len(calls) == at + 1:
            raise error()
        return real(*args, **options)

    return call, calls


@pytest.mark.parametrize(
    "name", ["rename", "link", "symlink", "rmdir", "mkdir", "fchmod", "open", "stat", "unlink"]
)
def test_whatever_call_fails_the_folder_is_as_it_was_or_as_it_should_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    at, has_failed = 0, True
    while has_failed:
        with monkeypatch.context() as patched:
            call, calls = failing(name, at, lambda: OSError(errno.EIO, "planted"))
            patched.setattr(os, name, call)
            try:
                done = write(folder, OLD, NEW) == []
            except OSError:
                done = False
        has_failed, at = len(calls) > at, at + 1
        for left in folder.glob(f"{STAGING_PREFIX}*"):
            assert name in ("unlink", "rmdir", "open", "mkdir")  # it could not be removed
            for each in left.iterdir():
                each.unlink()
            left.rmdir()
        files = {path: each for path, each in tree_at(folder).items() if not path.endswith(b"/")}
        assert files == (NEW if done else OLD)
        if done:
            assert write(folder, NEW, OLD) == []
    assert at > 2


def test_what_cannot_be_undone_is_named_and_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.link

    def link_or_fail(source: bytes, name: bytes, **options: Any) -> None:
        if name == b"x" or source.startswith(b"new"):
            raise OSError(errno.EIO, "planted")
        real(source, name, **options)

    def rename_or_fail(source: bytes, name: bytes, **options: Any) -> None:
        if name == b"x" or source.startswith(b"new"):
            raise OSError(errno.EIO, "planted")
        real_rename(source, name, **options)

    real_rename = os.rename
    monkeypatch.setattr(os, "link", link_or_fail)
    monkeypatch.setattr(os, "rename", rename_or_fail)
    with pytest.raises(PartlyWrittenError) as caught:
        write(folder, OLD, NEW)
    assert caught.value.paths == (b"x",)
    kept = folder / os.fsdecode(caught.value.staging)
    assert b"was a file" in [each.read_bytes() for each in kept.glob("old*") if not each.is_symlink()]


def test_a_folder_that_becomes_a_link_in_the_middle_changes_nothing_outside(folder: Path) -> None:
    def swap(state: FileState) -> Iterable[bytes]:
        if (folder / "d").is_dir() and not (folder / "d").is_symlink():
            (folder / "d").rename(folder.parent / "moved")
            (folder / "d").symlink_to(folder.parent / "outside")
        return [b"new"]

    changes = [
        FileChange(b"d/new", None, Entry(b"new").state),
        FileChange(b"d/e/f", OLD[b"d/e/f"].state, Entry(b"new").state),
        FileChange(b"a.py", OLD[b"a.py"].state, Entry(b"new").state),
    ]
    assert write_changes(str(folder), changes, swap) in ([b"d/new"], [b"d/e/f"])
    assert (folder / "a.py").read_bytes() == b"old\n"
    assert tree_at(folder.parent / "outside") == {b"secret": Entry(b"untouched")}
    assert not list(folder.glob(f"{STAGING_PREFIX}*"))


def test_a_file_that_changes_in_the_middle_is_kept(folder: Path) -> None:
    def write_it(state: FileState) -> Iterable[bytes]:
        (folder / "a.py").write_bytes(b"mine")
        (folder / "q").write_bytes(b"mine, too")
        return [b"new"]

    new = Entry(b"new").state
    for change in (FileChange(b"a.py", OLD[b"a.py"].state, new), FileChange(b"q", None, new)):
        put_back = folder / "a.py"
        put_back.write_bytes(b"old\n")
        (folder / "q").unlink(missing_ok=True)
        assert write_changes(str(folder), [change], write_it) == [change.path]
        assert (put_back.read_bytes(), (folder / "q").read_bytes()) == (b"mine", b"mine, too")


def test_a_folder_that_is_swapped_all_the_time_leads_nowhere(folder: Path) -> None:
    place, aside, done = folder / "d", folder / "aside", threading.Event()

    def swap() -> None:
        while not done.is_set():
            with contextlib.suppress(OSError):  # the writer may make the folder meanwhile
                place.rename(aside)
                place.symlink_to(folder.parent / "outside")
            with contextlib.suppress(OSError):
                place.unlink()
            with contextlib.suppress(OSError):
                aside.rename(place)

    thread = threading.Thread(target=swap)
    thread.start()
    changed = {**OLD, b"d/e/f": Entry(b"deeper"), b"d/secret": Entry(b"stolen")}
    try:
        for _ in range(300):
            with contextlib.suppress(OSError):
                write(folder, OLD, changed)
            with contextlib.suppress(OSError):
                write(folder, changed, OLD)
    finally:
        done.set()
        thread.join()
    assert outside(folder) == {b"outside/secret": Entry(b"untouched")}


class CaseInsensitive:
    """The module `os`, with a file system that takes upper case for lower case."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in ("open", "stat", "link", "rename", "unlink", "mkdir", "rmdir", "symlink", "readlink"):
            return real

        def call(*args: Any, **options: Any) -> Any:
            return real(*(each.lower() if isinstance(each, bytes) else each for each in args), **options)

        return call


def test_two_paths_that_are_one_for_the_file_system_are_a_difference(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writing, "os", CaseInsensitive())
    put(tmp_path, {b"readme": Entry(b"r")})
    assert write(tmp_path, {}, {b"Makefile": Entry(b"1"), b"makefile": Entry(b"2")}) == [b"makefile"]
    both = {b"README": Entry(b"r"), b"readme": Entry(b"r")}
    assert write(tmp_path, both, {}) == [b"readme"]
    assert tree_at(tmp_path) == {b"readme": Entry(b"r")}
    assert write(tmp_path, {b"readme": Entry(b"r")}, {b"README": Entry(b"R")}) == []
    assert tree_at(tmp_path) == {b"readme": Entry(b"R")}


NAMES = st.sampled_from([b"a", b"b", b"A", b"..", b".", b"", b"l", b"\xff", b"out", b"c\n"])
PATHS = st.lists(NAMES, min_size=1, max_size=4).map(b"/".join)
ENTRIES = st.builds(
    Entry,
    st.sampled_from([b"1", b"2", b"..", b"../outside", b"../../outside/secret", b"/tmp", b"a", b"secret"]),
    st.sampled_from([0o644, 0o755, 0o600, None]),
)
TREES = st.dictionaries(PATHS, ENTRIES, max_size=6)


@given(
    st.dictionaries(st.sampled_from([b"a", b"b", b"l", b"out", b"\xff"]), ENTRIES, max_size=4), TREES, TREES
)
def test_whatever_the_changes_nothing_outside_the_folder_changes(
    there: Tree, before: Tree, after: Tree
) -> None:
    with tempfile.TemporaryDirectory() as place:
        folder = Path(os.path.realpath(place)) / "folder"
        folder.mkdir()
        (folder.parent / "outside").mkdir()
        (folder.parent / "outside" / "secret").write_bytes(b"untouched")
        put(folder, there)
        found = tree_at(folder)
        try:
            done = write(folder, before, after) == []
        except (ValueError, OSError):
            done = False
        changed = {name for name in {*before, *after} if before.get(name) != after.get(name)}
        kept = {name: each for name, each in found.items() if name not in changed}
        expected = {**kept, **{name: each for name, each in after.items() if name in changed}}
        assert tree_at(folder) == (expected if done else found)
        assert tree_at(folder.parent / "outside") == {b"secret": Entry(b"untouched")}
        assert sorted(os.listdir(folder.parent)) == ["folder", "outside"]


def test_a_digest_is_what_git_says() -> None:
    assert digest_of(b"") == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"


def test_a_folder_that_is_made_again_has_the_mode_that_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "folder", {b"d/a": Entry(b"a"), b"z": Entry(b"z")})
    (tmp_path / "folder" / "d").chmod(0o2777)
    call, _ = failing("link", 0, FileExistsError)
    monkeypatch.setattr(os, "link", call)
    before, after = {b"d/a": Entry(b"a")}, {b"e": Entry(b"e")}
    assert write(tmp_path / "folder", before, after) == [b"e"]
    assert stat.S_IMODE((tmp_path / "folder" / "d").stat().st_mode) == 0o2777


KILLED = """
import os, signal, sys
from codex_proxy.files.changes import FileChange, FileState, digest_of
from codex_proxy.files.writing import write_changes

def state(content):
    return FileState("file", digest_of(content), len(content), 0o644)

calls = []
def link_or_die(*given, real=os.link, **options):
    if calls:
        os.kill(os.getpid(), signal.SIGKILL)
    calls.append(1)
    return real(*given, **options)

os.link = link_or_die
changes = [FileChange(path, state(b"old"), state(b"new")) for path in (b"a", b"b", b"d/c")]
write_changes(sys.argv[1], [*changes, FileChange(b"e/f", state(b"old"), None)], lambda state: [b"new"])
"""


def test_the_files_of_a_writing_that_was_killed_are_put_back_by_the_next_one(tmp_path: Path) -> None:
    put(tmp_path, {path: Entry(b"old") for path in (b"a", b"b", b"d/c", b"e/f", b"z")})
    killed = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert not (tmp_path / "b").exists()
    (tmp_path / "b").write_bytes(b"of the user")
    assert write(tmp_path, {b"z": Entry(b"old")}, {b"z": Entry(b"new")}) == []
    found = {path: each.content for path, each in tree_at(tmp_path).items()}
    kept = sorted(found.pop(path) for path in [*found] if b"/old" in path)
    assert kept == [b"old", b"old"]  # of `a`, which was written, and of `b`
    files = {path: content for path, content in found.items() if not path.startswith(STAGING_PREFIX.encode())}
    expected = {b"a": b"new", b"b": b"of the user", b"d/c": b"old", b"e/f": b"old", b"z": b"new"}
    assert {path: each for path, each in files.items() if not path.endswith(b"/")} == expected


def test_a_stranger_s_folder_of_a_killed_writing_puts_nothing_where_programs_obey(tmp_path: Path) -> None:
    put(tmp_path, {b"z": Entry(b"old"), b".codex-proxy-1/old0": Entry(b"#!/bin/sh", 0o755)})
    hook = base64.b64encode(b".git/hooks/pre-commit").decode()
    (tmp_path / ".codex-proxy-1" / "interrupted").write_text(json.dumps({"old0": hook}))
    assert write(tmp_path, {b"z": Entry(b"old")}, {b"z": Entry(b"new")}) == []
    assert not (tmp_path / ".git").exists()


FILE, OTHER = Entry(b"one\n"), Entry(b"two\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({b"Readme": FILE}, {b"README": OTHER}),
        ({b"dir/x": FILE, b"dir/y": FILE}, {b"Dir/x": FILE, b"Dir/Y": OTHER}),
        ({b"name": FILE}, {b"Name/inner": FILE, b"Name/Sub/x": OTHER}),
        ({b"A/inner": FILE}, {b"a": link(b"inner"), b"A.txt": OTHER}),
    ],
)
def test_names_change_their_case_where_case_does_not_count(
    before: Tree, after: Tree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "folder", before)
    with monkeypatch.context() as patched:
        count_no_case(patched)
        assert write(tmp_path / "folder", before, after) == []
    assert tree_at(tmp_path / "folder") == after
    with monkeypatch.context() as patched:
        count_no_case(patched)
        assert write(tmp_path / "folder", after, before) == []
    assert tree_at(tmp_path / "folder") == before


@pytest.mark.parametrize(
    ("there", "added", "refused"),
    [
        ({b"Readme": FILE}, {b"README": OTHER}, b"README"),
        ({b"Name": FILE}, {b"name/x": OTHER}, b"name/x"),
        ({b"Name/x": FILE}, {b"name": OTHER}, b"name"),
        ({}, {b"a": FILE, b"A": OTHER, b"b": FILE}, b"a"),
        ({}, {b"a": FILE, b"A/x": OTHER}, b"a"),
    ],
)
def test_two_names_that_are_one_where_case_does_not_count_are_refused(
    there: Tree, added: Tree, refused: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    put(folder, there)
    with monkeypatch.context() as patched:
        count_no_case(patched)
        assert write(folder, {}, added) == [refused]
    assert tree_at(folder) == there


def test_a_folder_is_not_taken_for_one_with_other_case_where_case_counts(tmp_path: Path) -> None:
    folder, there = tmp_path / "folder", {b"a/x": FILE, b"A/mine": OTHER, b"b": FILE, b"B": OTHER}
    put(folder, there)
    assert write(folder, {b"a/x": FILE}, {b"A": FILE}) == [b"A"]
    assert write(folder, {b"b": FILE}, {b"B/x": FILE}) == [b"B/x"]
    assert tree_at(folder) == there
