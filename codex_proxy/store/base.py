"""What every engine does in the same way: the part of the step memory in RAM, and which responses are in use."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence

from codex_proxy.core.interfaces import Clock
from codex_proxy.core.step_memory import RamStepMemory, StepMemorySettings
from codex_proxy.store.interface import ContextLimits, Retention


class StoreBase(ABC):
    """A store with its settings. `memory` are those of the step memory."""

    def __init__(
        self,
        *,
        clock: Clock,
        retention: Retention | None = None,
        memory: StepMemorySettings | None = None,
        limits: ContextLimits | None = None,
    ) -> None:
        self._clock = clock
        self._retention = retention or Retention()
        self._memory = memory or StepMemorySettings()
        self._limits = limits or ContextLimits()
        self._ram = RamStepMemory(self._memory, clock.epoch)
        self._continued: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Owner and id of responses in use, and since when: a turn that is not stored yet has read their context, or
        they have just ended.
        """

    @property
    def _now(self) -> float:
        return self._clock.epoch()

    async def remember(self, owner: str, entries: Mapping[bytes, bytes], *, durable: bool = True) -> None:
        if not entries:
            return
        if durable and self._memory.kind == "disk":
            await self._save_steps(owner, entries)
            for key in entries:  # an older one in RAM must not hide it
                self._ram.forget(owner, key)
        else:
            await self._ram.remember(owner, entries)

    async def recall(self, owner: str, keys: Sequence[bytes]) -> dict[bytes, bytes]:
        found = await self._ram.recall(owner, keys)
        missing = [key for key in keys if key not in found]
        if missing and self._memory.kind == "disk":
            found |= await self._load_steps(owner, missing, self._now - self._memory.age)
        return found

    @abstractmethod
    async def _save_steps(self, owner: str, entries: Mapping[bytes, bytes]) -> None:
        """Saves entries of the step memory."""

    @abstractmethod
    async def _load_steps(self, owner: str, keys: Sequence[bytes], since: float) -> dict[bytes, bytes]:
        """Returns the saved entries of these keys, if saved after `since` (seconds since 1970). Raises
        `StoreDamaged`.
        """

    def _note_in_use(self, owner: str, response_id: str) -> None:
        if self._retention.max_conversations is not None:
            self._continued[owner, response_id] = self._now
            self._continued.move_to_end((owner, response_id))

    def _in_use(self) -> frozenset[tuple[str, str]]:
        """Returns owner and id of the responses in use, whose chains are not removed for their number."""
        since = self._now - self._retention.spared
        while self._continued and next(iter(self._continued.values())) < since:
            self._continued.popitem(last=False)
        return frozenset(self._continued)
