"""Step memory: what is kept of a turn that ended with tool calls, for the request that brings their outputs.

`StepMemory` is the interface; `RamStepMemory` is here, and the store is the other implementation. The settings choose
which. What an entry says is made and read by `tools.replay`. An entry that is lost costs the model its own reasoning
of that step, and nothing else.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec


class StepMemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where steps are remembered and how many. On disk they are bounded by age and by `Retention.max_bytes`."""

    kind: Literal["disk", "ram", "off"] = "disk"
    age: float = 86400.0
    """Seconds; a client that has not answered a call for a day will not."""
    max_entries: int = 100
    """In RAM; `MAX_CONVERSATION_HISTORY`."""
    max_bytes: int = 64 << 20
    """In RAM, values only: encrypted reasoning is some KiB, an image in an output up to some MiB."""


class StepMemory(Protocol):
    """Remembers entries by owner and key for `StepMemorySettings.age` seconds."""

    async def remember(self, owner: str, entries: Mapping[bytes, bytes], *, durable: bool = True) -> None:
        """Saves values by key, in place of earlier ones. Not `durable`: they may not reach the disk, since the client
        has said `store: false`."""
        ...

    async def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """The values of those keys that are known."""
        ...


class _Entry(msgspec.Struct, frozen=True):
    value: bytes
    created: float
    """Seconds since 1970."""


class RamStepMemory:
    """A `StepMemory` that ends with the process. Bounded by count, bytes and age; what was remembered longest ago goes
    first. Not for several threads."""

    def __init__(self, settings: StepMemorySettings, epoch: Callable[[], float]) -> None:
        """`epoch` gives the seconds since 1970."""
        self._settings = settings
        self._epoch = epoch
        self._entries: OrderedDict[tuple[str, bytes], _Entry] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    async def remember(self, owner: str, entries: Mapping[bytes, bytes], *, durable: bool = True) -> None:
        if self._settings.kind == "off":
            return
        now = self._epoch()
        for key, value in entries.items():
            self.forget(owner, key)
            self._entries[owner, key] = _Entry(value, now)
            self._bytes += len(value)
        self.expire(now)

    async def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        since = self._epoch() - self._settings.age
        found = ((key, self._entries.get((owner, key))) for key in keys)
        return {key: entry.value for key, entry in found if entry is not None and entry.created > since}

    def forget(self, owner: str, key: bytes) -> None:
        """Drops an entry, if there is one."""
        gone = self._entries.pop((owner, key), None)
        if gone is not None:
            self._bytes -= len(gone.value)

    def expire(self, now: float) -> int:
        """Drops entries that are too old or too many. Returns the number of those that are left."""
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
