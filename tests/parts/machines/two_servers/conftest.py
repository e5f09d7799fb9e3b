"""Two servers on one PostgreSQL, each with its own agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from openai import AsyncOpenAI

from tests.http.serving import Proxy, fake_proxy
from tests.http_responses.asking import client_of
from tests.http_responses.killing import server_process

HELD_PROMPT = '[[fake:text say="one two three" hold=1]]'
"""A prompt whose turn waits for the file `Pair.release`."""


@dataclass(frozen=True)
class Pair:
    """Two servers, with an SDK client of each."""

    one: Proxy
    two: Proxy
    at_one: AsyncOpenAI
    at_two: AsyncOpenAI
    release: Path
    """The file whose existence lets held turns go on."""

    @property
    def running(self) -> int:
        """How many turns run on both."""
        return self.one.server.runs.running + self.two.server.runs.running


MakePair: TypeAlias = Callable[..., AbstractAsyncContextManager[Pair]]


@pytest.fixture
def pair_with(tmp_path: Path, postgres_url: str) -> MakePair:
    """Makes two servers with these settings and variables of the fake agent."""

    @asynccontextmanager
    async def make(environment: dict[str, str] | None = None, **settings: Any) -> AsyncIterator[Pair]:
        release = tmp_path / "go"
        given = {"STREAM_RELEASE_FILE": str(release), **(environment or {})}
        folders = tmp_path / "one", tmp_path / "two"
        for folder in folders:
            folder.mkdir()
        async with (
            fake_proxy(folders[0], given, **{"store": postgres_url} | settings) as one,
            fake_proxy(folders[1], given, **{"store": postgres_url} | settings) as two,
            client_of(one) as at_one,
            client_of(two) as at_two,
        ):
            yield Pair(one, two, at_one, at_two, release)

    return make


@pytest.fixture
async def pair(pair_with: MakePair) -> AsyncIterator[Pair]:
    async with pair_with() as made:
        yield made


@asynccontextmanager
async def third_server(
    pair: Pair, postgres_url: str, **settings: str
) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """A process, which may be killed, with the store of the two."""
    folder = pair.release.with_name("three")
    folder.mkdir()
    given = {"PROXY_STORE": postgres_url, "STREAM_RELEASE_FILE": str(pair.release), **settings}
    async with server_process(folder, given) as started:
        yield started


LEASED_TABLES = ("responses", "conversation_turns")


async def let_leases_run_out(postgres_url: str, tables: Sequence[str] = LEASED_TABLES) -> None:
    """As if `LEASE_SECONDS` had passed."""
    # Imported here: where this file cannot be read, pytest asks no other one whether to skip the folder.
    import asyncpg

    connection = await asyncpg.connect(postgres_url)
    for table in tables:
        await connection.execute(f"UPDATE codex_proxy.{table} SET lease_until = '-infinity'")
    await connection.close()
