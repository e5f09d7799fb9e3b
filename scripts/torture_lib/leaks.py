"""Compares what an idle server has open with a baseline. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from scripts.torture_lib.watched_server import Census

ROOM = {"task": 4, "process": 4, "descriptor": 16, "threads": 32}
"""How many more than at the baseline are no leak, by kind: pools may not have been full then. A process of an agent has
four descriptors here, and asyncio keeps 32 threads for functions that wait.
"""


def open_things(census: Census, processes: Mapping[str, int]) -> Counter[str]:
    """Returns the numbers of open things by kind. `processes` are the server's children, by their command."""
    found: Counter[str] = Counter()
    for kind, counts in (
        ("task", census["tasks"]),
        ("descriptor", census["descriptors"]),
        ("process", processes),
    ):
        for name, number in counts.items():
            found[f"{kind} {name}"] += number
    found["threads"] = sum(census["threads"].values())
    return found


def leaks(baseline: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Returns the kinds of which there are more than at the baseline plus `ROOM`."""
    found = []
    for kind, number in now.items():
        before = baseline.get(kind, 0)
        if number > before + ROOM[kind.split()[0]]:
            found.append(
                f"{number - before} more of this are left than at the start, when nobody asks: {kind}"
            )
    return found
