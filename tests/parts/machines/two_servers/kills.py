"""Kills two servers on one PostgreSQL again and again under load, and counts what was acknowledged and is not there.

`python -m tests.parts.machines.two_servers.kills --kills 200` does so many kills and prints what it found; with
`--balancer` the clients know only the address of nginx in front of the two.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import tempfile
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import asyncpg

from tests.http_responses.asking import prompt_for
from tests.http_responses.killing import server_process
from tests.nginx import free_port
from tests.parts.machines.two_servers.balancer import KEY, SETTINGS, balancer
from tests.postgres import empty, server
from tests.waiting import PATIENCE, poll

CLIENTS = 4
REFUSALS = {429, 502, 503, 504}
"""The statuses of requests that were not acknowledged: 502 and 504 are nginx's."""
ENVIRONMENT = {f"PROXY_{name.upper()}": value for name, value in SETTINGS.items()}
HEADERS = {"Authorization": f"Bearer {KEY}"}


@dataclass
class Outcome:
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


async def ask_for_ever(found: Outcome, chance: random.Random) -> None:
    """Asks either server, for chains of answers and for background responses."""
    previous: str | None = None
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(timeout=timeout, headers=HEADERS) as session:
        while True:
            await found.serving.wait()
            background = chance.random() < 0.5
            body = {"model": "codex-5", "input": prompt_for("ok"), "background": background}
            if previous is not None:
                body["previous_response_id"] = previous
            with suppress(aiohttp.ClientError):
                url = f"{chance.choice(found.urls)}/v1/responses"
                async with session.post(url, json=body) as reply:
                    if reply.status in REFUSALS:
                        continue
                    answer = await reply.json()
                    assert reply.status == 200, answer
                if background:
                    found.queued.add(answer["id"])
                else:
                    found.completed.add(answer["id"])
                    previous = answer["id"] if len(found.completed) % 20 else None


@dataclass
class Server:
    """One of the two, which is started and killed again and again."""

    folder: Path
    port: int
    url: str
    """Where clients find it."""

    async def live(
        self, store: str, kills: int, found: Outcome, load: set[asyncio.Task[None]], chance: random.Random
    ) -> None:
        """Starts and kills it so often."""
        settings = {"PROXY_STORE": store, "PROXY_QUEUE_WAIT": "60", **ENVIRONMENT}
        for _ in range(kills):
            async with server_process(self.folder, settings, port=self.port) as (_, process):
                found.urls.append(self.url)
                found.serving.set()
                await asyncio.wait(load, timeout=chance.uniform(0.2, 1.5))
                found.urls.remove(self.url)
                if not found.urls:
                    found.serving.clear()
                process.kill()


async def after_kills(folder: Path, kills: int, chance: random.Random, *, balanced: bool = False) -> Outcome:
    """Kills each of two servers `kills` / 2 times, then waits until the leases of the last ones have run out. With
    `balanced`, clients ask nginx.
    """
    found = Outcome()
    folders = [folder / name for name in ("one", "two", "last")]
    for each in folders:
        each.mkdir()
    ports = [free_port(), free_port()]
    with server() as own:
        await empty(own.url)
        async with AsyncExitStack() as stack:
            front = await stack.enter_async_context(balancer(folder, ports)) if balanced else None
            load = {asyncio.create_task(ask_for_ever(found, chance)) for _ in range(CLIENTS)}
            servers = [
                Server(at, port, front or f"http://127.0.0.1:{port}")
                for at, port in zip(folders, ports, strict=False)
            ]
            await asyncio.gather(*(each.live(own.url, kills // 2, found, load, chance) for each in servers))
            for task in load:
                task.cancel()
            ends = await asyncio.gather(*load, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
        connection = await asyncpg.connect(own.url)
        async with server_process(folders[2], {"PROXY_STORE": own.url}):
            await poll(partial(all_ended, connection))
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
    parser.add_argument("--balancer", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(
            after_kills(Path(folder), given.kills, random.Random(given.seed), balanced=given.balancer)
        )
    print(
        f"{given.kills} kills, seed {given.seed}: {len(found.completed)} answers and {len(found.queued)} background"
        f" responses acknowledged, {len(found.lost)} lost"
    )
    raise SystemExit(1 if found.lost else 0)


if __name__ == "__main__":
    main()
