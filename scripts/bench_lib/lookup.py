"""Row 8: reading a long chain and a long conversation from the store, against short ones, in turns."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from statistics import median

from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.values import PageRequest
from scripts.bench_lib.figures import Figure
from scripts.bench_lib.servers import BenchError
from tests.store.stored import OWNER, Hands, conversation, item, turn

LONGER = 10
"""How many times the turns of a short chain a long one has."""
LARGER = 100
"""How many times the items of a short conversation a long one has."""
PAGE = 20
BATCH = 1000

Read = Callable[[], Awaitable[int]]
"""Reads items, and returns how many."""


def rows(folder: Path, *, quick: bool) -> Iterator[Figure]:
    turns, items, rounds = (10, PAGE, 3) if quick else (100, 100, 300)
    folder.mkdir(parents=True)
    chains, pages = asyncio.run(_measure(folder / "store.db", turns, items, rounds))
    for what, size, times, (long, short) in (
        ("time per item of the context of a chain, turns", turns, LONGER, chains),
        (f"time of a page of {PAGE} items of a conversation, items", items, LARGER, pages),
    ):
        name = f"{what}: {size * times:,}"
        value = f"{long * 1e6:.1f} us an item"
        yield Figure("8", name, f"{size:,}", long / short, "about 1", rounds, value)


async def _measure(
    path: Path, turns: int, items: int, rounds: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Returns the seconds per item: of the long chain and the short one, and of a page of either conversation."""
    store = await SqliteStore.open(path, clock=Hands())
    try:
        chains = await _chain(store, turns * LONGER), await _chain(store, turns)
        pages = await _conversation(store, items * LARGER), await _conversation(store, items)
        return await _compare(*chains, rounds), await _compare(*pages, rounds)
    finally:
        await store.close()


async def _chain(store: SqliteStore, turns: int) -> Read:
    """Stores a chain. Returns a function that reads its context."""
    ids = [f"resp_{turns}_{number}" for number in range(turns)]
    for before, id in zip([None, *ids], ids, strict=False):
        await turn(store, id, after=before)

    async def read() -> int:
        found = sum(len(each.input) + len(each.output) for each in await store.context(OWNER, ids[-1]))
        return _all(found, 2 * turns)

    return read


async def _conversation(store: SqliteStore, size: int) -> Read:
    """Stores a conversation. Returns a function that reads a page from its middle, or its only page."""
    id = f"conv_{size}"
    everything = [item(f"item_{size}_{number}") for number in range(size)]
    await store.add_conversation(conversation(id))
    for start in range(0, size, BATCH):
        await store.append_items(OWNER, id, everything[start : start + BATCH])
    page = PageRequest(limit=PAGE, order="asc", after=None if size == PAGE else everything[size // 2].id)

    async def read() -> int:
        return _all(len((await store.items(OWNER, id, page)).items), PAGE)

    return read


def _all(found: int, expected: int) -> int:
    if found != expected:
        raise BenchError(f"{found} items were read of {expected}")
    return found


async def _compare(long: Read, short: Read, rounds: int) -> tuple[float, float]:
    """Returns the median seconds per item of both, measured in turns."""
    sides: tuple[tuple[Read, list[float]], ...] = ((long, []), (short, []))
    for read, _ in sides:  # so that neither pays for what happens once
        await read()
    for _ in range(rounds):
        for read, took in sides:
            began = time.perf_counter()
            found = await read()
            took.append((time.perf_counter() - began) / found)
    return median(sides[0][1]), median(sides[1][1])
