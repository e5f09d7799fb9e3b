"""Row 13: requests per second of `serve --workers 2` against one worker, and what a request costs each side."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import psutil

from scripts.bench_lib.children import make_paced_child
from scripts.bench_lib.figures import Figure
from scripts.bench_lib.servers import Proxy, chat_request, proxy, whole

DELTAS = 20
TASKS = 16


@dataclass
class Side:
    """A server with so many workers, and the measurements of each round."""

    server: Proxy
    workers: int
    rates: list[float] = field(default_factory=list)
    """Requests per second."""
    costs: list[float] = field(default_factory=list)
    """CPU seconds of the workers, per request."""
    others: list[float] = field(default_factory=list)
    """CPU seconds of the client and of the agents, per request."""

    def cpu(self) -> tuple[float, float]:
        """Returns the CPU seconds so far: of the workers, and of the client and the agents."""
        top = psutil.Process(self.server.process.pid)
        workers = [top] if self.workers == 1 else top.children()
        agents = {process for worker in workers for process in worker.children(recursive=True)}
        own = os.times()
        return sum(map(_cpu, workers)), own.user + own.system + sum(map(_cpu, agents))


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    requests, rounds = (TASKS, 1) if quick else (800, 7)
    folder.mkdir(parents=True)
    program = make_paced_child(folder / "child", deltas=DELTAS, every=0)
    flags = ("--agent", "codex-app-server", "--codex-bin", str(program))
    with (
        proxy(folder / "one", *flags, PROXY_STORE="off") as one,
        proxy(folder / "two", *flags, "--workers", "2", PROXY_STORE="off") as two,
    ):
        sides = Side(one, 1), Side(two, 2)
        asyncio.run(_measure(sides, requests, rounds))
    single, double = sides
    yield Figure(
        row="13",
        what=f"requests per second, {TASKS} at once, {DELTAS} deltas each, 2 workers",
        against="1 worker",
        ratio=median(double.rates) / median(single.rates),
        goal="1.7 on free cores",
        samples=rounds,
        value=f"{median(double.rates):,.0f}/s",
    )
    yield Figure(
        row="13",
        what="CPU of the workers for a request, 2 workers",
        against="1 worker",
        ratio=median(double.costs) / median(single.costs),
        goal="",
        samples=rounds,
        value=f"{median(double.costs) * 1000:.2f} ms; client and agents {median(double.others) * 1000:.2f} ms",
    )


async def _measure(sides: tuple[Side, Side], requests: int, rounds: int) -> None:
    """Measures both in turns."""
    for side in sides * 2:  # the first ones warm the agents
        await _round(side, TASKS * 4)
    for side in sides:
        side.rates.clear()
        side.costs.clear()
        side.others.clear()
    for _ in range(rounds):
        for side in sides:
            await _round(side, requests)


async def _round(side: Side, requests: int) -> None:
    request = chat_request("Go.", stream=False)
    numbers = iter(range(requests))

    async def work() -> None:
        for _ in numbers:
            await whole(side.server.port, request)

    before, began = side.cpu(), time.perf_counter()
    await asyncio.gather(*(work() for _ in range(TASKS)))
    took, after = time.perf_counter() - began, side.cpu()
    side.rates.append(requests / took)
    side.costs.append((after[0] - before[0]) / requests)
    side.others.append((after[1] - before[1]) / requests)


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)
