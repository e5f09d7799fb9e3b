"""Step memory: the model's own items (such as encrypted reasoning) of a step that ended with tool calls, to be sent
again with their outputs. `RamStepMemory` here, the store on disk; `tools.replay` writes and reads the entries.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec

from codex_proxy.core.caches import OwnedEntries


class StepMemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where entries are kept, and their limits. Above a limit the oldest entry of the owner that has most is
    removed. On disk only `age` applies.
    """

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
        self._entries: OwnedEntries[tuple[str, bytes], _Entry] = OwnedEntries(
            owner_of=lambda key, _: key[0], size_of=lambda entry: len(entry.value)
        )

    def __len__(self) -> int:
        return len(self._entries)

    async def remember(self, owner: str, entries: Mapping[bytes, bytes], *, durable: bool = True) -> None:
        if self._settings.kind == "off":
            return
        now = self._epoch()
        for key, value in entries.items():
            self.forget(owner, key)
            self._entries[owner, key] = _Entry(value, now)
        self.expire(now)

    async def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        since = self._epoch() - self._settings.age
        found = ((key, self._entries.get((owner, key))) for key in keys)
        return {key: entry.value for key, entry in found if entry is not None and entry.created > since}

    def forget(self, owner: str, key: bytes) -> None:
        self._entries.pop((owner, key), None)

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
            return self._entries.oldest_of_most()
        return self._entries.oldest_of_largest() if self._entries.size > settings.max_bytes else None
