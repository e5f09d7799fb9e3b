"""Row 2: one long stream. CPU of the proxy per delta, against the smallest loop that does the same work."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Literal

from scripts.bench_lib.children import Dialect, make_child
from scripts.bench_lib.figures import Figure
from scripts.bench_lib.servers import (
    DELTA,
    RESPONSES_DELTA,
    BenchError,
    Proxy,
    chat_request,
    clean_environment,
    drain,
    proxy,
    responses_request,
)

ROOT = Path(__file__).resolve().parents[2]
SHORT_SHARE = 10
"""How many times shorter the short stream is, which shows whether a delta costs more in a long one."""
TICK = 0.01
"""The resolution of another process's CPU time, in seconds."""


Surface = Literal["chat", "responses"]
SURFACES: dict[Surface, tuple[Callable[[str], bytes], bytes]] = {
    "chat": (chat_request, DELTA),
    "responses": (responses_request, RESPONSES_DELTA),
}
"""The request for a stream, and a text in each of its deltas, by API."""


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    deltas, rounds = (2_000, 1) if quick else (200_000, 5)
    for dialect in ("proto", "app-server"):
        program = make_child(folder / dialect / "long", dialect, deltas)
        short = make_child(folder / dialect / "short", dialect, deltas // SHORT_SHARE)
        flags = ("--agent", f"codex-{dialect}", "--codex-bin")
        with (
            proxy(folder / dialect / "a", *flags, str(program)) as long_stream,
            proxy(folder / dialect / "b", *flags, str(short)) as short_stream,
        ):
            for surface in SURFACES:
                side = _Side(dialect, surface, program, deltas)
                yield from _compare(side, long_stream, short_stream, rounds)


@dataclass(frozen=True)
class _Side:
    """One API over one dialect."""

    dialect: Dialect
    surface: Surface
    program: Path
    deltas: int

    def cpu(self, server: Proxy, deltas: int = 0) -> float:
        """Returns the CPU seconds that the proxy spends on one stream; if `deltas` are expected, they are counted."""
        before = server.cpu()
        self._drain(server.port, deltas)
        return max(server.cpu() - before, TICK)

    def without_us(self, kind: str, deltas: int = 0) -> float:
        """Returns the CPU seconds that a relay spends on the same stream."""
        command = [sys.executable, "-m", "scripts.bench_lib.relay", kind, self.dialect, self.surface]
        with subprocess.Popen(
            [*command, str(self.program)],
            cwd=ROOT,
            env=clean_environment({}),
            stdout=subprocess.PIPE,
            text=True,
        ) as relay:
            assert relay.stdout is not None
            self._drain(int(relay.stdout.readline()), deltas)
            return float(relay.stdout.readline())

    def _drain(self, port: int, deltas: int) -> None:
        request, mark = SURFACES[self.surface]
        seen = asyncio.run(drain(port, request("Go."), count=mark if deltas else None))
        if seen != deltas:
            raise BenchError(f"{seen} deltas came through of {deltas}")


def _compare(side: _Side, long_stream: Proxy, short_stream: Proxy, rounds: int) -> Iterator[Figure]:
    deltas = side.deltas
    ours, loops, relays, shorts = [], [], [], []
    side.cpu(long_stream, deltas)
    side.cpu(short_stream, deltas // SHORT_SHARE)
    side.without_us("loop", deltas)
    for _ in range(rounds):
        ours.append(side.cpu(long_stream))
        loops.append(side.without_us("loop"))
        relays.append(side.without_us("bytes"))
        shorts.append(sum(side.cpu(short_stream) for _ in range(SHORT_SHARE)))
    mine = median(ours)
    name = f"deltas per CPU second, {side.surface}, {side.dialect}"
    value = f"{deltas / mine:,.0f}/s"
    yield Figure("2", name, "smallest honest loop", median(loops) / mine, ">= 0.4", rounds, value)
    yield Figure("2", name, "relay of the bytes", median(relays) / mine, "", rounds)
    longer = f"{deltas:,} against {deltas // SHORT_SHARE:,}"
    yield Figure("2", f"{name}, {longer}", "ten short streams", median(shorts) / mine, "about 1", rounds)
