"""Kills a server that runs background responses, again and again, and counts what its webhooks' receiver never heard.

`python -m tests.http_responses.webhook_kills --kills 1000` does so many kills and prints what it found. Every other
kill comes at a random moment, the others behind a random commit of the store.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import sqlite3
import tempfile
from collections import defaultdict
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp

from codex_proxy.store.store import Store
from tests.http.serving import until
from tests.http_responses.asking import prompt_for, proxy_and_client
from tests.http_responses.killing import server_process
from tests.http_responses.receiving import SECRET, Receiver, count_undelivered, receiver
from tests.waiting import PATIENCE, poll

CLIENTS = 3
PROMPTS = (prompt_for("ok"), "[[fake:error_500]]", "[[fake:truncation]]", prompt_for("ok"))


async def _has_ended(session: aiohttp.ClientSession, address: str) -> bool:
    async with session.get(address) as reply:
        return (await reply.json())["status"] not in ("queued", "in_progress")


async def _all_told(store: Store, file: Path) -> bool:
    return not ((await store.stats()).unfinished or count_undelivered(file))


@dataclass
class Outcome:
    """What the store and the receiver say when all is over."""

    ended: dict[str, str] = field(default_factory=dict)
    """Statuses by response."""
    told: dict[str, set[tuple[str, str]]] = field(default_factory=dict)
    """The ids and types of the webhooks of each response."""

    @property
    def lost(self) -> set[str]:
        """Responses that have ended and whose webhook says nothing or something else."""
        return {
            id
            for id, status in self.ended.items()
            if f"response.{status}" not in {type for _, type in self.told.get(id, ())}
        }

    @property
    def ambiguous(self) -> set[str]:
        """Responses with webhooks of several ids: a receiver cannot tell that they are one."""
        return {id for id, events in self.told.items() if len(events) > 1}


async def ask_until_it_dies(url: str, chance: random.Random) -> None:
    """Creates background responses, and cancels some of them."""
    timeout = aiohttp.ClientTimeout(total=PATIENCE)
    async with aiohttp.ClientSession(timeout=timeout) as session:
        with suppress(aiohttp.ClientError):
            while True:
                body = {"model": "codex-5", "input": chance.choice(PROMPTS), "background": True}
                async with session.post(f"{url}/v1/responses", json=body) as reply:
                    created = await reply.json()
                address = f"{url}/v1/responses/{created['id']}"
                if chance.random() < 0.3:
                    async with session.post(f"{address}/cancel"):
                        continue
                await poll(partial(_has_ended, session, address))


async def one_life(folder: Path, target: Receiver, chance: random.Random, commit: int | None) -> None:
    """A server under load, from its start to its kill: behind a commit, or at a random moment."""
    settings = {"PROXY_WEBHOOKS_URLS": target.url, "PROXY_WEBHOOKS_SECRET": SECRET}
    try:
        async with server_process(folder, settings, dies_at_commit=commit) as (url, process):
            clients = [asyncio.create_task(ask_until_it_dies(url, chance)) for _ in range(CLIENTS)]
            if commit is None:
                await asyncio.wait(clients, timeout=chance.uniform(0.0, 0.6))
                os.kill(process.pid, signal.SIGKILL)
            await asyncio.gather(*clients)
    except AssertionError:
        if commit is None:
            raise  # otherwise it has died while it wrote down what the last one had left


async def after_kills(
    folder: Path, commits: list[int | None], chance: random.Random, settings: dict[str, str] | None = None
) -> Outcome:
    """One life for each of `commits`, and a last one that is not killed. What is known then."""
    found = Outcome()
    async with receiver() as target:
        for commit in commits:
            await one_life(folder, target, chance, commit)
        async with proxy_and_client(folder, webhooks={"urls": target.url, "secret": SECRET}) as (proxy, _):
            keeping = proxy.server.store_lifecycle
            assert keeping is not None
            store = proxy.server.settings.store_file
            await poll(partial(_all_told, keeping.store, store))
            await until(lambda: proxy.server.runs.running == 0)
        told: dict[str, set[tuple[str, str]]] = defaultdict(set)
        for body, headers in target.webhooks:
            event = json.loads(body)
            told[event["data"]["id"]].add((headers["webhook-id"], event["type"]))
        found.told = told
    with closing(sqlite3.connect(store)) as connection:
        found.ended = dict(connection.execute("SELECT id, status FROM responses WHERE background = 1"))
    return found


def moments(kills: int, chance: random.Random) -> list[int | None]:
    """When the server is to die: a random moment, or behind one of its first commits, by turns."""
    return [chance.randint(1, 40) if number % 2 else None for number in range(kills)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 30))
    given = parser.parse_args()
    chance = random.Random(given.seed)
    total = lost = 0
    for first in range(0, given.kills, 50):
        kills = min(50, given.kills - first)
        with tempfile.TemporaryDirectory() as folder:
            found = asyncio.run(after_kills(Path(folder), moments(kills, chance), chance))
        total, lost = total + len(found.ended), lost + len(found.lost) + len(found.ambiguous)
        print(f"{first + kills} kills, {total} background ends, {lost} webhooks lost", flush=True)
    raise SystemExit(1 if lost else 0)


if __name__ == "__main__":
    main()
