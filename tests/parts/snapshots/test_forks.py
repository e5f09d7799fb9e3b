"""Forks of sessions with the files that their folder had."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.parts.sessions.service import Sessions
from codex_proxy.parts.snapshots import keeper
from codex_proxy.parts.snapshots.folders import FolderSnapshots
from codex_proxy.parts.snapshots.git import GitError
from tests.files.trees import count_no_case
from tests.parts.sessions.driving import AgentsClient
from tests.parts.snapshots.working import Worker, snapshot_proxy


async def fork(client: AgentsClient, session: str, **body: Any) -> Any:
    return await client.ask("POST", f"/sessions/{session}/fork", body)


async def first_item_of(client: AgentsClient, session: str, turn: str) -> str:
    items = await client.all(f"/sessions/{session}/turns/{turn}/items")
    return str(items[0]["id"])


def files_in(folder: Path) -> dict[str, str]:
    return {str(each.relative_to(folder)): each.read_text() for each in folder.rglob("*") if each.is_file()}


async def test_a_fork_before_a_turn_works_in_a_folder_with_the_files_from_before_it(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        (folder / "run").write_text("#!")
        (folder / "run").chmod(0o755)
        first = await worker.turn(lambda: (folder / "a").write_text("1"))
        second = await worker.turn(lambda: (folder / "a").write_text("2"))
        item = await first_item_of(client, worker.session, second)
        target = folder / "forked"
        answer = await fork(client, worker.session, before_item=item, folder=str(target))
        assert answer.status == 201, answer.text
        assert answer.body["environment"]["workspace_directory"] == str(target)
        assert files_in(target) == {"run": "#!", "a": "1"}
        assert (target / "run").stat().st_mode & 0o777 == 0o755
        assert (folder / "a").read_text() == "2"

        copy = Worker(client, target)
        copy.session = answer.body["id"]
        turns = await client.all(f"/sessions/{copy.session}/turns")
        assert [each["path"] for each in (await copy.changes(turns[0]["id"]))["data"]] == ["a"]
        third = await copy.turn(lambda: (target / "b").write_text("3"))
        assert [each["path"] for each in (await copy.changes(third))["data"]] == ["b"]
        assert [each["path"] for each in (await worker.changes(first))["data"]] == ["a"]

        again = await fork(client, copy.session, folder=str(tmp_path / "work" / "again"))
        assert files_in(folder / "again") == {"run": "#!", "a": "1", "b": "3"}, again.text


async def test_a_fork_of_the_whole_session_has_the_files_after_its_last_turn(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("1"))
        (folder / "a").write_text("by its user")
        assert (await fork(client, worker.session, folder=str(folder / "f"))).status == 201
        assert files_in(folder / "f") == {"a": "1"}


async def test_a_folder_that_has_files_or_may_not_be_written_is_refused(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("1"))
        (tmp_path / "outside").mkdir()
        (folder / "link").symlink_to(tmp_path / "outside")
        (folder / ".git/hooks").mkdir(parents=True)
        others = (folder / ".git/hooks", folder / ".git/hooks/new", folder / ".Claude", folder / "Git~1")
        for target in (
            *(folder, tmp_path / "new", folder / "link" / "new", Path("f"), folder / "none" / "new"),
            *others,
        ):
            answer = await fork(client, worker.session, folder=str(target))
            assert (answer.status, answer.error["param"]) == (400, "folder"), (target, answer.text)
        assert not [*(tmp_path / "outside").iterdir()]
        assert not (tmp_path / "new").exists()
        assert {each.name for each in folder.iterdir()} == {"a", "link", ".git"}
        assert not [*(folder / ".git/hooks").iterdir()]
        advised = await fork(client, worker.session, folder=str(folder / ".Claude"))
        assert "Use another folder. The operator" in advised.error["message"]
        assert "new or empty" in (await fork(client, worker.session, folder=str(folder))).error["message"]


async def test_where_turns_may_write_everywhere_a_fork_may_begin_anywhere(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, sandbox="danger-full-access") as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("1"))
        assert (await fork(client, worker.session, folder=str(folder / ".claude"))).status == 201


async def test_without_snapshots_a_fork_has_no_folder_of_its_own(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, snapshots="off") as (client, folder):
        worker = Worker(client, folder)
        turn = await worker.turn(lambda: None)
        assert (await worker.changes(turn))["state"] == "off"
        answer = await fork(client, worker.session, folder=str(folder / "f"))
        assert (answer.status, answer.error["param"]) == (400, "folder")
        assert not (folder / "f").exists()


async def test_a_fork_takes_turns_back_in_its_own_folder(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker, target = Worker(client, folder), folder / "f"
        await worker.turn(lambda: (folder / "a").write_text("1"))
        made = await fork(client, worker.session, folder=str(target))
        copy = Worker(client, target)
        copy.session = made.body["id"]
        [turn] = await client.all(f"/sessions/{copy.session}/turns")
        (target / "a").write_text("by its user")
        assert (await copy.revert(turn["id"])).status == 409
        reverted = await copy.revert(turn["id"], force=True)
        assert (reverted.status, reverted.body["paths"]) == (200, ["a"]), reverted.text
        assert not (target / "a").exists()
        assert (folder / "a").read_text() == "1"


async def test_a_fork_gets_no_older_files_than_it_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("1"))
    monkeypatch.setattr(keeper, "MAX_RULES", 0)
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker.client = client
        await worker.turn(lambda: (folder / "a").write_text("2"))
        answer = await fork(client, worker.session, folder=str(folder / "f"))
        assert (answer.status, answer.error["param"]) == (400, "folder")
        assert "the server was restarted in the turn" in answer.error["message"]
        assert not (folder / "f").exists()
        copy = await fork(client, worker.session)
        again = await fork(client, copy.body["id"], folder=str(folder / "f"))
        assert (again.status, "restarted" in again.text) == (400, True)


async def test_a_fork_that_fails_leaves_nothing_in_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> None:
        raise Fault.of(FaultKind.INTERNAL, "The store is gone.")

    async with snapshot_proxy(tmp_path) as (client, folder):
        worker, target = Worker(client, folder), folder / "f"
        await worker.turn(lambda: (folder / "a").write_text("1"))
        with monkeypatch.context() as patched:
            patched.setattr(Sessions, "create", fail)
            assert (await fork(client, worker.session, folder=str(target))).status == 500
        assert not target.exists()
        assert (await fork(client, worker.session, folder=str(target))).status == 201


async def test_of_two_forks_into_one_folder_at_once_one_is_told_that_it_has_files(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a").write_text("1"))
        forks = (fork(client, worker.session, folder=str(folder / "f")) for _ in range(2))
        told = sorted([(each.status, each.text) for each in await asyncio.gather(*forks)])
        assert [status for status, _ in told] == [201, 400]
        assert "new or empty" in told[1][1]
        assert files_in(folder / "f") == {"a": "1"}


async def test_a_folder_in_which_two_names_are_one_gets_no_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        (folder / "Readme").write_text("1")
        await worker.turn(lambda: (folder / "README").write_text("2"))
        with monkeypatch.context() as patched:
            count_no_case(patched)
            answer = await fork(client, worker.session, folder=str(folder / "f"))
        assert (answer.status, answer.body["error"]["param"]) == (400, "folder")
        assert "'Readme' is there already, perhaps with another case" in answer.body["error"]["message"]
        assert files_in(folder) == {"Readme": "1", "README": "2"}
        assert not (folder / "f").exists()


async def test_a_fork_tells_of_turns_whose_files_could_not_be_kept_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise GitError("git update-ref failed: No space left on device")

    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        for number in range(2):
            await worker.turn(lambda number=number: (folder / "a").write_text(str(number)))  # type: ignore[misc]
        with monkeypatch.context() as patched:
            patched.setattr(FolderSnapshots, "set_refs", fail)
            copy = Worker(client, folder)
            copy.session = (await fork(client, worker.session)).body["id"]
        for turn in await client.all(f"/sessions/{copy.session}/turns"):
            changes = await copy.changes(turn["id"])
            assert (changes["state"], changes["data"]) == ("failed", [])
            assert "could not be kept for the fork" in changes["reason"]


async def test_a_turn_whose_trees_are_gone_costs_the_others_of_a_fork_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_refs, gone = FolderSnapshots.set_refs, list[str | None]()

    def fail_for_gone(self: FolderSnapshots, refs: Mapping[str, str | None]) -> None:
        gone.extend([*refs.values()][-1:] if not gone else ())
        if gone[0] in refs.values():
            raise GitError("git update-ref failed: trying to write ref with nonexistent object")
        set_refs(self, refs)

    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        for number in range(5):
            await worker.turn(lambda number=number: (folder / "a").write_text(str(number)))  # type: ignore[misc]
        monkeypatch.setattr(FolderSnapshots, "set_refs", fail_for_gone)
        copy = Worker(client, folder)
        copy.session = (await fork(client, worker.session)).body["id"]
        copied = await client.all(f"/sessions/{copy.session}/turns")
        states = [(await copy.changes(turn["id"]))["state"] for turn in copied]
    assert sorted(states) == ["failed", "kept", "kept", "kept", "kept"]
