"""A turn is taken back: its files are what they were before it."""

from __future__ import annotations

import asyncio
import errno
import os
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.turn import Turn
from codex_proxy.parts.sessions.service import SESSIONS
from codex_proxy.parts.sessions.sessions import Session
from codex_proxy.parts.snapshots import reverting
from codex_proxy.parts.snapshots.handlers import KEEPER
from tests.parts.snapshots.working import Worker, snapshot_proxy


async def test_a_reverted_turn_leaves_the_files_as_they_were_before_it(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "changed").write_text("old")
        (folder / "gone").write_text("gone")
        (folder / "gone").chmod(0o600)
        worker = Worker(client, folder)

        def work() -> None:
            (folder / "changed").write_text("new")
            (folder / "gone").unlink()
            (folder / "made").mkdir()
            (folder / "made" / "file").write_text("made")

        turn = await worker.turn(work)
        (folder / "other").write_text("of somebody else")
        answer = await worker.revert(turn)
        assert answer.status == 200, answer.text
        assert answer.body == {
            "object": "turn.reverted",
            "session_id": worker.session,
            "turn_id": turn,
            "paths": ["changed", "gone", "made/file"],
            "truncated": False,
            "kept": None,
        }
        assert (folder / "changed").read_text() == "old"
        assert ((folder / "gone").read_text(), (folder / "gone").stat().st_mode & 0o777) == ("gone", 0o600)
        assert sorted(path.name for path in folder.iterdir()) == ["changed", "gone", "other"]


async def test_files_that_were_changed_since_are_named_and_overwritten_only_by_force(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        turn = await worker.turn(lambda: (folder / "a").write_text("by the turn"))
        (folder / "a").write_text("by its user")
        refused = await worker.revert(turn)
        assert (refused.status, refused.error["param"]) == (409, "force")
        assert ": a. " in refused.error["message"]
        assert (folder / "a").read_text() == "by its user"
        forced = await worker.revert(turn, force=True)
        assert (forced.status, forced.body["paths"]) == (200, ["a"])
        assert not (folder / "a").exists()
        assert len(forced.body["kept"]) == 40


async def test_a_session_that_may_not_write_any_more_takes_nothing_back(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        turn = await worker.turn(lambda: (folder / "a").write_text("1"))
    async with snapshot_proxy(tmp_path, sandbox="read-only") as (client, folder):
        worker.client = client
        assert (await worker.revert(turn)).status == 403
        assert (folder / "a").read_text() == "1"


async def test_no_turn_begins_between_the_last_look_and_the_writing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        turn = await worker.turn(lambda: (folder / "a").write_text("1"))
        keeper, sessions = client.proxy.app[KEEPER], client.proxy.app[SESSIONS]
        began: list[asyncio.Task[Any]] = []
        at_work: list[bool] = []
        find, write_in = sessions.session, keeper.write_in

        async def session(owner: str, id: str) -> Session:
            found = await find(owner, id)
            beginning = Turn(model="m", history=(), workdir=str(folder), sandbox="workspace-write")
            began.append(asyncio.create_task(keeper.prepare(beginning)))
            return found

        async def write(where: str, work: Any, *others: str) -> Any:
            at_work.append(keeper.is_working_in(where))
            return await write_in(where, work, *others)

        monkeypatch.setattr(sessions, "session", session)
        monkeypatch.setattr(keeper, "write_in", write)
        assert (await worker.revert(turn)).status == 200
        assert at_work == [False]
        await asyncio.wait(began)


async def test_a_turn_of_another_session_is_not_found(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        one, other = Worker(client, folder), Worker(client, folder)
        turn = await one.turn(lambda: (folder / "a").write_text("1"))
        await other.turn(lambda: None)
        assert (await other.revert(turn)).status == 404
        assert (folder / "a").read_text() == "1"


async def test_force_overwrites_also_what_is_ignored_by_now(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "build").mkdir()
        (folder / "build" / "changed").write_text("old")
        worker = Worker(client, folder)

        def work() -> None:
            (folder / ".gitignore").write_text("build/\n")
            (folder / "build" / "changed").write_text("by the turn")
            (folder / "build" / "made").write_text("by the turn")

        turn = await worker.turn(work)
        for name in ("changed", "made", "other"):
            (folder / "build" / name).write_text("by its user")
        forced = await worker.revert(turn, force=True)
        assert (forced.status, len(forced.body["kept"])) == (200, 40), forced.text
        assert sorted(path.name for path in (folder / "build").iterdir()) == ["changed", "other"]
        assert (folder / "build" / "changed").read_text() == "old"
        assert not (folder / ".gitignore").exists()


async def test_force_refuses_what_cannot_be_kept(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, snapshot_max_file_bytes=100) as (client, folder):
        worker = Worker(client, folder)
        turn = await worker.turn(lambda: (folder / "a").write_text("by the turn"))
        (folder / "a").write_text("x" * 101)
        forced = await worker.revert(turn, force=True)
        assert forced.status == 409
        assert ": a. " in forced.error["message"]
        assert (folder / "a").stat().st_size == 101


async def test_what_force_has_kept_is_left_out_by_the_next_turn(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)

        def work() -> None:
            (folder / "made").write_text("by the turn")
            (folder / ".gitignore").write_text("made\n")

        turn = await worker.turn(work)
        (folder / ".gitignore").write_text("made\nx\n")
        assert (await worker.revert(turn, force=True)).status == 200
        (folder / ".gitignore").write_text("made\n")
        (folder / "made").write_text("1")
        next_turn = await worker.turn(lambda: (folder / "made").write_text("2"))
        assert (await worker.changes(next_turn))["data"] == []


async def test_a_read_only_mount_is_told_and_the_turn_is_taken_back_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(*_: object) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        turn = await worker.turn(lambda: (folder / "a").write_text("1"))
        with monkeypatch.context() as patched:
            patched.setattr(reverting, "write_files", read_only)
            refused = await worker.revert(turn)
        assert (refused.status, refused.error["message"]) == (
            409,
            "The files of the turn cannot be written: Read-only file system.",
        )
        assert (folder / "a").exists()
        assert (await worker.revert(turn)).status == 200
        assert not (folder / "a").exists()
