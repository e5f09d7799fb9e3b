"""The first snapshot of a folder, which is made when a session is opened, so that no turn waits for it."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts.snapshots.folders import FolderName, FolderSnapshots, Kept
from codex_proxy.parts.snapshots.git import GitDirectory
from codex_proxy.parts.snapshots.handlers import KEEPER
from tests.parts.sessions.driving import AGENT, AgentsClient
from tests.parts.snapshots.working import Worker, snapshot_proxy
from tests.waiting import PATIENCE, eventually


async def open_session(client: AgentsClient, folder: Path) -> str:
    """Opens a session without a turn. Returns its id."""
    environment = {"type": "self_hosted", "workspace_directory": str(folder), "remote_url": ""}
    made = await client.post("/sessions", {"environment": environment, "agent": AGENT})
    return str(made["id"])


def places_in(client: AgentsClient) -> list[Path]:
    return [path.parent for path in client.proxy.app[KEEPER].root.glob("*/known")]


async def test_a_folder_is_read_when_its_session_is_opened(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("1")
        session = await open_session(client, folder)
        await eventually(lambda: bool(places_in(client)))
        worker = Worker(client, folder)
        worker.session = session
        changes = await worker.changes(await worker.turn(lambda: (folder / "a").write_text("2")))
        assert [(each["path"], each["kind"]) for each in changes["data"]] == [("a", "modified")]


def is_opening() -> bool:
    return any(task.get_name() == "opening snapshot" for task in asyncio.all_tasks())


async def test_what_was_read_for_a_session_without_turns_is_removed(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("1")
        await open_session(client, folder)
        await eventually(lambda: bool(places_in(client)))
        [place] = places_in(client)
        await eventually(lambda: not is_opening())
        keeper = client.proxy.app[KEEPER]
        await keeper.prune()
        await keeper.prune()
        assert not place.exists()


async def test_a_folder_that_is_known_is_not_read_for_a_new_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        keeper, taken = client.proxy.app[KEEPER], Taken(monkeypatch)
        await open_session(client, folder)
        await eventually(lambda: bool(taken.folders) and not is_opening())
        keeper.snapshots_of(places_in(client)[0].name).forget()
        await open_session(client, folder)
        await eventually(lambda: not is_opening())
        assert taken.folders == [str(folder)]
        (places_in(client)[0] / "known").write_bytes(b"of an earlier format")
        await open_session(client, folder)
        await eventually(lambda: not is_opening())
        assert taken.folders == [str(folder)] * 2


async def test_a_folder_is_read_once_for_sessions_that_are_opened_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    going = threading.Event()
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "below").mkdir()
        taken = Taken(monkeypatch, lambda: going.wait(PATIENCE))
        for each in (folder, folder, folder / "below"):
            await open_session(client, each)
        await eventually(lambda: len(taken.folders) == 2)
        going.set()
        await eventually(lambda: not is_opening())
        assert sorted(taken.folders) == [str(folder), str(folder / "below")]


async def test_too_little_room_removes_what_was_read_for_sessions_before_what_turns_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path, snapshot_max_total_bytes=50_000) as (client, folder):
        small, large, other = (folder / name for name in ("small", "large", "other"))
        for each in (small, large, other):
            each.mkdir()
        worker, keeper = Worker(client, small), client.proxy.app[KEEPER]
        turn = await worker.turn(lambda: (small / "a").write_text("1"))
        (large / "a").write_bytes(random.Random(1).randbytes(60_000))
        taken = Taken(monkeypatch)
        await open_session(client, large)
        await eventually(lambda: bool(taken.folders) and not is_opening())
        await open_session(client, other)
        await eventually(lambda: not is_opening())
        assert taken.folders == [str(large)]
        await keeper.prune()
        assert len(places_in(client)) == 1
        assert (await worker.changes(turn))["state"] == "kept"


async def test_what_was_read_for_a_session_goes_without_work_on_what_turns_keep(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        session = await open_session(client, folder)
        await eventually(lambda: bool(places_in(client)) and not is_opening())
        worker, keeper = Worker(client, folder), client.proxy.app[KEEPER]
        turn = await worker.turn(lambda: (folder / "a").write_text("1"))
        repacked: list[Path] = []
        monkeypatch.setattr(GitDirectory, "repack", lambda git: repacked.append(git.path))
        await keeper.prune()
        await keeper.prune()
        refs = GitDirectory("/usr/bin/git", places_in(client)[0] / "git").refs()
        assert (any(session in ref for ref in refs), any(turn in ref for ref in refs)) == (False, True)
        assert repacked == []


class Taken:
    """The folders that are read for sessions, in their order. `meanwhile` is done while that goes on."""

    def __init__(self, patched: pytest.MonkeyPatch, meanwhile: Callable[[], object] = bool) -> None:
        self.folders: list[str] = []
        take = FolderSnapshots.take

        def note(snapshots: FolderSnapshots, name: FolderName, *given: Any) -> Kept:
            self.folders.append(name.folder)
            meanwhile()
            return take(snapshots, name, *given)

        patched.setattr(FolderSnapshots, "take", note)


async def test_a_session_that_may_not_write_has_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path, sandbox="read-only") as (client, folder):
        keeper = client.proxy.app[KEEPER]
        taken: list[str] = []
        monkeypatch.setattr(keeper, "snapshots_of", taken.append)
        await open_session(client, folder)
        assert taken == []
