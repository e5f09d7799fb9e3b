"""What the agent of a Managed Agents session has made, as Anthropic's official SDK gets it from the Files API."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import anthropic
import pytest

from codex_proxy.parts.snapshots import artifacts
from codex_proxy.parts.snapshots.git import ObjectReader
from tests.parts.managed_agents.driving import sdk
from tests.parts.managed_agents.following import ManagedClient, message, result
from tests.parts.sessions.driving import BETA
from tests.parts.snapshots.working import snapshot_proxy
from tests.sdk_fields import unknown_fields

pytestmark = [pytest.mark.part("managed_agents"), pytest.mark.part("files")]


async def turn(client: ManagedClient, session: str, work: Callable[[], object]) -> None:
    """Runs a turn in which `work` is done."""
    async with client.stream(session) as stream:
        await client.send(session, message("[[fake:tool_call]]"))
        while not stream.rests:
            event = await stream.next()
            if event["type"] == "session.status_idle" and event["stop_reason"]["type"] == "requires_action":
                work()
                await client.send(session, result(event["stop_reason"]["event_ids"][0]))


async def test_the_files_of_a_session_are_what_its_agent_has_made(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, snapshot_artifacts="outputs/") as (agents, folder):
        client = ManagedClient(agents.proxy)
        here = {"metadata": {"workdir": str(folder)}}
        session, other = await client.new_session(**here), await client.new_session(**here)
        outputs = folder / "outputs"

        def first() -> None:
            outputs.mkdir()
            (outputs / "table.csv").write_text("old")
            (outputs / "gone.txt").write_text("x")
            (folder / "code.py").write_text("no output")

        def second() -> None:
            (outputs / "table.csv").write_text("new")
            (outputs / "gone.txt").unlink()
            (outputs / "é.bin").write_bytes(b"\0\1")

        async with sdk(agents.proxy) as api:
            files = api.beta.files
            await turn(client, session, first)
            [gone, old] = (await files.list(scope_id=session)).data
            assert {gone.filename, old.filename} == {"gone.txt", "table.csv"}
            old = old if old.filename == "table.csv" else gone
            await turn(client, session, second)
            (outputs / "table.csv").write_text("by its user")

            found = [each async for each in files.list(scope_id=session, limit=1)]
            assert [each.filename for each in found] == ["é.bin", "table.csv"]
            table = found[1]
            assert not unknown_fields(table)
            assert (table.mime_type, table.size_bytes, table.downloadable) == ("text/csv", 3, True)
            assert table.scope is not None
            assert (table.scope.type, table.scope.id) == ("session", session)
            assert await files.retrieve_metadata(table.id) == table
            assert await (await files.download(table.id)).read() == b"new"
            assert await (await files.download(old.id)).read() == b"old"

            assert (await files.list(scope_id=other)).data == []
            assert (await files.list()).data == []
            with pytest.raises(anthropic.ConflictError, match="goes with it"):
                await files.delete(table.id)
            with pytest.raises(anthropic.NotFoundError, match="No such file"):
                await files.download("file_" + 48 * "0")


async def test_a_file_that_became_a_link_is_offered_no_more_and_head_reads_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with snapshot_proxy(tmp_path, snapshot_artifacts="*.txt") as (agents, folder):
        client, made = ManagedClient(agents.proxy), folder / "a.txt"
        session = await client.new_session(metadata={"workdir": str(folder)})
        await turn(client, session, lambda: made.write_text("old"))
        async with sdk(agents.proxy) as api:
            [file] = (await api.beta.files.list(scope_id=session)).data
            with monkeypatch.context() as patched:
                patched.delattr(artifacts, "content_of")
                head = await agents.proxy.send("HEAD", f"/v1/files/{file.id}/content")
                assert (head.status, head.headers["Content-Length"]) == (200, "3")

            def link() -> None:
                made.unlink()
                made.symlink_to("other")

            await turn(client, session, link)
            assert (await api.beta.files.list(scope_id=session)).data == []


async def test_a_range_of_a_file_of_a_session_is_read_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (2 << 20) + 100
    data = (bytes(range(250)) * 10_000)[:size]
    read: list[int] = []
    read_range = ObjectReader.read_range

    def counted(reader: ObjectReader, digest: str, start: int, stop: int) -> bytes:
        found = read_range(reader, digest, start, stop)
        read.append(len(found))
        return found

    monkeypatch.setattr(ObjectReader, "read_range", counted)
    async with snapshot_proxy(tmp_path, snapshot_artifacts="*.bin") as (agents, folder):
        client = ManagedClient(agents.proxy)
        session = await client.new_session(metadata={"workdir": str(folder)})
        await turn(client, session, lambda: (folder / "a.bin").write_bytes(data))
        async with sdk(agents.proxy) as api:
            [file] = (await api.beta.files.list(scope_id=session)).data
        listed = await agents.ask("GET", f"/sessions/{session}/artifacts")
        [artifact] = listed.body["data"]
        in_files = f"/v1/files/{file.id}/content"
        for path in (in_files, f"/v1/agents/sessions/{session}/artifacts/{artifact['id']}/content"):

            async def ask(method: str, path: str = path, **headers: str) -> tuple[int, bytes, Any]:
                url = f"{agents.proxy.url}{path}"
                beta = {} if path == in_files else BETA
                async with agents.proxy.session.request(method, url, headers=headers | beta) as reply:
                    return reply.status, await reply.read(), reply.headers

            read.clear()
            for given, start, stop in (
                ("bytes=0-9", 0, 10),
                (f"bytes={(1 << 20) - 5}-{(1 << 20) + 4}", (1 << 20) - 5, (1 << 20) + 5),
                ("bytes=-7", size - 7, size),
                (f"bytes={size - 3}-99999999", size - 3, size),
            ):
                status, got, headers = await ask("GET", Range=given)
                assert (status, got) == (206, data[start:stop]), given
                assert headers["Content-Range"] == f"bytes {start}-{stop - 1}/{size}"
            assert read == [10, 10, 7, 3]
            status, got, headers = await ask("HEAD")
            assert (status, got, headers["Content-Length"]) == (200, b"", str(size))
            assert (headers["Accept-Ranges"], len(read)) == ("bytes", 4)
            for given in (f"bytes={size}-", "bytes=-0"):
                status, _, headers = await ask("GET", Range=given)
                assert (status, headers["Content-Range"]) == (416, f"bytes */{size}"), given
            assert (await ask("GET"))[:2] == (200, data)


async def test_a_file_of_a_session_can_be_given_to_another_one(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path, snapshot_artifacts="*.txt") as (agents, folder):
        client = ManagedClient(agents.proxy)
        here = {"metadata": {"workdir": str(folder)}}
        session = await client.new_session(**here)
        await turn(client, session, lambda: (folder / "a.txt").write_text("What it has made."))
        async with sdk(agents.proxy) as api:
            [file] = (await api.beta.files.list(scope_id=session)).data
        resource = {"type": "file", "file_id": file.id, "mount_path": "given/a.txt"}
        await client.new_session(resources=[resource], **here)
        assert (folder / "given" / "a.txt").read_text() == "What it has made."


async def test_what_a_turn_has_done_to_files_is_read_by_the_id_of_the_managed_session(tmp_path: Path) -> None:
    async with snapshot_proxy(tmp_path) as (agents, folder):
        client = ManagedClient(agents.proxy)
        session = await client.new_session(metadata={"workdir": str(folder)})
        await turn(client, session, lambda: (folder / "a.py").write_text("by anybody\n"))
        [found] = (await agents.ask("GET", f"/sessions/{session}/turns")).body["data"]
        changes = (await agents.ask("GET", f"/sessions/{session}/turns/{found['id']}/changes")).body
        assert [(each["path"], each["diff"]) for each in changes["data"]] == [
            ("a.py", "@@ -0,0 +1 @@\n+by anybody\n")
        ]
        assert not [each for each in await client.events(session) if "a.py" in str(each)]
