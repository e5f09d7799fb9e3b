"""`scripts/torture`: attacks two servers at random, then counts what was leaked, lost or stuck.

One server is steady: its clients are bad, its agents fail and are killed, and it must neither grow nor keep anybody
waiting. The other one is itself killed and stopped again and again, and must not lose what it has acknowledged.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random

import aiohttp

from scripts.torture_lib.clients import Client
from scripts.torture_lib.ledger import Ledger, WebhookReceiver
from scripts.torture_lib.proxy import Proxy, adopt_orphans, command_of, descendants, ended_within

SECRET = "whsec_c2VjcmV0IGZvciB0ZXN0cw=="
CLIENTS = 8
"""Of each server."""
REST_SECONDS = 60.0
"""How long what is under way may take to end when nobody asks for more."""
MAX_GROWTH = 30 << 20
"""Bytes of RAM that the steady server may have more at the end than when it was warm."""
MAX_DELAY = 0.1
"""Seconds by which the event loop may be late, but for one in a thousand looks."""
LONG_SECONDS = 120.0
"""Delays and memory of a shorter run are told and not judged: it is not warm before its end."""
MCP_PROGRAM = Path(__file__).resolve().parents[2] / "tests" / "mcp" / "program.py"


@dataclass
class Report:
    """The figures of a run."""

    seed: int
    seconds: float
    requests: dict[str, int]
    kills: dict[str, int]
    lost: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    loop_delay_p999: float = 0.0
    resident_mib: dict[str, float] = field(default_factory=dict)

    def problems(self) -> list[str]:
        """What has to be mended."""
        found = [*self.lost, *self.stuck, *self.leaked, *self.wrong]
        if self.seconds < LONG_SECONDS:
            return found
        if self.loop_delay_p999 > MAX_DELAY:
            found.append(f"the event loop was {self.loop_delay_p999:.3f} s late (p99.9)")
        growth = self.resident_mib["end"] - self.resident_mib["warm"]
        if growth > MAX_GROWTH >> 20:
            found.append(f"the steady server grew by {growth:.0f} MiB")
        return found


class Torture:
    """One run in a folder of its own."""

    def __init__(self, folder: Path, seconds: float, seed: int) -> None:
        self._folder = folder
        self._seconds = seconds
        self._random = Random(seed)
        self._receiver = WebhookReceiver()
        self._end = 0.0
        self.report = Report(seed, seconds, {}, {"proxy": 0, "stop": 0, "child": 0, "steady child": 0})

    def _over(self) -> bool:
        return time.monotonic() >= self._end

    async def run(self) -> None:
        """Fills the report."""
        adopt_orphans()
        before = descendants()
        await self._receiver.start()
        steady, killed = await self._proxy("steady", "app-server"), await self._proxy("killed", "proto")
        ledgers = [Ledger(steady), Ledger(killed)]
        timeout = aiohttp.ClientTimeout(total=None)
        async with aiohttp.ClientSession(timeout=timeout, connector=aiohttp.TCPConnector(limit=0)) as session:
            self._end = time.monotonic() + self._seconds
            tasks = [
                *(
                    asyncio.create_task(
                        Client(ledger, session, Random(self._random.random())).run(self._over)
                    )
                    for ledger in ledgers
                    for _ in range(CLIENTS)
                ),
                asyncio.create_task(self._kill_children(steady)),
                asyncio.create_task(self._kill_all_of(killed)),
                asyncio.create_task(self._measure_when_warm(steady)),
            ]
            await asyncio.gather(*tasks)
            await self._count(session, ledgers)
        for ledger in ledgers:
            if code := await ledger.proxy.end(signal.SIGTERM):
                self.report.wrong.append(f"a server that was stopped exited with {code}")
        left = await ended_within(descendants() - before, REST_SECONDS)
        self.report.leaked += [f"process {pid} is left: {command_of(pid)}" for pid in left]
        homes = [str(home) for home in self._folder.rglob("home-*")]
        self.report.leaked += [f"{home} is left" for home in homes]
        await self._receiver.stop()

    async def _proxy(self, name: str, dialect: str) -> Proxy:
        folder = self._folder / name
        folder.mkdir()
        servers = {
            "tools": {"command": sys.executable, "args": [str(MCP_PROGRAM), "stdio", "--tools", "300"]}
        }
        config = folder / "mcp.json"
        config.write_text(json.dumps({"mcpServers": servers}))
        proxy = Proxy(
            folder,
            {
                "PROXY_FAKE_DIALECT": dialect,
                "PROXY_FIRST_EVENT_TIMEOUT": "3",
                "PROXY_IDLE_TIMEOUT": "3",
                "PROXY_DRAIN_MS": "500",
                "PROXY_WEBHOOK_URLS": f"http://127.0.0.1:{self._receiver.port}/hook",
                "PROXY_WEBHOOK_SECRET": SECRET,
                "PROXY_MCP_CONFIG": str(config),
                "PROXY_MCP_CALL_TIMEOUT": "3",
            },
        )
        await proxy.start()
        return proxy

    # --- who kills ------------------------------------------------------------------------------

    async def _kill_children(self, proxy: Proxy) -> None:
        """Kills a warden or an agent now and then."""
        while not self._over():
            await asyncio.sleep(self._random.uniform(0.5, 3))
            self._kill_a_child(proxy, "steady child")

    def _kill_a_child(self, proxy: Proxy, counted: str) -> None:
        children = proxy.children()
        if children:
            with_luck = self._random.choice(children)
            try:
                with_luck.send_signal(signal.SIGKILL)
            except ProcessLookupError:
                return
            self.report.kills[counted] += 1

    async def _kill_all_of(self, proxy: Proxy) -> None:
        """Kills the server, stops it, or kills a child of it; starts it again with either dialect."""
        while not self._over():
            await asyncio.sleep(self._random.uniform(0.3, 3))
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

    async def _measure_when_warm(self, proxy: Proxy) -> None:
        """Memory and descriptors of the steady server when it has done everything a few times."""
        await asyncio.sleep(min(60.0, self._seconds / 3))
        self.report.resident_mib["warm"] = proxy.resident() / (1 << 20)

    async def _count(self, session: aiohttp.ClientSession, ledgers: list[Ledger]) -> None:
        report = self.report
        for name, ledger in zip(("steady", "killed"), ledgers, strict=True):
            if not await ledger.proxy.at_rest(session, within=REST_SECONDS):
                report.stuck.append(f"the {name} server still has turns or streams")
            report.stuck += await ledger.stuck(session, within=REST_SECONDS)
            report.lost += await ledger.lost(session)
            untold = await self._receiver.untold(set(ledger.background), within=REST_SECONDS)
            report.lost += [f"{id}: its end was not told by webhook" for id in sorted(untold)]
            report.wrong += ledger.wrong
            for kind, count in ledger.requests.items():
                report.requests[kind] = report.requests.get(kind, 0) + count
        report.acknowledged = {
            "stored": sum(len(ledger.stored) for ledger in ledgers),
            "background": sum(len(ledger.background) for ledger in ledgers),
            "turns of conversations": sum(len(said) for each in ledgers for _, said in each.turns.values()),
        }
        steady = ledgers[0].proxy
        report.resident_mib["end"] = steady.resident() / (1 << 20)
        report.loop_delay_p999 = loop_delay(await steady.metrics(session), 0.999)


def loop_delay(samples: dict[str, float], share: float) -> float:
    """The least bucket of the histogram of the event loop's delays that this share of them lies in, in seconds."""
    name = "codex_proxy_event_loop_delay_seconds"
    if (total := samples.get(f"{name}_count", 0.0)) == 0:
        return 0.0
    buckets = [
        (float(key.split('le="')[1].split('"')[0]), count)
        for key, count in samples.items()
        if key.startswith(f"{name}_bucket")
    ]
    return min(bound for bound, count in buckets if count >= share * total)


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/torture", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to attack (60)")
    parser.add_argument(
        "--seed", type=int, default=None, help="asks for the same again, as far as chance decides"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(time.time())
    with tempfile.TemporaryDirectory(prefix="codex-proxy-torture-") as folder:
        torture = Torture(Path(folder), options.seconds, seed)
        asyncio.run(torture.run())
    report = torture.report
    problems = report.problems()
    if options.json is not None:
        options.json.write_text(json.dumps(asdict(report), indent=2) + "\n", "utf-8")
    made = sum(report.requests.values())
    print(f"seed {seed}: {made} requests in {options.seconds:.0f} s; kills {report.kills}")
    print(f"acknowledged {report.acknowledged}; lost {len(report.lost)}, stuck {len(report.stuck)},")
    print(f"leaked {len(report.leaked)}, wrong answers {len(report.wrong)}; loop delay p99.9 at most")
    print(f"{report.loop_delay_p999:.3f} s; RAM of the steady server {report.resident_mib} MiB")
    for problem in problems[:50]:
        print(f"  {problem}")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
