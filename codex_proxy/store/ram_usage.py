"""Usage in RAM: where the operator wants no store. It ends with the process, and the oldest hours go first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from codex_proxy.store.usage import Figures, UsageEntry, UsageQuery, UsageSum

MAX_ENTRIES: Final = 20_000
"""Some MB: a month of thirty pairs of owner and model that are busy in every hour."""

NOTHING: Final = Figures()


class RamUsage:
    """A `UsageLedger` without a disk."""

    def __init__(self, most: int = MAX_ENTRIES) -> None:
        self._most = most
        self._figures: dict[tuple[int, str, str], Figures] = {}
        """By hour, owner and model."""

    async def add_usage(self, entries: Sequence[UsageEntry]) -> None:
        for entry in entries:
            key = (entry.hour, entry.owner, entry.model)
            self._figures[key] = self._figures.get(key, NOTHING) + entry.figures
        if len(self._figures) > self._most:
            for key in sorted(self._figures)[: len(self._figures) - self._most]:
                del self._figures[key]

    async def usage(self, query: UsageQuery) -> list[UsageSum]:
        sums: dict[tuple[int, str, str], Figures] = {}
        everybody = query.owner is None
        for (hour, owner, model), figures in self._figures.items():
            if (everybody or owner == query.owner) and query.start <= hour < query.end:
                start = hour - hour % query.width
                key = (start, owner if everybody else "", model if query.by_model else "")
                sums[key] = sums.get(key, NOTHING) + figures
        return [
            UsageSum(start, model, sums[start, owner, model], owner) for start, owner, model in sorted(sums)
        ]
