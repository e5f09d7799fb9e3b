"""One run: two servers are attacked in rounds, and all is counted after each round.

One server is steady: its clients, its agents and its upstream are bad, its processes are killed, and it must neither
grow nor keep anybody waiting. The other server is itself killed and stopped again and again, and must not lose what it
has acknowledged. A run with a database has two other servers in place of these, all of which are killed, as the
database is (`team`). A run with a planted fault has the steady server alone, or these two, and ends when it is found.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from random import Random
from typing import NamedTuple

import aiohttp
import psutil

from scripts.bench_lib.servers import side_server
from scripts.torture_lib.clients import Client
from scripts.torture_lib.leaks import leaks, open_things
from scripts.torture_lib.ledger import Ledger, WebhookReceiver
from scripts.torture_lib.plants import PLANTS
from scripts.torture_lib.proxy import Proxy, adopt_orphans, command_of, descendants, still_running_after
from scripts.torture_lib.report import Report
from scripts.torture_lib.servers import KEPT_SECONDS, killed_server, steady_server
from scripts.torture_lib.team import Team
from scripts.torture_lib.watched_server import NAMED, Census
from tests.postgres import PostgresServer

CLIENTS = 8
"""Number of clients of each server."""


class Patience(NamedTuple):
    """How long may pass when no new requests are sent, in seconds."""

    rest: float
    """Until all turns have ended."""
    webhooks: float
    """Until a webhook has come when all turns have ended: the receiver refuses one in 50, which comes again."""


PATIENCE = Patience(30.0, 12.0)
"""Several times the limit of a turn."""
TEAM_PATIENCE = Patience(70.0, 50.0)
"""A server takes over what another one has begun, and webhooks that it has claimed, within 35 s."""
LEAK_SECONDS = 12.0
"""Maximum seconds until all is closed when all turns have ended."""


class Torture:
    """One run, with its files in a folder."""

    def __init__(
        self,
        folder: Path,
        seconds: float,
        seed: int,
        plant: str = "none",
        database: PostgresServer | None = None,
    ) -> None:
        self._folder = folder
        self._seconds = seconds
        self._random = Random(seed)
        self._receiver = WebhookReceiver()
        self._plant = PLANTS.get(plant)
        self._baseline: Counter[str] = Counter()
        self._warm_at = 0.0
        self._evil_url = ""
        self._database = database
        self._patience = TEAM_PATIENCE if database is not None else PATIENCE
        self._steady: Proxy | None = None
        self._killed: Proxy | None = None
        self._team: Team | None = None
        self.report = Report(seed, seconds, plant)

    @property
    def has_found_plant(self) -> bool:
        """Whether there is a planted fault, and it was found."""
        return self._plant is not None and self._plant.is_found_in(self.report.findings)

    async def run(self) -> None:
        """Runs it, and fills the report."""
        adopt_orphans()
        before = descendants()
        await self._receiver.start()
        with ExitStack() as stack:
            _, evil_port = stack.enter_context(side_server("scripts.torture_lib.evil_upstream"))
            self._evil_url = f"http://127.0.0.1:{evil_port}"
            hook = f"http://127.0.0.1:{self._receiver.port}/hook"
            servers = self._make_servers(hook, evil_port)
            for server in servers.values():
                await server.start()
                stack.callback(server.kill)  # where this run is stopped
            await self._attack_in_rounds({name: Ledger(server) for name, server in servers.items()})
            for server in servers.values():
                if code := await server.end(signal.SIGTERM):
                    self.report.wrong.append(f"a server that was stopped exited with {code}")
        if self._database is not None:  # it is a descendant, too
            await asyncio.to_thread(self._database.stop)
        left = await still_running_after(descendants() - before, PATIENCE.rest)
        if self._database is not None:
            await asyncio.to_thread(self._database.start)
        self.report.leaked += [f"process {pid} is left: {command_of(pid)}" for pid in left]
        self.report.leaked += [f"{home} is left" for home in self._folder.rglob("home-*")]
        await self._receiver.stop()

    def _make_servers(self, hook: str, evil_port: str) -> dict[str, Proxy | Team]:
        """Returns the servers by name, and remembers which is which."""
        if self._database is not None:
            self._team = Team(self._folder, hook, self._database, self._random, self.report.plant)
            return {"two": self._team}
        self._steady = steady_server(self._folder / "steady", hook, evil_port, self.report.plant)
        if self._plant is not None:
            return {"steady": self._steady}
        self._killed = killed_server(self._folder / "killed", hook)
        return {"steady": self._steady, "killed": self._killed}

    async def _attack_in_rounds(self, ledgers: dict[str, Ledger]) -> None:
        """Attacks in rounds. The first one warms the steady server up: files and connections that are open after it are
        not counted as leaks later.
        """
        round_seconds = min(30.0, max(8.0, self._seconds / 20))
        await self._attack(ledgers, min(60.0, max(5.0, self._seconds / 5)))
        await self._count(ledgers, is_first=True)
        self._warm_at = time.monotonic()
        self._measure_memory()
        until = self._warm_at + self._seconds
        while (left := until - time.monotonic()) > 0 and not self.has_found_plant:
            await self._attack(ledgers, min(round_seconds, left))
            await self._count(ledgers)
        async with _session() as session:
            for ledger in ledgers.values():
                lost = await ledger.find_lost(session, all=True)
                self.report.lost += [line for line in lost if line not in self.report.lost]
            async with session.get(f"{self._evil_url}/late") as answer:
                self.report.leave_out_late(await answer.json())
        self._add_up(ledgers)

    async def _attack(self, ledgers: dict[str, Ledger], seconds: float) -> None:
        """Lets all clients send requests, and kills processes, for `seconds`."""
        end = time.monotonic() + seconds

        def is_over() -> bool:
            return time.monotonic() >= end

        async with _session() as session, asyncio.TaskGroup() as tasks:
            for ledger in ledgers.values():
                for _ in range(CLIENTS):
                    client = Client(ledger, session, Random(self._random.random()))
                    tasks.create_task(client.run(is_over))
            if self._steady is not None:
                tasks.create_task(self._kill_children(self._steady, end))
            if self._killed is not None:
                tasks.create_task(self._kill_all_of(self._killed, end))
            if self._team is not None:
                tasks.create_task(self._team.kill_servers(self.report, end))
                tasks.create_task(self._team.restart_database(self.report, end))

    # --- who kills ------------------------------------------------------------------------------

    async def _kill_children(self, proxy: Proxy, end: float) -> None:
        """Kills a warden or an agent now and then."""
        while (wait := self._random.uniform(0.5, 3)) < end - time.monotonic():
            await asyncio.sleep(wait)
            self._kill_a_child(proxy, "steady child")

    def _kill_a_child(self, proxy: Proxy, counted: str) -> None:
        children = proxy.children()
        if children:
            with_luck = self._random.choice(children)
            try:
                with_luck.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                return
            self.report.kills[counted] += 1

    async def _kill_all_of(self, proxy: Proxy, end: float) -> None:
        """Again and again kills the server, stops it, or kills a child of it, and starts the server again, until
        `end`."""
        while (wait := self._random.uniform(0.3, 3)) < end - time.monotonic():
            await asyncio.sleep(wait)
            what = self._random.choices(("proxy", "stop", "child"), (6, 2, 2))[0]
            if what == "child":
                self._kill_a_child(proxy, "child")
                continue
            self.report.kills[what] += 1
            code = await proxy.end(signal.SIGKILL if what == "proxy" else signal.SIGTERM)
            if what == "stop" and code:
                self.report.wrong.append(f"a server that was stopped exited with {code}")
            await proxy.start()

    # --- who counts -----------------------------------------------------------------------------

    async def _count(self, ledgers: dict[str, Ledger], *, is_first: bool = False) -> None:
        """Waits until no turn is running, and counts what is wrong then."""
        report, steady = self.report, self._steady
        if steady is not None and not is_first:
            await self._note_loop_of(steady)
        async with _session() as session:
            for name, ledger in ledgers.items():
                if not await ledger.proxy.at_rest(session, within=self._patience.rest):
                    report.stuck.append(f"the server {name} still has turns or streams")
                report.stuck += await ledger.find_stuck(session, within=self._patience.rest)
                report.lost += await ledger.find_lost(session, all=False)
        ended = {id for ledger in ledgers.values() for id in ledger.background}
        undelivered = await self._receiver.undelivered(ended, within=self._patience.webhooks)
        report.lost += [f"{id} has ended, and no webhook says so" for id in sorted(undelivered)]
        for ledger in ledgers.values():
            for id in undelivered & ledger.background.keys():
                del ledger.background[id]  # it is said once
            report.stuck += ledger.stuck_requests
            report.crossed += ledger.crossed
            report.wrong += ledger.wrong
            for found in (ledger.stuck_requests, ledger.crossed, ledger.wrong):
                found.clear()
        if steady is not None:
            await self._look_for_leaks(steady, is_first=is_first)
            if not is_first:
                self._measure_memory()

    async def _note_loop_of(self, steady: Proxy) -> None:
        census = await steady.census()
        if not census["late"]:
            raise RuntimeError("the delay of the server's event loop was not measured")
        longest = [*self.report.longest, *census["held"]]
        self.report.late += census["late"]
        self.report.longest = sorted(longest, key=lambda held: -held["seconds"])[:NAMED]

    async def _look_for_leaks(self, proxy: Proxy, *, is_first: bool) -> None:
        deadline = time.monotonic() + LEAK_SECONDS
        if is_first:
            await asyncio.sleep(KEPT_SECONDS + 1)
            self._baseline = _open_in(proxy, await proxy.census())
            return
        while True:
            now = _open_in(proxy, await proxy.census())
            found = leaks(self._baseline, now)
            if not found:
                return
            if time.monotonic() > deadline:
                self.report.leaked += found
                self._baseline = now  # it is said once
                return
            await asyncio.sleep(0.5)

    def _measure_memory(self) -> None:
        if self._steady is not None:
            resident = self._steady.resident() / (1 << 20)
            self.report.resident.append((time.monotonic() - self._warm_at, resident))

    def _add_up(self, ledgers: dict[str, Ledger]) -> None:
        for ledger in ledgers.values():
            self.report.requests = dict(Counter(self.report.requests) + ledger.requests)
        self.report.acknowledged = {
            "stored": sum(len(ledger.stored) for ledger in ledgers.values()),
            "background": sum(len(ledger.background) for ledger in ledgers.values()),
            "turns of conversations": sum(
                len(each.acknowledged) for ledger in ledgers.values() for each in ledger.turns.values()
            ),
        }


def _open_in(proxy: Proxy, census: Census) -> Counter[str]:
    return open_things(census, proxy.commands())


def _session() -> aiohttp.ClientSession:
    """Returns the connections for one round, which are closed at its end, so that the server has none to wait for."""
    return aiohttp.ClientSession(
        timeout=aiohttp.ClientTimeout(total=None), connector=aiohttp.TCPConnector(limit=0)
    )
