"""The work of a session as a patch."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.parts.snapshots.test_forks import fork
from tests.parts.snapshots.working import Worker, snapshot_proxy


async def test_the_patch_of_a_fork_brings_its_work_back(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (client, folder):
        (folder / "text").write_text("one\ntwo\n")
        worker = Worker(client, folder)
        await worker.turn(lambda: (folder / "first").write_text("1\n"))
        target = folder / "forked"
        made = await fork(client, worker.session, folder=str(target))
        copy = Worker(client, target)
        copy.session = made.body["id"]
        await copy.turn(lambda: (target / "text").write_text("one\n2\n"))
        await copy.turn(lambda: (target / "binary").write_bytes(b"\0\xff\1"))
        await copy.turn((target / "first").unlink)
        with open(target / "left out", "wb") as file:
            file.truncate(1 << 30)
        await copy.turn(lambda: (target / "sp ace").write_text("x"))
        answer = await client.proxy.session.get(
            f"{client.proxy.url}/v1/agents/sessions/{copy.session}/patch",
            headers={"OpenAI-Beta": "agents=v1"},
        )
        assert (answer.status, answer.content_type) == (200, "text/x-patch")
        patch = await answer.read()
        assert b"left out" not in patch
        (target / "left out").unlink()
        subprocess.run(["git", "apply", "-"], cwd=folder, input=patch, check=True)
        found = {path: (folder / path).read_bytes() for path in ("text", "binary", "sp ace")}
        assert found == {"text": b"one\n2\n", "binary": b"\0\xff\1", "sp ace": b"x"}
        assert not (folder / "first").exists()


async def test_a_file_that_has_become_too_large_is_not_in_the_patch(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, snapshot_max_file_bytes=100) as (client, folder):
        (folder / "grown").write_text("small")
        worker = Worker(client, folder)

        def work() -> None:
            (folder / "grown").write_text("x" * 101)
            (folder / "a" / "b").mkdir(parents=True)
            (folder / "a" / "b" / "c").write_text("1\n")

        await worker.turn(work)
        answer = await client.proxy.session.get(
            f"{client.proxy.url}/v1/agents/sessions/{worker.session}/patch",
            headers={"OpenAI-Beta": "agents=v1"},
        )
        patch = await answer.text()
        assert (answer.status, patch.count("diff --git")) == (200, 1), patch
        assert "+++ b/a/b/c\n" in patch


async def test_a_session_without_kept_files_has_no_patch(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, sandbox="read-only") as (client, folder):
        worker = Worker(client, folder)
        await worker.turn(lambda: None)
        assert (await client.ask("GET", f"/sessions/{worker.session}/patch")).status == 409
