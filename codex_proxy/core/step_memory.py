"""Step memory: the model's own items (such as encrypted reasoning) of a step that ended with tool calls, to be sent
again with their outputs. `RamStepMemory` here, the store on disk; `tools.replay` writes and reads the entries.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec


class StepMemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where entries are kept, and the limits above which the oldest of the owner with most go; on disk only `age`."""

    kind: Literal["disk", "ram", "off"] = "disk"
    age: float = 86400.0
    """The seconds that an entry is kept: a client that has not answered within a day will not."""
    max_entries: int = 100
    """Maximum entries in RAM (`MAX_CONVERSATION_HISTORY`)."""
    max_bytes: int = 64 << 20
    """Maximum bytes in RAM. Encrypted reasoning takes some KiB, an image up to some MiB."""


class StepMemory(Protocol):
    """Stores bytes by owner (the name of an API key) and key for `StepMemorySettings.age`."""

    async def remember(self, owner: str, entries: Mapping[bytes, bytes], *, durable: bool = True) -> None:
        """Saves values by key. `durable=False` (`store: false`): in RAM only. May raise `StoreUnavailable`."""

    async def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Returns the known values by key. May raise `StoreUnavailable`."""


class _Entry(msgspec.Struct, frozen=True):
    value: bytes
    created: float
    """When the entry was made, in seconds since 1970."""


class RamStepMemory:
    """A step memory in RAM, limited in number, size and age. Not thread-safe."""

    def __init__(self, settings: StepMemorySettings, epoch: Callable[[], float]) -> None:
        """`epoch` returns seconds since 1970."""
        self._settings = settings
        self._epoch = epoch
        self._entries: OrderedDict[tuple[str, bytes], _Entry] = OrderedDict()
        self._bytes = 0
        self._count_of: Counter[str] = Counter()
        self._bytes_of: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._entries)

    async def remember(self, owner: str, entries: Mapping[bytes, bytes], *, durable: bool = True) -> None:
        if self._settings.kind == "off":
            return
        now = self._epoch()
        for key, value in entries.items():
            self.forget(owner, key)
            self._entries[owner, key] = _Entry(value, now)
            self._count(owner, 1, len(value))
        self.expire(now)

    async def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        since = self._epoch() - self._settings.age
        found = ((key, self._entries.get((owner, key))) for key in keys)
        return {key: entry.value for key, entry in found if entry is not None and entry.created > since}

    def forget(self, owner: str, key: bytes) -> None:
        gone = self._entries.pop((owner, key), None)
        if gone is not None:
            self._count(owner, -1, -len(gone.value))

    def _count(self, owner: str, entries: int, size: int) -> None:
        self._bytes += size
        self._count_of[owner] += entries
        self._bytes_of[owner] += size
        if not self._count_of[owner]:
            del self._count_of[owner], self._bytes_of[owner]

    def expire(self, now: float) -> int:
        """Removes what is too old at `now` (seconds since 1970) or above the limits. Returns how many."""
        dropped = 0
        while (gone := self._next_to_go(now)) is not None:
            self.forget(*gone)
            dropped += 1
        return dropped

    def _next_to_go(self, now: float) -> tuple[str, bytes] | None:
        if not self._entries:
            return None
        settings, (oldest, entry) = self._settings, next(iter(self._entries.items()))
        if entry.created <= now - settings.age:
            return oldest
        if len(self._entries) > settings.max_entries:
            most = self._count_of
        elif self._bytes > settings.max_bytes:
            most = self._bytes_of
        else:
            return None
        owner = max(most, key=most.__getitem__)
        return next(each for each in self._entries if each[0] == owner)
