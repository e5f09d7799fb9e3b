"""Row 2: one long stream. CPU of the proxy per delta, against the smallest loop that does the same work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from scripts.bench_lib.children import Dialect, make_child
from scripts.bench_lib.figures import Figure
from scripts.bench_lib.servers import DELTA, BenchError, Proxy, chat_request, clean_environment, drain, proxy

ROOT = Path(__file__).resolve().parents[2]
SHORT_SHARE = 10
"""The short stream, which shows whether a delta costs more in a long one, is this many times shorter."""
TICK = 0.01
"""Seconds: how finely the system tells another process's CPU time."""


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    deltas, rounds = (2_000, 1) if quick else (200_000, 5)
    for dialect in ("proto", "app-server"):
        yield from _row(folder / dialect, dialect, deltas, rounds)


def _row(folder: Path, dialect: Dialect, deltas: int, rounds: int) -> Iterator[Figure]:
    program = make_child(folder / "long", dialect, deltas)
    short = make_child(folder / "short", dialect, deltas // SHORT_SHARE)
    ours, loops, relays, shorts = [], [], [], []
    flags = ("--agent", f"codex-{dialect}", "--codex-bin")
    with (
        proxy(folder / "a", *flags, str(program)) as long_stream,
        proxy(folder / "b", *flags, str(short)) as short_stream,
    ):
        _cpu(long_stream, deltas, counted=True)
        _cpu(short_stream, deltas // SHORT_SHARE, counted=True)
        _without_us("loop", dialect, program, expected=deltas)
        for _ in range(rounds):
            ours.append(_cpu(long_stream, deltas))
            loops.append(_without_us("loop", dialect, program))
            relays.append(_without_us("bytes", dialect, program))
            several = [_cpu(short_stream, deltas // SHORT_SHARE) for _ in range(SHORT_SHARE)]
            shorts.append(sum(several))
    mine = median(ours)
    name = f"deltas per CPU second, chat, {dialect}"
    yield Figure("2", name, "smallest honest loop", median(loops) / mine, ">= 0.4", rounds)
    yield Figure("2", name, "relay of the bytes", median(relays) / mine, "", rounds)
    longer = f"{deltas:,} against {deltas // SHORT_SHARE:,}"
    yield Figure("2", f"{name}, {longer}", "ten short streams", median(shorts) / mine, "about 1", rounds)


def _cpu(server: Proxy, deltas: int, *, counted: bool = False) -> float:
    """CPU seconds that the proxy spends on one stream."""
    before = server.cpu()
    seen = asyncio.run(drain(server.port, chat_request("Go."), count=DELTA if counted else None))
    if counted and seen != deltas:
        raise BenchError(f"{seen} deltas came through of {deltas}")
    return max(server.cpu() - before, TICK)


def _without_us(kind: str, dialect: Dialect, program: Path, *, expected: int | None = None) -> float:
    """CPU seconds that a relay spends on the same stream; where deltas are `expected`, they are counted."""
    command = [sys.executable, "-m", "scripts.bench_lib.relay", kind, dialect, str(program)]
    with subprocess.Popen(
        command, cwd=ROOT, env=clean_environment({}), stdout=subprocess.PIPE, text=True
    ) as relay:
        assert relay.stdout is not None
        port = int(relay.stdout.readline())
        seen = asyncio.run(drain(port, chat_request("Go."), count=None if expected is None else DELTA))
        if expected is not None and seen != expected:
            raise BenchError(f"{seen} deltas came through the loop of {expected}")
        return float(relay.stdout.readline())
