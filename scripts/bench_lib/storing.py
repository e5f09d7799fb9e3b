"""Row 6: a short response that is stored, against the same one that is not."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

from scripts.bench_lib.children import make_paced_child
from scripts.bench_lib.figures import Figure, quantile
from scripts.bench_lib.servers import proxy, responses_request, whole


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    rounds = 3 if quick else 400
    program = make_paced_child(folder / "child", deltas=20, every=0)
    flags = ("--agent", "codex-app-server", "--codex-bin", str(program))
    with proxy(folder, *flags) as server:
        stored, kept_nowhere = asyncio.run(_compare(server.port, rounds))
    for label, share in (("p50", 0.5), ("p99", 0.99)):
        on, off = quantile(stored, share), quantile(kept_nowhere, share)
        value = f"{(on - off) * 1000:.2f} ms more"
        yield Figure("6", f"a stored response, whole, {label}", "store: false", on / off, "", rounds, value)


async def _compare(port: int, rounds: int) -> tuple[list[float], list[float]]:
    """Returns the seconds of each request, one at a time, in turns."""
    sides = [responses_request("Go.", stream=False, store=store) for store in (True, False)]
    for request in sides * 3:
        await whole(port, request)
    taken: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for request, took in zip(sides, taken, strict=True):
            took.append(await whole(port, request))
    return taken
