"""What every engine does in the same way: the part of the step memory in RAM, which responses are in use, and when rows
are removed.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Required, TypedDict, Unpack

from codex_proxy.core.interfaces import Clock
from codex_proxy.core.step_memory import RamStepMemory, StepMemorySettings
from codex_proxy.store.interface import ContextLimits, Pruned, Retention, StoreUnavailable
from codex_proxy.store.retention import Rule, prune


class StoreOptions(TypedDict, total=False):
    """What every engine is opened with. `memory` are the settings of the step memory."""

    clock: Required[Clock]
    retention: Retention | None
    memory: StepMemorySettings | None
    limits: ContextLimits | None


class StoreBase(ABC):
    """A store with its settings."""

    def __init__(self, **options: Unpack[StoreOptions]) -> None:
        self._clock = options["clock"]
        self._retention = options.get("retention") or Retention()
        self._memory = options.get("memory") or StepMemorySettings()
        self._limits = options.get("limits") or ContextLimits()
        self._ram = RamStepMemory(self._memory, self._clock.epoch)
        self._continued: OrderedDict[tuple[str, str], float] = OrderedDict()
        """Owner and id of responses in use, and since when: a turn that is not stored yet has read their context, or
        they have just ended.
        """
        self._sweeping: asyncio.Task[None] | None = None
        """The task that removes the rest of a large deletion, if any."""
        self._one_sweep = asyncio.Lock()

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

    # --- removal --------------------------------------------------------------------------------

    async def sweep(self) -> None:
        # One at a time: in SQLite the pieces of two would be combined into one long commit, and in PostgreSQL one
        # does not see what another is just removing.
        async with self._one_sweep:
            while await self._sweep_once():
                pass  # other writes come in between

    @abstractmethod
    async def _sweep_once(self) -> bool:
        """Removes some rows of deleted objects. Returns whether there may be more."""

    def _sweep_later(self) -> None:
        """Lets a task remove the rest of a deletion."""
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep_quietly())

    async def _sweep_quietly(self) -> None:
        # Nobody waits for it: where it cannot go on, the next `prune` or `sweep` does, and tells its caller why.
        with contextlib.suppress(StoreUnavailable):
            await self.sweep()

    async def _end_sweeping(self) -> None:
        if self._sweeping is not None:
            self._sweeping.cancel()
            await asyncio.wait([self._sweeping])

    async def prune(self, now: float | None = None) -> Pruned:
        now = self._now if now is None else now
        self._ram.expire(now)
        return await self._prune(now)

    async def _prune(self, now: float) -> Pruned:
        return await prune(self._apply, self.sweep, self._retention, self._memory.age, now)

    @abstractmethod
    async def _apply(self, rule: Rule) -> Pruned:
        """Applies a rule of retention in one short write. Returns how much it removed."""
