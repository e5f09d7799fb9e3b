"""Row 9: Chat Completions passed on to a server of the same, against the plainest reverse proxy that aiohttp makes."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from scripts.bench_lib.figures import Figure, quantile
from scripts.bench_lib.servers import (
    BenchError,
    Proxy,
    drain,
    first_delta,
    messages_request,
    proxy,
    side_server,
)

AGAINST = "a plain aiohttp reverse proxy"
SIDES = "scripts.bench_lib.passing_sides"
STREAMS = 8
WORD = b'" word"'
"""The text of a delta."""
TICK = 0.01
"""The resolution of another process's CPU time, in seconds."""
EVERY = 10
"""Milliseconds between two deltas of a fast model."""


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    paced, flood, rounds, firsts = (20, 2_000, 1, 5) if quick else (400, 200_000, 5, 200)
    for spelling in ("compact", "blanks"):
        with _sides(folder / spelling, spelling) as sides:
            yield sides.cpu("at a model's pace", paced, EVERY, STREAMS, rounds, goal="<= 1.3")
            yield sides.cpu("as fast as they come", flood, 0, 1, rounds, goal="")
            if spelling == "compact":
                yield sides.first_byte(firsts)


@contextmanager
def _sides(folder: Path, spelling: str) -> Iterator[_Sides]:
    """Runs both sides before a server that writes its JSON in this way."""
    with side_server(SIDES, "upstream", spelling) as (_, port):
        url = f"http://127.0.0.1:{port}"
        flags = ("--agent", "openai-chat", "--upstream-url", url)
        with proxy(folder, *flags) as ours, side_server(SIDES, "reverse", url) as (process, reverse_port):
            yield _Sides(ours, Proxy(process, int(reverse_port)), spelling)


@dataclass(frozen=True)
class _Sides:
    ours: Proxy
    theirs: Proxy
    spelling: str

    def cpu(self, name: str, deltas: int, every: int, streams: int, rounds: int, *, goal: str) -> Figure:
        """Returns the CPU time of each process for the same deltas."""
        request = request_for(deltas, every)
        mine: list[float] = []
        plain: list[float] = []
        for side in (self.ours, self.theirs):  # so that neither pays for what happens once
            asyncio.run(_drain(side.port, request_for(50, 0), 1, 50))
        for _ in range(rounds):
            for side, spent in ((self.ours, mine), (self.theirs, plain)):
                before = side.cpu()
                asyncio.run(_drain(side.port, request, streams, deltas if every else 0))
                spent.append(side.cpu() - before)
        value = f"{median(mine) / (deltas * streams) * 1e6:.1f} us each"
        ratio = median(mine) / max(median(plain), TICK)
        return Figure(
            "9", f"CPU of a delta passed on, {self.spelling}, {name}", AGAINST, ratio, goal, rounds, value
        )

    def first_byte(self, rounds: int) -> Figure:
        """Returns the time until the first delta, measured in turns, one request at a time."""
        request = request_for(1, 0)

        async def measure() -> tuple[list[float], list[float]]:
            mine, plain = [], []
            for _ in range(rounds):
                mine.append(await first_delta(self.ours.port, request))
                plain.append(await first_delta(self.theirs.port, request))
            return mine, plain

        mine, plain = asyncio.run(measure())
        mine, plain = mine[rounds // 10 :], plain[rounds // 10 :]
        added = (quantile(mine, 0.5) - quantile(plain, 0.5)) * 1000
        ratio = quantile(mine, 0.5) / quantile(plain, 0.5)
        return Figure(
            "9",
            "first delta passed on, p50",
            AGAINST,
            ratio,
            "< 0.5 ms added",
            rounds,
            f"{added:.2f} ms added",
        )


def request_for(deltas: int, every: int, *, stream: bool = True) -> bytes:
    """Returns a request for so many deltas, one every `every` milliseconds."""
    messages = [{"role": "user", "content": "Go."}]
    return messages_request(messages, "model", stream=stream, model="bench", max_tokens=deltas, seed=every)


async def _drain(port: int, request: bytes, streams: int, deltas: int) -> None:
    count = WORD if deltas else None
    seen = await asyncio.gather(*(drain(port, request, count=count) for _ in range(streams)))
    if set(seen) != {deltas}:
        raise BenchError(f"{seen} deltas came through of {deltas}")
