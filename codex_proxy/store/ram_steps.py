"""Step memory in RAM: for requests that leave nothing on disk, and where the operator wants no other.

Bounded by count, bytes and age; what was remembered longest ago goes first. Not for several threads.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from codex_proxy.core.ids import Clock
from codex_proxy.store.base import StepEntry, StepMemory


class StepsInRam:
    """`store.base.Steps` of a server that has no store."""

    def __init__(self, settings: StepMemory, clock: Clock) -> None:
        self._kind = settings.kind
        self._ram = RamSteps(settings, clock)

    async def remember(self, owner: str, entries: Sequence[StepEntry], *, durable: bool = True) -> None:
        if self._kind != "off":
            self._ram.remember(owner, entries)

    async def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, StepEntry]:
        return self._ram.recall(owner, keys)


class RamSteps:
    """By owner and key, in the order of remembering."""

    def __init__(self, settings: StepMemory, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._entries: OrderedDict[tuple[str, bytes], StepEntry] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def remember(self, owner: str, entries: Sequence[StepEntry]) -> None:
        now = self._clock.epoch()
        for entry in entries:
            self.forget(owner, entry.key)
            self._entries[owner, entry.key] = StepEntry(entry.key, entry.value, now)
            self._bytes += len(entry.value)
        self.expire(now)

    def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, StepEntry]:
        since = self._clock.epoch() - self._settings.age
        found = ((key, self._entries.get((owner, key))) for key in keys)
        return {key: entry for key, entry in found if entry is not None and entry.created > since}

    def forget(self, owner: str, key: bytes) -> None:
        gone = self._entries.pop((owner, key), None)
        if gone is not None:
            self._bytes -= len(gone.value)

    def expire(self, now: float) -> int:
        """Drops what is too old or too much; how many entries."""
        settings, dropped = self._settings, 0
        while self._entries:
            (owner, key), oldest = next(iter(self._entries.items()))
            if (
                oldest.created > now - settings.age
                and len(self._entries) <= settings.max_entries
                and self._bytes <= settings.max_bytes
            ):
                break
            self.forget(owner, key)
            dropped += 1
        return dropped
