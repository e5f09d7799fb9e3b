"""Row 15: this server, compiled gateways and the plainest reverse proxy that aiohttp makes, each before the same server
of Chat Completions: CPU of a request, the first delta, and memory.

The gateways run if they are installed in an environment of their own:

    python3 -m venv .cache/neighbours
    .cache/neighbours/bin/pip install --no-deps --require-hashes -r requirements/neighbours.txt
    .cache/neighbours/bin/pip install aiohttp fastapi grpcio grpcio-health-checking orjson requests setproctitle \\
        uvicorn pyyaml
"""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from threading import Thread
from typing import Final

import psutil

from scripts.bench_lib.figures import Figure, quantile
from scripts.bench_lib.passing import EVERY, SIDES, request_for
from scripts.bench_lib.servers import (
    ROOT,
    BenchError,
    first_delta,
    proxy,
    running_process,
    side_server,
    whole,
)

PROGRAMS: Final = ROOT / ".cache" / "neighbours" / "bin"
OURS, FLOOR = "this server", "a plain aiohttp reverse proxy"
DELTAS = 20
AT_ONCE = 16
START_SECONDS = 60


def _router_flags(url: str, port: int, metrics: int) -> tuple[str, ...]:
    return (
        *("--host", "127.0.0.1", "--port", str(port), "--worker-urls", url),
        *("--prometheus-host", "127.0.0.1", "--prometheus-port", str(metrics)),
    )


Command = Callable[[str, int, int], Sequence[str]]
"""Makes a program's arguments from the upstream's URL, its port, and a port for its metrics."""
GATEWAYS: Final[dict[str, tuple[str, Command]]] = {
    "smg 1.13.0": ("smg", lambda url, port, metrics: ("launch", *_router_flags(url, port, metrics))),
    "vllm-router 0.1.17": ("vllm-router", _router_flags),
    "agentic-api 0.9.0": (
        "agentic-server",
        lambda url, port, _: (
            *("--llm-api-base", url, "--gateway-host", "127.0.0.1", "--gateway-port", str(port)),
            *("--skip-llm-ready-check", "--db-url", "sqlite::memory:"),
        ),
    ),
}


@dataclass
class _Side:
    name: str
    process: subprocess.Popen[bytes]
    port: int
    whole: list[float] = field(default_factory=list)
    """CPU milliseconds of a request that is answered whole, in each round."""
    stream: list[float] = field(default_factory=list)
    first: list[float] = field(default_factory=list)
    """Milliseconds until the first delta."""

    def cpu(self) -> float:
        """Returns the CPU milliseconds of the process and its children so far."""
        process = psutil.Process(self.process.pid)
        times = [each.cpu_times() for each in (process, *process.children(recursive=True))]
        return float(1000 * sum(each.user + each.system for each in times))

    def memory(self) -> float:
        """Returns the resident megabytes of the process and its children."""
        process = psutil.Process(self.process.pid)
        size = sum(each.memory_info().rss for each in (process, *process.children(recursive=True)))
        return float(size / 1_000_000)


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    requests, rounds = (AT_ONCE, 1) if quick else (640, 7)
    with ExitStack() as running:
        _, port = running.enter_context(side_server(SIDES, "upstream"))
        url = f"http://127.0.0.1:{port}"
        ours = running.enter_context(proxy(folder, "--agent", "openai-chat", "--upstream-url", url))
        floor, floor_port = running.enter_context(side_server(SIDES, "reverse", url))
        sides = [_Side(OURS, ours.process, ours.port), _Side(FLOOR, floor, int(floor_port))]
        for name, (program, command) in GATEWAYS.items():
            if not (PROGRAMS / program).exists():
                print(f"row 15: {PROGRAMS / program} is not installed: left out", file=sys.stderr)
                continue
            sides.append(running.enter_context(_gateway(folder / program, name, program, command, url)))
        asyncio.run(_compare(sides, requests, rounds))
        yield from _figures(sides, rounds)


@contextmanager
def _gateway(folder: Path, name: str, program: str, command: Command, url: str) -> Iterator[_Side]:
    folder.mkdir(parents=True)
    port, metrics = _free_port(), _free_port()
    arguments = [str(PROGRAMS / program), *command(url, port, metrics)]
    with running_process(arguments, folder, {"HOME": str(folder)}) as process:
        assert process.stdout is not None
        Thread(target=process.stdout.read, daemon=True).start()  # else it waits for somebody to read its log
        asyncio.run(_answers(name, port, process))
        yield _Side(name, process, port)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as free:
        return int(free.getsockname()[1])


async def _answers(name: str, port: int, process: subprocess.Popen[bytes]) -> None:
    """Waits until the process answers a request on this port."""
    async with asyncio.timeout(START_SECONDS):
        while True:
            try:
                await first_delta(port, request_for(1, 0))
            except (OSError, BenchError):  # it listens before it has found the server behind it
                if process.poll() is not None:
                    raise BenchError(f"{name} ended before it served") from None
                await asyncio.sleep(0.2)
            else:
                return


async def _compare(sides: Sequence[_Side], requests: int, rounds: int) -> None:
    """Measures the sides in turns, `AT_ONCE` requests at once. One round before the others is not counted."""
    for round in range(rounds + 1):
        for side in sides:
            before = side.cpu()
            await _at_once(requests, lambda port: whole(port, request_for(DELTAS, 0, stream=False)), side)
            between = side.cpu()
            first = await _at_once(
                requests // 4, lambda port: first_delta(port, request_for(DELTAS, EVERY)), side
            )
            if round:
                side.whole.append((between - before) / requests)
                side.stream.append((side.cpu() - between) / (requests // 4))
                side.first += [1000 * each for each in first]


async def _at_once(requests: int, ask: Callable[[int], Awaitable[float]], side: _Side) -> list[float]:
    numbers = iter(range(requests))

    async def work() -> list[float]:
        return [await ask(side.port) for _ in numbers]

    return list(chain.from_iterable(await asyncio.gather(*(work() for _ in range(AT_ONCE)))))


def _figures(sides: Sequence[_Side], rounds: int) -> Iterator[Figure]:
    ours, *others = sides
    at_once = f"{AT_ONCE} at once"
    for other in others:
        is_floor = other.name == FLOOR
        measured = (
            (
                f"CPU of a whole answer passed on, {at_once}",
                ours.whole,
                other.whole,
                "<= 2.5" if is_floor else "",
            ),
            (
                f"CPU of {DELTAS} deltas passed on, {at_once}",
                ours.stream,
                other.stream,
                "<= 1.5" if is_floor else "",
            ),
            (
                f"first delta, {at_once}",
                ours.first,
                other.first,
                "<= 1.5" if other.name.startswith("smg") else "",
            ),
        )
        for what, mine, theirs, goal in measured:
            mine_ms, theirs_ms = quantile(mine, 0.5), quantile(theirs, 0.5)
            value = f"{mine_ms:.2f} ms and {theirs_ms:.2f} ms"
            yield Figure("15", what, other.name, mine_ms / max(theirs_ms, 0.01), goal, rounds, value)
        memory = ours.memory(), other.memory()
        value = f"{memory[0]:.0f} MB and {memory[1]:.0f} MB"
        yield Figure("15", "resident memory", other.name, memory[0] / memory[1], "", 1, value)
