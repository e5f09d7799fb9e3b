"""Row 4: requests per second of short turns on warm children, against the children driven directly, and behind the
smallest server that aiohttp makes."""

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
from scripts.bench_lib.servers import (
    chat_request,
    clean_environment,
    first_delta,
    proxy,
    side_server,
    whole,
)

DELTAS = 20
TASKS = 16
PROCESSES = 2
AGAINST = f"{TASKS} tasks on the children themselves"
AGAINST_SERVER = "the smallest aiohttp server on such children"
SERVER = "scripts.bench_lib.short_turns_server"

Request = Callable[[int], Awaitable[float]]


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    requests, rounds = (TASKS, 1) if quick else (400, 7)
    program = make_paced_child(folder / "child", deltas=DELTAS, every=0)
    flags = ("--agent", "codex-app-server", "--codex-bin", str(program))
    with (
        proxy(folder, *flags) as ours,
        side_server(SERVER, str(program), str(folder), str(PROCESSES)) as (_, printed),
    ):
        port = int(printed)
        streamed, given = chat_request("Go."), chat_request("Go.", stream=False)
        sides: dict[str, Request] = {
            "streamed": lambda _: first_delta(ours.port, streamed),
            "whole": lambda _: whole(ours.port, given),
        }
        smallest: dict[str, Request] = {
            "streamed": lambda _: first_delta(port, streamed),
            "whole": lambda _: whole(port, given),
        }
        yield from asyncio.run(_compare(folder, program, sides, smallest, requests, rounds))


async def _compare(
    folder: Path,
    program: Path,
    sides: dict[str, Request],
    smallest: dict[str, Request],
    requests: int,
    rounds: int,
) -> list[Figure]:
    async with AsyncExitStack() as stack:
        children = [
            await stack.enter_async_context(
                direct.app_server([str(program), "app-server"], clean_environment({}), str(folder))
            )
            for _ in range(PROCESSES)
        ]

        def directly(number: int) -> Awaitable[float]:
            return children[number % PROCESSES].first_delta("Go.", str(folder))

        took: dict[Request, list[float]] = {
            side: [] for side in (*sides.values(), *smallest.values(), directly)
        }
        for side in took:
            await _seconds(side, TASKS)
        for _ in range(rounds):
            for side, seconds in took.items():
                seconds.append(await _seconds(side, requests))
    middle = {side: median(seconds) for side, seconds in took.items()}
    what = f"requests per second, {TASKS} at once, {DELTAS} deltas each"
    return [
        Figure(
            row="4",
            what=f"{what}, {name}",
            against=against,
            ratio=middle[other] / middle[side],
            goal="",
            samples=rounds,
            value=f"{requests / middle[side]:,.0f}/s",
        )
        for name, side in sides.items()
        for against, other in ((AGAINST, directly), (AGAINST_SERVER, smallest[name]))
    ]


async def _seconds(side: Request, requests: int) -> float:
    """Returns how long so many requests take, `TASKS` at once."""
    numbers = iter(range(requests))

    async def work() -> None:
        for number in numbers:
            await side(number)

    began = time.perf_counter()
    await asyncio.gather(*(work() for _ in range(TASKS)))
    return time.perf_counter() - began
