"""The tokens that turns have used, by owner (key), model and hour. `RamUsage` is for a server without a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from codex_proxy.core.caches import OwnedEntries
from codex_proxy.core.tokens import Figures, UsageSum

MAX_FIGURE: Final = 1 << 48
"""The most that one turn may add, so that sums fit into SQLite's integers."""


class UsageEntry(msgspec.Struct, frozen=True):
    """The sums of the hour that begins at `hour` (seconds since 1970)."""

    owner: str
    model: str
    hour: int
    figures: Figures


class UsageQuery(msgspec.Struct, frozen=True, kw_only=True):
    """The hours from `start` to before `end` (seconds since 1970), in buckets of `width` seconds."""

    owner: str | None
    """The owner whose sums are wanted; None: all, with separate sums."""
    start: int
    end: int
    width: int
    """A multiple of 3600; buckets begin at multiples of it since 1970."""
    by_model: bool = False


class UsageLedger(Protocol):
    """Sums by hour, owner and model, kept for about a year."""

    async def add_usage(self, entries: Sequence[UsageEntry]) -> None:
        """Adds all entries, or none if it raises."""

    async def usage(self, query: UsageQuery) -> list[UsageSum]:
        """Returns the sums, ordered by time, owner and model, without empty buckets."""


MAX_ENTRIES: Final = 20_000
"""Maximum entries in memory: some MB."""

NO_FIGURES: Final = Figures()


class RamUsage:
    """A `UsageLedger` in RAM. Above `max_entries` the owner with most loses its oldest."""

    def __init__(self, max_entries: int = MAX_ENTRIES) -> None:
        self._max_entries = max_entries
        self._figures: OwnedEntries[tuple[int, str, str], Figures] = OwnedEntries(lambda key, _: key[1])

    async def add_usage(self, entries: Sequence[UsageEntry]) -> None:
        for entry in entries:
            key = (entry.hour, entry.owner, entry.model)
            self._figures[key] = self._figures.get(key, NO_FIGURES) + entry.figures
            if len(self._figures) > self._max_entries:
                del self._figures[self._figures.oldest_of_most()]

    async def usage(self, query: UsageQuery) -> list[UsageSum]:
        sums: dict[tuple[int, str, str], Figures] = {}
        everybody = query.owner is None
        for (hour, owner, model), figures in self._figures.items():
            if (everybody or owner == query.owner) and query.start <= hour < query.end:
                start = hour - hour % query.width
                key = (start, owner if everybody else "", model if query.by_model else "")
                sums[key] = sums.get(key, NO_FIGURES) + figures
        return [
            UsageSum(start, model, sums[start, owner, model], owner) for start, owner, model in sorted(sums)
        ]
