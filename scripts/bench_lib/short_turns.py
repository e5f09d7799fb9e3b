"""Row 4: requests per second of short turns on warm children, against the children driven directly."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

from scripts.bench_lib import direct
from scripts.bench_lib.children import make_paced_child
from scripts.bench_lib.figures import Figure
from scripts.bench_lib.servers import chat_request, clean_environment, first_delta, proxy, whole

DELTAS = 20
TASKS = 16
PROCESSES = 2
AGAINST = f"{TASKS} tasks on the children themselves"

Request = Callable[[int], Awaitable[float]]


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    requests, rounds = (TASKS, 1) if quick else (400, 7)
    program = make_paced_child(folder / "child", deltas=DELTAS, every=0)
    flags = ("--agent", "codex-app-server", "--codex-bin", str(program))
    # A limit of turns per process would renew the children in the middle of a round.
    with proxy(folder, *flags, PROXY_APP_SERVER_MAX_TURNS="1000000") as server:
        streamed, given = chat_request("Go."), chat_request("Go.", stream=False)
        sides: dict[str, Request] = {
            "streamed": lambda _: first_delta(server.port, streamed),
            "whole": lambda _: whole(server.port, given),
        }
        yield from asyncio.run(_compared(folder, program, sides, requests, rounds))


async def _compared(
    folder: Path, program: Path, sides: dict[str, Request], requests: int, rounds: int
) -> list[Figure]:
    async with AsyncExitStack() as stack:
        children = [
            await stack.enter_async_context(
                direct.app_server([str(program), "app-server"], clean_environment({}), str(folder))
            )
            for _ in range(PROCESSES)
        ]
        directly = "directly"
        all_sides: dict[str, Request] = sides | {
            directly: lambda number: children[number % PROCESSES].first_delta("Go.", str(folder))
        }
        took: dict[str, list[float]] = {name: [] for name in all_sides}
        for side in all_sides.values():
            await _seconds(side, TASKS)
        for _ in range(rounds):
            for name, side in all_sides.items():
                took[name].append(await _seconds(side, requests))
    floor = median(took[directly])
    what = f"requests per second, {TASKS} at once, {DELTAS} deltas each"
    return [
        Figure(
            row="4",
            what=f"{what}, {name}",
            against=AGAINST,
            ratio=floor / median(took[name]),
            goal="",
            samples=rounds,
            value=f"{requests / median(took[name]):,.0f}/s",
        )
        for name in sides
    ]


async def _seconds(side: Request, requests: int) -> float:
    """How long so many requests take, `TASKS` at once."""
    numbers = iter(range(requests))

    async def work() -> None:
        for number in numbers:
            await side(number)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(TASKS)))
    return time.perf_counter() - began
