"""Kills two servers on one PostgreSQL again and again under load, and counts what was acknowledged and is not there.

`python -m tests.two_servers.kills --kills 200` does so many kills and prints what it found.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import asyncpg

from tests.http_responses.asking import said
from tests.http_responses.killing import server_process
from tests.postgres import empty, server
from tests.waiting import PATIENCE, polled

CLIENTS = 4


@dataclass
class Found:
    """What clients were told, and what the database says when all is over."""

    urls: list[str] = field(default_factory=list)
    """The addresses of the servers that run at the moment."""
    serving: asyncio.Event = field(default_factory=asyncio.Event)
    """Set while there is one."""
    completed: set[str] = field(default_factory=set)
    """Responses whose clients have got the whole answer."""
    queued: set[str] = field(default_factory=set)
    """Background responses whose clients have got the id."""
    statuses: dict[str, str] = field(default_factory=dict)

    @property
    def lost(self) -> set[str]:
        """Responses that are not there, have not ended, or are no longer what the client was told."""
        wrong = {id for id in self.completed if self.statuses.get(id) != "completed"}
        return wrong | {id for id in self.queued if self.statuses.get(id) not in ("completed", "failed")}


async def ask_for_ever(found: Found, chance: random.Random) -> None:
    """Asks either server, for chains of answers and for background responses."""
    previous: str | None = None
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
        while True:
            await found.serving.wait()
            background = chance.random() < 0.5
            body = {"model": "codex-5", "input": said("ok"), "background": background}
            if previous is not None:
                body["previous_response_id"] = previous
            with suppress(aiohttp.ClientError):
                url = f"{chance.choice(found.urls)}/v1/responses"
                async with session.post(url, json=body) as reply:
                    answer = await reply.json()
                if reply.status != 200:
                    assert reply.status in (429, 503), answer
                elif background:
                    found.queued.add(answer["id"])
                else:
                    found.completed.add(answer["id"])
                    previous = answer["id"] if len(found.completed) % 20 else None


async def lives(
    folder: Path,
    store: str,
    kills: int,
    found: Found,
    load: set[asyncio.Task[None]],
    chance: random.Random,
) -> None:
    """Starts and kills a server so often."""
    settings = {"PROXY_STORE": store, "PROXY_QUEUE_WAIT": "60"}
    for _ in range(kills):
        async with server_process(folder, settings) as (url, process):
            found.urls.append(url)
            found.serving.set()
            await asyncio.wait(load, timeout=chance.uniform(0.2, 1.5))
            found.urls.remove(url)
            if not found.urls:
                found.serving.clear()
            process.kill()


async def after_kills(folder: Path, kills: int, chance: random.Random) -> Found:
    """Kills each of two servers `kills` / 2 times, then waits until the leases of the last ones have run out."""
    found = Found()
    with server() as own:
        await empty(own.url)
        folders = [folder / name for name in ("one", "two", "last")]
        for each in folders:
            each.mkdir()
        load = {asyncio.create_task(ask_for_ever(found, chance)) for _ in range(CLIENTS)}
        await asyncio.gather(*(lives(folders[n], own.url, kills // 2, found, load, chance) for n in range(2)))
        for task in load:
            task.cancel()
        ends = await asyncio.gather(*load, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
        connection = await asyncpg.connect(own.url)
        async with server_process(folders[2], {"PROXY_STORE": own.url}):
            await polled(partial(all_ended, connection))
        rows = await connection.fetch("SELECT id, status FROM codex_proxy.responses")
        await connection.close()
    found.statuses = {row["id"]: row["status"] for row in rows}
    return found


async def all_ended(connection: asyncpg.Connection) -> bool:
    return not await connection.fetchval("SELECT count(*) FROM codex_proxy.responses WHERE unfinished")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(after_kills(Path(folder), given.kills, random.Random(given.seed)))
    print(
        f"{given.kills} kills, seed {given.seed}: {len(found.completed)} answers and {len(found.queued)} background"
        f" responses acknowledged, {len(found.lost)} lost"
    )
    raise SystemExit(1 if found.lost else 0)


if __name__ == "__main__":
    main()
