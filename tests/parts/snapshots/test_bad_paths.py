"""What may go wrong while a snapshot is made: the turn goes on, and the changes say what is missing."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import random
import shutil
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from codex_proxy.core.events import Stop, TurnEnded
from codex_proxy.core.turn import Turn
from codex_proxy.files.changes import StatusMark, status_mark
from codex_proxy.parts.snapshots import keeper, walk
from codex_proxy.parts.snapshots.difference import differences
from codex_proxy.parts.snapshots.folders import FolderName, FolderSnapshots, names_in
from codex_proxy.parts.snapshots.git import GitDirectory
from codex_proxy.parts.snapshots.handlers import KEEPER
from codex_proxy.parts.snapshots.ignored import Rules
from codex_proxy.parts.snapshots.known import KnownFolder
from codex_proxy.parts.snapshots.objects import NewObjects, object_digest
from codex_proxy.parts.snapshots.walk import Limits, SnapshotError, Walk
from tests.access.keyed import key_of, write_keys
from tests.parts.sessions.driving import AgentsClient
from tests.parts.snapshots.working import Worker, snapshot_proxy
from tests.waiting import PATIENCE, eventually

LIMITS = Limits(files=1000, bytes=1 << 20, file_bytes=1 << 16)
GIT = "/usr/bin/git"


def snapshots_in(tmp_path: Path, folder: Path) -> Callable[..., str]:
    """Returns a function that makes a snapshot of a folder, and returns its tree."""
    name = FolderName("owner", str(folder))
    snapshots = FolderSnapshots(GIT, tmp_path / "snapshots", name.place)

    def take(ref: str = "refs/turns/t/before", limits: Limits = LIMITS) -> str:
        return snapshots.take(name, limits, time.monotonic() + PATIENCE, [ref]).tree

    return take


async def test_a_full_disk_leaves_the_turn_without_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        with monkeypatch.context() as patched:
            patched.setattr(NewObjects, "add", full)
            failed = await worker.changes(await worker.turn(lambda: None))
        assert (failed["state"], failed["data"]) == ("failed", [])
        assert "No space left on device" in failed["reason"]
        kept = await worker.changes(await worker.turn(lambda: (folder / "a").write_text("1")))
        assert [each["path"] for each in kept["data"]] == ["a"]


async def test_a_snapshot_that_takes_too_long_holds_a_turn_up_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going, take = threading.Event(), Walk.take

    def slow(*given: Any) -> Any:
        going.wait(PATIENCE)
        return take(*given)

    monkeypatch.setattr(Walk, "take", slow)
    async with snapshot_proxy(tmp_path, snapshot_wait=0.05) as (client, folder):
        worker = Worker(client, folder)
        changes = await worker.changes(await worker.turn(lambda: None))
        assert (changes["state"], changes["before"]) == ("failed", None)
        assert "PROXY_SNAPSHOT_WAIT" in changes["reason"]
        going.set()


async def test_limits_are_told_by_their_setting(tmp_path: Path) -> None:
    for setting, value in (("snapshot_max_files", 2), ("snapshot_max_bytes", 10)):
        async with snapshot_proxy(tmp_path, **{setting: value}) as (client, folder):
            for name in "abc":
                (folder / name).write_text("12345")
            worker = Worker(client, folder)
            changes = await worker.changes(await worker.turn(lambda: None))
            assert changes["state"] == "failed"
            assert f"PROXY_{setting.upper()}" in changes["reason"]


async def test_a_file_of_10_gigabytes_is_named_and_not_read(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "small").write_text("1")
        (folder / "grown").write_text("1")
        worker = Worker(client, folder)

        def work() -> None:
            (folder / "small").write_text("2")
            for name in ("new", "grown"):
                with open(folder / name, "wb") as file:
                    file.truncate(10 << 30)

        turn = await worker.turn(work)
        changes = await worker.changes(turn)
        assert [each["path"] for each in changes["data"]] == ["small"]
        assert changes["left_out"] == ["grown", "new"]
        assert (await worker.revert(turn)).body["paths"] == ["small"]
        assert (folder / "grown").stat().st_size == 10 << 30


async def test_two_sessions_in_one_folder_are_told_of_each_other(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "below").mkdir()
        one = Worker(client, folder)
        alone = await one.turn(lambda: None)
        keeper = client.proxy.app[KEEPER]
        async with client.creation(
            "[[fake:text misbehave=hang]]", environment=hosted(folder / "below")
        ) as reader:
            await reader.until("agent.session.turn.created")
            await eventually(lambda: keeper.is_working_in(str(folder / "below")))
            together = await one.turn(lambda: None)
            reverted = await one.revert(together)
            assert (reverted.status, "at work" in reverted.text) == (409, True)
        assert (await one.changes(together))["others_wrote"] is True
        assert (await one.changes(alone))["others_wrote"] is False


def hosted(folder: Path) -> dict[str, str]:
    return {"type": "self_hosted", "workspace_directory": str(folder), "remote_url": ""}


async def test_what_is_kept_goes_with_its_session(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker, stays = Worker(client, folder), Worker(client, folder)
        await worker.turn(lambda: (folder / "large").write_bytes(random.Random(1).randbytes(20000)))
        (folder / "large").unlink()
        turn = await stays.turn(lambda: (folder / "a").write_text("1"))
        keeper = client.proxy.app[KEEPER]
        [place] = [path.parent for path in keeper.root.glob("*/name.json")]
        git = GitDirectory(GIT, place / "git")
        assert git.size > 20000
        await client.delete(f"/sessions/{worker.session}")
        await keeper.prune()
        await keeper.prune()
        assert {ref.split("/")[2] for ref in git.refs() if ref.startswith("refs/turns/")} == {turn}
        assert git.size < 20000
        assert [each["path"] for each in (await stays.changes(turn))["data"]] == ["a"]
        await client.delete(f"/sessions/{stays.session}")
        await keeper.prune()
        await keeper.prune()
        assert not place.exists()
        again = Worker(client, folder)
        turn = await again.turn(lambda: (folder / "a").write_text("2"))
        assert [each["path"] for each in (await again.changes(turn))["data"]] == ["a"]


async def test_another_key_sees_and_changes_nothing(tmp_path: Path) -> None:
    write_keys(tmp_path, one={}, two={})
    async with snapshot_proxy(tmp_path) as (client, folder):
        one, two = (AgentsClient(client.proxy, key_of(name)) for name in ("one", "two"))
        worker = Worker(one, folder)
        turn = await worker.turn(lambda: (folder / "a").write_text("1"))
        path = f"/sessions/{worker.session}/turns/{turn}"
        assert (await two.ask("GET", f"{path}/changes")).status == 404
        assert (await two.ask("POST", f"{path}/revert", {"force": True})).status == 404
        body = {"folder": str(folder / "f")}
        assert (await two.ask("POST", f"/sessions/{worker.session}/fork", body)).status == 404
        assert not (folder / "f").exists()
        assert (folder / "a").read_text() == "1"


def test_what_a_killed_server_has_left_is_removed_by_the_next_snapshot(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a").write_text("1")
    take = snapshots_in(tmp_path, folder)
    take()
    [git] = (tmp_path / "snapshots").glob("*/git")
    left = [
        git / "objects" / "pack" / "tmp_pack_x",
        git / "refs" / "latest.lock",
        git / "codex-proxy-objects-abcdefgh.temporary",
    ]
    left[0].write_bytes(b"half")
    left[1].touch()
    left[2].mkdir(mode=0o700)
    (left[2] / "ab").mkdir()
    (folder / "a").write_text("2")
    take()
    assert not [path for path in left if path.exists()]


def test_damaged_notes_of_what_is_known_cost_only_time(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a").write_text("1")
    tree = snapshots_in(tmp_path, folder)()
    [known] = (tmp_path / "snapshots").glob("*/known")
    for content in (b"", b"\x00", b"\x92\x01\xc0", os.urandom(100)):
        known.write_bytes(content)
        assert snapshots_in(tmp_path, folder)() == tree


@pytest.mark.parametrize("time_of_change", [1 << 64, -1 << 64])
def test_times_that_no_note_can_have_cost_only_time(
    time_of_change: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "link").symlink_to("a")

    def mark_far_away(status: os.stat_result) -> StatusMark:
        return (*status_mark(status)[:3], time_of_change, 1)

    monkeypatch.setattr(walk, "status_mark", mark_far_away)
    tree = snapshots_in(tmp_path, folder)()
    assert snapshots_in(tmp_path, folder)() == tree


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_a_snapshot_is_given_up_in_time_among_names_that_are_left_out(
    make: Callable[[Path], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (tmp_path / ".git").mkdir()
    (tmp_path / ".gitignore").write_text("*.log\n")
    for name in ("a.log", "b.log"):
        make(folder / name)
    now = [0.0]

    def leave_out(*_: Any, **__: Any) -> bool:
        now[0] += 1
        return True

    monkeypatch.setattr(Rules, "leave_out", leave_out)
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    with closing(NewObjects(tmp_path)) as objects, pytest.raises(SnapshotError, match="too long"):
        Walk(objects, LIMITS, 0.5).take(str(folder), KnownFolder())


def test_a_folder_that_is_gone_or_a_link_is_named(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="cannot be read"):
        snapshots_in(tmp_path, tmp_path / "none")()
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(SnapshotError, match="cannot be read"):
        snapshots_in(tmp_path, tmp_path / "link")()


def test_a_file_whose_time_is_put_back_is_read_again(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    take = snapshots_in(tmp_path, folder)
    file = folder / "a"
    file.write_text("1")
    status = file.stat()
    before = take()
    file.write_text("2")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert take() != before


async def test_a_turn_whose_server_was_killed_is_told_as_failed(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        turn = await worker.turn(lambda: None)
        keeper = client.proxy.app[KEEPER]
        [(_, name)] = names_in(keeper.root)
        files = await keeper.files(name.owner, turn)
        assert files is not None
        await keeper.write(name.owner, replace(files, state="running", after=""))
        changes = await worker.changes(turn)
        assert (changes["state"], changes["after"]) == ("failed", None)
        assert "before the turn did" in changes["reason"]
        assert (await worker.revert(turn)).status == 409


async def test_a_folder_that_could_not_be_read_before_the_turn_is_not_removed_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "data").mkdir()
        (folder / "data" / "old").write_text("old")
        worker = Worker(client, folder)
        patched = monkeypatch.context()
        fail_open(patched.__enter__(), "data", errno.EACCES)

        def work() -> None:
            patched.__exit__(None, None, None)
            (folder / "a").write_text("1")

        turn = await worker.turn(work)
        changes = await worker.changes(turn)
        assert [each["path"] for each in changes["data"]] == ["a"]
        assert changes["left_out"] == ["data"]
        assert (await worker.revert(turn)).body["paths"] == ["a"]
        assert (folder / "data" / "old").read_text() == "old"


@pytest.mark.parametrize("name", ["data", ".gitignore", "a"])
def test_an_error_that_may_pass_makes_no_snapshot_without_the_folder_or_file(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    (folder / "data").mkdir(parents=True)
    (folder / ".gitignore").write_text("x\n")
    (folder / "a").write_text("1")
    fail_open(monkeypatch, name, errno.EMFILE)
    with pytest.raises(SnapshotError, match="Too many open files"):
        snapshots_in(tmp_path, folder)()


@pytest.mark.parametrize("why", ["may not be read", "is too large"])
def test_a_file_that_can_be_kept_by_now_is_kept_though_it_is_the_same(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "a").write_text("12345")
    take = snapshots_in(tmp_path, folder)
    with monkeypatch.context() as patched:
        if why == "may not be read":
            fail_open(patched, "a", errno.EACCES)
        unkept = [take(limits=LIMITS._replace(file_bytes=4 if why == "is too large" else 5)) for _ in "ab"]
    assert unkept[0] == unkept[1] != take() == snapshots_in(tmp_path / "new", folder)()


def fail_open(monkeypatch: pytest.MonkeyPatch, name: str, error: int) -> None:
    real = os.open

    def fail(path: Any, *given: Any, **more: Any) -> int:
        if path == name:
            raise OSError(error, os.strerror(error))
        return real(path, *given, **more)

    monkeypatch.setattr(os, "open", fail)


async def test_a_restart_within_a_turn_is_told_and_not_half_of_its_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "MAX_RULES", 0)
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        changes = await worker.changes(await worker.turn(lambda: (folder / "a").write_text("1")))
        assert (changes["state"], changes["after"]) == ("failed", None)
        assert "restarted" in changes["reason"]


async def test_an_error_of_the_server_after_a_turn_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: Any) -> None:
        raise AttributeError

    monkeypatch.setattr(keeper, "newly_ignored", broken)
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        changes = await worker.changes(await worker.turn(lambda: (folder / "a").write_text("1")))
        assert (changes["state"], "error of the server" in changes["reason"]) == ("failed", True)


def test_a_snapshot_that_waits_while_all_is_removed_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    name = FolderName("owner", str(folder))
    one, other = (FolderSnapshots(GIT, tmp_path / "snapshots", name.place) for _ in "ab")
    flock, begun, waits = fcntl.flock, threading.Event(), threading.Event()

    def wait(lock: Any, how: int) -> None:
        try:
            flock(lock, how)
        except BlockingIOError:
            waits.set()
            raise

    def remove_when_waited_for(path: Path) -> None:
        begun.set()
        assert waits.wait(PATIENCE)
        rmtree(path)

    def take(snapshots: FolderSnapshots) -> str:
        return snapshots.take(name, LIMITS, time.monotonic() + PATIENCE, ["refs/turns/t/x"]).tree

    tree, rmtree = take(one), shutil.rmtree
    monkeypatch.setattr(fcntl, "flock", wait)
    monkeypatch.setattr(shutil, "rmtree", remove_when_waited_for)
    with ThreadPoolExecutor() as threads:
        removing = threads.submit(one.remove, ["refs/turns/t/x"])
        assert begun.wait(PATIENCE)
        assert threads.submit(take, other).result(PATIENCE) == tree
        removing.result(PATIENCE)
    assert one.refs() == {"refs/latest": tree, "refs/turns/t/x": tree}
    assert [found for _, found in names_in(tmp_path / "snapshots")] == [name]


def test_a_folder_is_forgotten_while_a_snapshot_of_it_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    name = FolderName("owner", str(folder))
    snapshots = FolderSnapshots(GIT, tmp_path / "snapshots", name.place)
    refs = GitDirectory.refs

    def forget_meanwhile(git: GitDirectory, *names: str) -> dict[str, str]:
        snapshots.forget()
        return refs(git, *names)

    monkeypatch.setattr(GitDirectory, "refs", forget_meanwhile)
    trees = [snapshots.take(name, LIMITS, time.monotonic() + PATIENCE, ["refs/turns/t/x"]).tree for _ in "ab"]
    assert trees[0] == trees[1]


async def test_a_turn_begins_only_when_files_have_been_taken_back(tmp_path: Path) -> None:
    going = threading.Event()
    async with snapshot_proxy(tmp_path) as (client, folder):
        keeper = client.proxy.app[KEEPER]
        writing = asyncio.create_task(keeper.write_in(str(folder), lambda: going.wait(PATIENCE)))
        await eventually(lambda: keeper.is_working_in(str(folder / "below")))
        turn = Turn(model="m", history=(), mode="agent", workdir=str(folder), sandbox="workspace-write")
        beginning = asyncio.create_task(keeper.prepare(turn))
        for _ in range(20):  # it would have begun by then, if it did not wait
            await asyncio.sleep(0)
        assert not beginning.done()
        going.set()
        assert await writing
        begun = await beginning
        assert begun is not None
        assert not begun.others_wrote
        assert keeper.is_working_in(str(folder))  # also without a session
        begun.begin(turn, "agent").add([TurnEnded(Stop.INTERRUPTED)])
        assert not keeper.is_working_in(str(folder))


def test_names_that_are_left_out_count(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / ".gitignore").write_text("*.log\n")
    for number in range(10):
        (folder / f"{number}.log").touch()
    with pytest.raises(SnapshotError, match="more than 5 files"):
        snapshots_in(tmp_path, folder)(limits=Limits(files=5, bytes=100, file_bytes=100))


def test_the_last_patch_of_a_cut_output_is_missing(tmp_path: Path) -> None:
    folder = tmp_path / "work"
    folder.mkdir()
    for name in "ab":
        (folder / name).write_text(name * 2000)
    tree = snapshots_in(tmp_path, folder)()
    [path] = (tmp_path / "snapshots").glob("*/git")
    git = GitDirectory(GIT, path)
    with git.reader() as reader:
        pairs = [
            (empty_id(), each.after.digest.hex().encode())
            for each in differences(reader, "", tree)
            if each.after
        ]
    assert len(git.diff(pairs, 1 << 20)) == 2
    assert len(git.diff(pairs, 3000)) == 1


def empty_id() -> bytes:
    return object_digest("blob", b"").hex().encode()


async def test_above_the_bytes_of_all_snapshots_the_oldest_turns_lose_theirs(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, snapshot_max_total_bytes=50_000) as (client, folder):
        worker, own = Worker(client, folder), client.proxy.app[KEEPER]
        turns = []
        for seed in range(3):
            content = random.Random(seed).randbytes(20_000)
            turns.append(await worker.turn(partial((folder / "large").write_bytes, content)))
        assert sum(snapshots.git.size for snapshots in all_snapshots(own)) > 50_000
        await own.prune()
        assert sum(snapshots.git.size for snapshots in all_snapshots(own)) <= 50_000
        states = [(await worker.changes(turn))["state"] for turn in turns]
        assert (states[0], states[-1]) == ("failed", "kept")
        assert "PROXY_SNAPSHOT_MAX_TOTAL_BYTES" in (await worker.changes(turns[0]))["reason"]


def all_snapshots(own: keeper.Keeper) -> list[FolderSnapshots]:
    return [own.snapshots_of(place) for place, _ in names_in(own.root)]


async def test_patterns_that_are_too_many_to_remember_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "MAX_RULES", 100)
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        (folder / ".gitignore").write_text("x\n" * 90)
        assert (await worker.changes(await worker.turn(lambda: None)))["state"] == "kept"
        (folder / ".gitignore").write_text("x\n" * 100)
        changes = await worker.changes(await worker.turn(lambda: None))
        assert (changes["state"], "too many patterns" in changes["reason"]) == ("failed", True)
