"""Row 12: the CPU time of a turn, of the server and the agent together, with and without a recording of it."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median

import psutil

from scripts.bench_lib.figures import Figure
from scripts.bench_lib.servers import Proxy, chat_request, drain, proxy, responses_request

MEMORY = Path("/dev/shm")
"""Where files are recorded: ext4 looks long for a free inode where files were just deleted, as after the last run."""


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    turns, rounds = (4, 1) if quick else (50, 14)
    prompt = "Say what you have to say. [[fake:count n=200]]"
    flags = ("--agent", "fake")
    with (
        tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as cassettes,
        proxy(folder / "a", *flags, "--record", cassettes, PROXY_FAKE_DIALECT="app-server") as recording,
        proxy(folder / "b", *flags, PROXY_FAKE_DIALECT="app-server") as plain,
    ):
        for api, request in (("chat", chat_request(prompt)), ("responses", responses_request(prompt))):
            seconds: dict[Proxy, list[float]] = {recording: [], plain: []}
            for _ in range(rounds):
                for ours, found in seconds.items():
                    before = _cpu(ours)
                    for _ in range(turns):
                        asyncio.run(drain(ours.port, request, count=None))
                    found.append((_cpu(ours) - before) / turns)
            recorded, not_recorded = map(median, seconds.values())
            yield Figure(
                row="12",
                what=f"CPU of a recorded turn of 200 deltas, {api}, server and agent",
                against="the same turn, not recorded",
                ratio=recorded / not_recorded,
                goal="<= 1.1",
                samples=rounds * turns,
                value=f"{recorded * 1000:.1f} ms",
            )


def _cpu(ours: Proxy) -> float:
    """The CPU seconds of a server and of the processes of its agent."""
    agents = psutil.Process(ours.process.pid).children(recursive=True)
    return ours.cpu() + sum(each.cpu_times().user + each.cpu_times().system for each in agents)
