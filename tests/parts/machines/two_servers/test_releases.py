"""A server of this release and one of the release before, which keeps frames, on one database: each reads, follows,
cancels and takes over what the other streams.
"""

from __future__ import annotations

import asyncio
import io
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.http_responses.asking import blocks_of, check_events, events_of, types_of
from tests.http_responses.killing import server_process
from tests.parts.machines.two_servers.conftest import HELD_PROMPT, let_leases_run_out
from tests.waiting import PATIENCE, poll

BEFORE = "610ac328"
"""The last commit that stored frames."""
ROOT = Path(__file__).parents[4]

pytestmark = pytest.mark.exhaustive


@pytest.fixture(scope="session")
def release_before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of its code."""
    git = shutil.which("git")
    if git is None:
        pytest.skip("there is no git")
    archive = subprocess.run(
        [git, "archive", BEFORE, "codex_proxy", "fake_proto"], cwd=ROOT, capture_output=True, check=False
    )
    if archive.returncode:
        pytest.skip(f"the history of this checkout does not reach back to {BEFORE}")
    folder = tmp_path_factory.mktemp("release_before")
    with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as packed:
        packed.extractall(folder, filter="data")
    return folder


class Server:
    """A server process of either release."""

    def __init__(self, url: str, process: asyncio.subprocess.Process, session: aiohttp.ClientSession) -> None:
        self.url = f"{url}/v1/responses"
        self.process = process
        self.session = session

    async def begin(self) -> list[dict[str, Any]]:
        """The events of a background stream up to its first text; its client leaves then."""
        body = {"model": "codex-5", "input": HELD_PROMPT, "background": True, "stream": True}
        async with self.session.post(self.url, json=body) as reply:
            begun = b""
            while b"output_text.delta" not in begun:
                begun += await reply.content.readany()
        return blocks_of(begun.decode().rpartition("\n\n")[0])

    async def get(self, id: str, query: str = "") -> tuple[int, str]:
        async with self.session.get(f"{self.url}/{id}{query}") as reply:
            return reply.status, await reply.text()

    async def object(self, id: str) -> Any:
        async with self.session.get(f"{self.url}/{id}") as reply:
            return await reply.json()

    async def follow(self, id: str, after: int = -1) -> list[dict[str, Any]]:
        query = "" if after < 0 else f"&starting_after={after}"
        status, text = await self.get(id, f"?stream=true{query}")
        assert status == 200, text
        return events_of(text)

    async def cancel(self, id: str) -> Any:
        async with self.session.post(f"{self.url}/{id}/cancel") as reply:
            return (await reply.json())["status"]

    async def end_of(self, id: str) -> Any:
        async def over() -> Any:
            body = await self.object(id)
            return None if body["status"] in ("queued", "in_progress") else body

        return await poll(over)

    async def kill(self) -> None:
        self.process.kill()
        await self.process.wait()


@asynccontextmanager
async def both(
    tmp_path: Path, postgres_url: str, code: Path, *, old_first: bool
) -> AsyncIterator[tuple[Server, Server]]:
    """The server that streams, and the other one."""
    folders = tmp_path / "one", tmp_path / "two"
    for folder in folders:
        folder.mkdir()
    settings = {"PROXY_STORE": postgres_url, "STREAM_RELEASE_FILE": str(tmp_path / "go")}
    codes = (code, ROOT) if old_first else (ROOT, code)
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with (
        server_process(folders[0], settings, code=codes[0]) as one,
        server_process(folders[1], settings, code=codes[1]) as two,
        aiohttp.ClientSession(timeout=timeout) as session,
    ):
        yield Server(*one, session), Server(*two, session)


async def test_this_release_follows_a_stream_of_the_one_before(
    tmp_path: Path, postgres_url: str, release_before: Path
) -> None:
    async with both(tmp_path, postgres_url, release_before, old_first=True) as (old, new):
        seen = await old.begin()
        id, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
        following = asyncio.create_task(new.follow(id, last))
        (tmp_path / "go").write_text("go")
        whole = check_events(seen + await following)
        assert whole[-1]["type"] == "response.completed"
        assert whole == await new.follow(id) == await old.follow(id)


async def test_a_stream_of_this_release_is_no_stream_for_the_one_before_but_can_be_polled(
    tmp_path: Path, postgres_url: str, release_before: Path
) -> None:
    async with both(tmp_path, postgres_url, release_before, old_first=False) as (new, old):
        id = (await new.begin())[0]["response"]["id"]
        status, text = await old.get(id, "?stream=true")
        assert (status, "stream_not_resumable" in text) == (400, True)
        (tmp_path / "go").write_text("go")
        assert (await old.end_of(id))["status"] == "completed"
        assert (await new.follow(id))[-1]["response"] == await old.object(id)


@pytest.mark.parametrize("old_first", [True, False])
async def test_each_release_cancels_a_stream_of_the_other(
    tmp_path: Path, postgres_url: str, release_before: Path, old_first: bool
) -> None:
    async with both(tmp_path, postgres_url, release_before, old_first=old_first) as (one, two):
        seen = await one.begin()
        id, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
        following = asyncio.create_task(one.follow(id, last))
        assert await two.cancel(id) == "cancelled"
        new = two if old_first else one
        whole = check_events(seen + await following)
        assert whole[-1]["response"]["status"] == "cancelled"
        assert whole == await new.follow(id)
        assert (await one.object(id))["status"] == "cancelled"


@pytest.mark.parametrize("old_first", [True, False])
async def test_each_release_takes_over_a_stream_of_the_other(
    tmp_path: Path, postgres_url: str, release_before: Path, old_first: bool
) -> None:
    async with both(tmp_path, postgres_url, release_before, old_first=old_first) as (one, two):
        seen = await one.begin()
        id, last = seen[0]["response"]["id"], seen[-1]["sequence_number"]
        await one.kill()
        await let_leases_run_out(postgres_url)
        failed = await two.end_of(id)
        assert failed["status"] == "failed"
        if old_first:
            whole = check_events(seen + await two.follow(id, last))
            assert types_of(whole)[-2:] == ["error", "response.failed"]
            assert whole[-1]["response"] == failed
