"""What a turn has done to the files of its folder, as clients learn it."""

from __future__ import annotations

import os
from pathlib import Path

from tests.parts.snapshots.working import Worker, snapshot_proxy


async def test_the_changes_of_a_turn_have_each_path_with_its_diff(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "kept.txt").write_text("kept\n")
        (folder / "changed.txt").write_text("one\ntwo\n")
        (folder / "gone.txt").write_text("gone\n")
        (folder / "script").write_text("#!/bin/sh\n")
        (folder / "script").chmod(0o644)
        worker = Worker(client, folder)

        def work() -> None:
            (folder / "changed.txt").write_text("one\n2\n")
            (folder / "gone.txt").unlink()
            (folder / "script").chmod(0o700)
            (folder / "sub").mkdir()
            (folder / "sub" / "new.bin").write_bytes(b"\0\1")
            (folder / "link").symlink_to("kept.txt")

        changes = await worker.changes(await worker.turn(work))
        assert (changes["state"], changes["others_wrote"], changes["truncated"]) == ("kept", False, False)
        found = {each["path"]: each for each in changes["data"]}
        kinds = {path: each["kind"] for path, each in found.items()}
        assert kinds == {
            "changed.txt": "modified",
            "gone.txt": "deleted",
            "link": "link",
            "script": "mode",
            "sub/new.bin": "added",
        }
        assert found["changed.txt"]["diff"] == "@@ -1,2 +1,2 @@\n one\n-two\n+2\n"
        assert (found["changed.txt"]["additions"], found["changed.txt"]["deletions"]) == (1, 1)
        assert (found["script"]["mode_before"], found["script"]["mode_after"]) == ("100644", "100700")
        assert found["script"]["diff"] is None
        assert (found["sub/new.bin"]["binary"], found["sub/new.bin"]["size_after"]) == (True, 2)
        assert found["link"]["mode_after"] == "120000"


async def test_the_turn_before_has_its_own_changes(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        first = await worker.turn(lambda: (folder / "a").write_text("1"))
        second = await worker.turn(lambda: (folder / "b").write_text("2"))
        assert [each["path"] for each in (await worker.changes(first))["data"]] == ["a"]
        assert [each["path"] for each in (await worker.changes(second))["data"]] == ["b"]


async def test_a_turn_that_may_not_write_is_not_kept(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, sandbox="read-only") as (client, folder):
        worker = Worker(client, folder)
        changes = await worker.changes(await worker.turn(lambda: None))
        assert (changes["state"], changes["before"], changes["data"]) == ("off", None, [])
        assert not os.path.lexists(tmp_path / "state" / "snapshots")
