"""What a server may have open when nobody asks for anything, and what is left of that when it was attacked. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from scripts.torture_lib.watched_server import Census

ROOM = {"task": 4, "process": 4, "descriptor": 16, "threads": 32}
"""So many more than at the baseline are no leak: pools that were not full then. A process of an agent has four
descriptors here, and asyncio keeps 32 threads for functions that wait.
"""


def open_things(census: Census, processes: Mapping[str, int]) -> Counter[str]:
    """Everything that is open, by its kind. `processes` are the server's children, by their command."""
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
    """Kinds of which there are more than at the baseline, beyond what pools explain."""
    found = []
    for kind, number in now.items():
        before = baseline.get(kind, 0)
        if number > before + ROOM[kind.split()[0]]:
            found.append(
                f"{number - before} more of this are left than at the start, when nobody asks: {kind}"
            )
    return found
