"""Row 12: the CPU time of a turn, of the server and the agent together, with and without a recording of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import median

import psutil

from scripts.bench_lib.figures import Figure
from scripts.bench_lib.servers import Proxy, chat_request, first_delta, proxy

SIDES = ("recorded", "not recorded")


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    turns, rounds = (4, 1) if quick else (100, 7)
    request = chat_request("Say what you have to say. [[fake:count n=200]]")
    seconds: dict[str, list[float]] = {side: [] for side in SIDES}
    with ExitStack() as stack:
        flags = ("--agent", "fake")
        ours = {
            "recorded": stack.enter_context(
                proxy(
                    folder / "a",
                    *flags,
                    "--record",
                    str(folder / "cassettes"),
                    PROXY_FAKE_DIALECT="app-server",
                )
            ),
            "not recorded": stack.enter_context(proxy(folder / "b", *flags, PROXY_FAKE_DIALECT="app-server")),
        }
        for _ in range(rounds):
            for side in SIDES:
                before = _cpu(ours[side])
                for _ in range(turns):
                    asyncio.run(first_delta(ours[side].port, request))
                seconds[side].append((_cpu(ours[side]) - before) / turns)
    recorded, plain = (median(seconds[side]) for side in SIDES)
    yield Figure(
        row="12",
        what="CPU of a recorded turn of 200 deltas, server and agent",
        against="the same turn, not recorded",
        ratio=recorded / plain,
        goal="<= 1.1",
        samples=rounds * turns,
        value=f"{recorded * 1000:.1f} ms",
    )


def _cpu(ours: Proxy) -> float:
    """The CPU seconds of a server and of the processes of its agent."""
    agents = psutil.Process(ours.process.pid).children(recursive=True)
    return ours.cpu() + sum(each.cpu_times().user + each.cpu_times().system for each in agents)
