"""Two servers on one PostgreSQL, which clients take for one. Each of the three is killed, stopped and started again."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import Random

import aiohttp

from scripts.torture_lib.plants import PLANTS
from scripts.torture_lib.proxy import Proxy
from scripts.torture_lib.report import Report
from scripts.torture_lib.servers import killed_server
from tests.postgres import PostgresServer

CRASH_AFTER = (2.0, 4.0)
"""Seconds between two crashes of the database, if nothing else happens: less than a round."""
PAUSES = (1.0, 4.0, 33.0)
"""Seconds for which a server hangs: the last are longer than the leases of its background responses."""


class Team:
    """The servers with what clients need of one (`proxy.Served`): each request goes to a random one that is up."""

    def __init__(
        self, folder: Path, hook: str, database: PostgresServer, random: Random, plant: str = "none"
    ) -> None:
        variables = {"PROXY_STORE": database.url}
        one = killed_server(folder / "one", hook, variables, plant=plant)
        self.members = (one, killed_server(folder / "two", hook, variables, keys=one.keys, plant=plant))
        planted = PLANTS.get(plant)
        self._planted_pauses = () if planted is None else planted.pauses
        """The pauses of a planted fault, if it wants any: nothing else happens then."""
        self._only_crashes = planted is not None and planted.only_crashes
        self.models = one.models
        self.evil_models: Sequence[str] = ()
        self.keys = one.keys
        self.life = 0
        self.up = asyncio.Event()
        self._disturbances = 0
        """How many go on now."""
        self._database = database
        self._random = random

    @property
    def undisturbed(self) -> int | None:
        return None if self._disturbances else self.life

    @property
    def url(self) -> str:
        return self._one().url

    @property
    def port(self) -> int:
        return self._one().port

    def _one(self) -> Proxy:
        return self._random.choice([each for each in self.members if each.up.is_set()] or self.members)

    async def at_rest(self, session: aiohttp.ClientSession, *, within: float) -> bool:
        return all([await each.at_rest(session, within=within) for each in self.members])

    async def start(self) -> None:
        for member in self.members:
            await member.start()
        self.up.set()

    def kill(self) -> None:
        for member in self.members:
            member.kill()

    async def end(self, signal_: signal.Signals) -> int:
        """Sends the signal to all, and returns the first exit code that is not 0, if any."""
        self.up.clear()
        return max([await member.end(signal_) for member in self.members], key=bool)

    async def kill_servers(self, report: Report, end: float) -> None:
        """Until `end`, kills, stops or pauses one server after the other."""
        while (wait := self._random.uniform(0.5, 5)) < end - time.monotonic():
            await asyncio.sleep(wait)
            if self._only_crashes:
                continue
            member = self._one()
            weights = (0, 0, 1) if self._planted_pauses else (6, 2, 1)
            [what] = self._random.choices(("proxy", "stop", "pause"), weights)
            with self._counted(report, what):
                if what == "pause":
                    await self._pause(member)
                    continue
                code = await member.end(signal.SIGKILL if what == "proxy" else signal.SIGTERM)
                if what == "stop" and code:
                    report.wrong.append(f"a server that was stopped exited with {code}")
                await _start_when_possible(member)

    async def restart_database(self, report: Report, end: float) -> None:
        """Until `end`, stops the database again and again, at once or after its statements, for up to 3 seconds."""
        between = CRASH_AFTER if self._only_crashes else (4, 12)
        modes = ("immediate",) if self._only_crashes else ("fast", "immediate")
        while (wait := self._random.uniform(*between)) < end - time.monotonic():
            await asyncio.sleep(wait)
            if self._planted_pauses:
                continue
            with self._counted(report, "database"):
                await asyncio.to_thread(self._database.stop, self._random.choice(modes))
                await asyncio.sleep(self._random.uniform(0, 3))
                await asyncio.to_thread(self._database.start)

    @contextmanager
    def _counted(self, report: Report, what: str) -> Iterator[None]:
        report.kills[what] += 1
        self.life += 1
        self._disturbances += 1
        try:
            yield
        finally:
            self.life += 1
            self._disturbances -= 1

    async def _pause(self, member: Proxy) -> None:
        member.up.clear()
        os.kill(member.pid, signal.SIGSTOP)
        await asyncio.sleep(self._random.choice(self._planted_pauses or PAUSES))
        os.kill(member.pid, signal.SIGCONT)
        member.up.set()


async def _start_when_possible(member: Proxy) -> None:
    """Starts a server: it refuses to start without its database."""
    while True:
        try:
            await member.start()
        except RuntimeError:
            await asyncio.sleep(0.5)
        else:
            return
