"""The first snapshot of a folder, which is made when a session is opened, so that no turn waits for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from codex_proxy.parts.snapshots.folders import FolderName
from codex_proxy.parts.snapshots.git import GitDirectory
from codex_proxy.parts.snapshots.handlers import KEEPER
from tests.parts.sessions.driving import AGENT, AgentsClient
from tests.parts.snapshots.working import Worker, snapshot_proxy
from tests.waiting import eventually


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


async def test_what_was_read_for_a_session_without_turns_is_removed(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "a").write_text("1")
        await open_session(client, folder)
        await eventually(lambda: bool(places_in(client)))
        [place] = places_in(client)
        keeper = client.proxy.app[KEEPER]
        await keeper.prune()
        await keeper.prune()
        assert GitDirectory("/usr/bin/git", place / "git").refs() == {}
        assert places_in(client) == []


async def test_a_folder_that_is_known_is_not_read_for_a_new_session(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        await open_session(client, folder)
        await eventually(lambda: bool(places_in(client)))
        keeper = client.proxy.app[KEEPER]
        read: list[object] = []
        snapshots = keeper.snapshots_of(places_in(client)[0].name)
        asked = snapshots.is_known

        def is_known() -> bool:
            found = asked()
            read.append(found)
            return found

        async def take(name: FolderName, *_: Any) -> None:
            read.append(name)

        monkeypatch.setattr(snapshots, "is_known", is_known)
        monkeypatch.setattr(keeper, "take", take)
        await open_session(client, folder)
        await eventually(lambda: bool(read))
        assert read == [True]


async def test_a_session_that_may_not_write_has_no_snapshot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path, sandbox="read-only") as (client, folder):
        keeper = client.proxy.app[KEEPER]
        taken: list[str] = []
        monkeypatch.setattr(keeper, "snapshots_of", taken.append)
        await open_session(client, folder)
        assert taken == []
