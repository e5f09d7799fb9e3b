"""The artifacts of a session, as the official SDK gets them."""

from __future__ import annotations

from pathlib import Path

import openai
import pytest

from codex_proxy.parts.snapshots.handlers import KEEPER
from codex_proxy.parts.snapshots.walk import MAX_LEFT_OUT
from tests.parts.sessions.driving import sdk
from tests.parts.snapshots.working import Worker, snapshot_proxy

PATTERNS = "outputs/, *.pdf"


async def test_files_that_fit_a_pattern_are_artifacts_as_the_turn_has_left_them(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, snapshot_artifacts=PATTERNS) as (client, folder):
        worker = Worker(client, folder)

        def work() -> None:
            (folder / "outputs" / "deep").mkdir(parents=True)
            (folder / "outputs" / "deep" / "table.csv").write_text("1")
            (folder / "outputs" / "link").symlink_to("/etc/passwd")
            (folder / "a.txt").write_text("no artifact")

        first = await worker.turn(work)
        second = await worker.turn(lambda: (folder / "é.pdf").write_bytes(b"\0\xff"))
        (folder / "é.pdf").write_text("by its user")
        async with sdk(client.proxy) as api:
            artifacts = api.beta.agents.sessions.artifacts
            newest, oldest = [each async for each in artifacts.list(worker.session, limit=1)]
            assert (newest.path, newest.turn_id, newest.size_bytes) == (str(folder / "é.pdf"), second, 2)
            assert (oldest.path, oldest.turn_id) == (str(folder / "outputs/deep/table.csv"), first)
            assert await artifacts.retrieve(oldest.id, session_id=worker.session) == oldest
            content = await artifacts.content(newest.id, session_id=worker.session)
            assert content.content == b"\0\xff"
            assert (
                content.response.headers["Content-Disposition"] == "attachment; filename*=UTF-8''%C3%A9.pdf"
            )
            in_order = [each.id async for each in artifacts.list(worker.session, order="asc")]
            assert in_order == [oldest.id, newest.id]
            elsewhere = artifacts.list(worker.session, environment_id="env_other")
            assert [each async for each in elsewhere] == []
            other = Worker(client, folder)
            await other.turn(lambda: None)
            with pytest.raises(openai.NotFoundError):
                await artifacts.content(oldest.id, session_id=other.session)
            with pytest.raises(openai.NotFoundError, match="Artifact with id 'nothing' not found"):
                await artifacts.retrieve("nothing", session_id=worker.session)


async def test_what_is_stored_of_newly_ignored_files_has_a_bound(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)

        def work() -> None:
            (folder / ".gitignore").write_text("made*\n")
            for number in range(MAX_LEFT_OUT + 50):
                (folder / f"made{number}").touch()

        turn = await worker.turn(work)
        changes = await worker.changes(turn)
        assert (len(changes["newly_ignored"]), changes["truncated"]) == (MAX_LEFT_OUT, True)
        files = await client.proxy.app[KEEPER].files("local", turn)
        assert files is not None
        assert len(files.newly_ignored) == MAX_LEFT_OUT + 1


async def test_without_patterns_a_session_has_no_artifacts(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "a.pdf").write_text("1"))
        assert (await client.get(f"/sessions/{worker.session}/artifacts"))["data"] == []
