"""Step memory: the model's own items (such as encrypted reasoning) of a step (one call of the model) that ended
with tool calls. They are sent to the model again with the request that has the outputs of these calls.

`StepMemory` is the interface. `RamStepMemory` implements it here, and the store implements it on disk; the settings
choose one. `tools.replay` writes and reads the entries. If an entry is lost, the model does not see its own
reasoning of that step again, and the turn continues without it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, Protocol

import msgspec


class StepMemorySettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where the step memory keeps its entries (`kind`; `off`: nowhere), and its limits; above a limit, the oldest
    entries are removed. In RAM all limits apply; on disk only `age` applies, and the limit `Retention.max_bytes` of
    the whole store.
    """

    kind: Literal["disk", "ram", "off"] = "disk"
    age: float = 86400.0
    """Seconds for which an entry is kept. A client that has not answered a call within a day is not expected to."""
    max_entries: int = 100
    """The most entries in RAM; the setting `MAX_CONVERSATION_HISTORY`."""
    max_bytes: int = 64 << 20
    """The most bytes of all values in RAM. Encrypted reasoning takes some KiB, an image in an output up to some MiB."""


class StepMemory(Protocol):
    """The interface of a step memory: a map from an owner (the name of an API key) and a key to a value, both of
    bytes, that keeps entries for `StepMemorySettings.age` seconds.
    """

    async def remember(self, owner: str, entries: Mapping[bytes, bytes], *, durable: bool = True) -> None:
        """Saves `entries` (values by key) for the owner, and replaces earlier values of these keys; does nothing if
        the kind is `off`. If `durable` is false, the values are kept in RAM only, because the client has sent
        `store: false`. An implementation on disk may raise `StoreUnavailable`.
        """
        ...

    async def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        """Returns the owner's values of those `keys` that are known, by key. An implementation on disk may raise
        `StoreUnavailable`.
        """
        ...


class _Entry(msgspec.Struct, frozen=True):
    value: bytes
    created: float
    """When the entry was saved, in seconds since 1970."""


class RamStepMemory:
    """A `StepMemory` that is kept in RAM and lost when the process ends. Number, bytes and age of its entries are
    limited; the oldest are removed first. It is not thread-safe."""

    def __init__(self, settings: StepMemorySettings, epoch: Callable[[], float]) -> None:
        """`epoch` returns the seconds since 1970."""
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
        """Removes the entry `key` of an owner, if there is one."""
        gone = self._entries.pop((owner, key), None)
        if gone is not None:
            self._bytes -= len(gone.value)

    def expire(self, now: float) -> int:
        """Removes the entries that are too old at `now` (seconds since 1970), and the oldest ones while they are
        too many or too large. Returns the number of removed entries.
        """
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
