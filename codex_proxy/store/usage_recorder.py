"""Adds up tokens in RAM, and writes the sums to the ledger about once a second, so that the end of a turn does not wait
for the disk. A ledger that cannot be written gets them later.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from typing import Final, Protocol, TypeAlias

import structlog

from codex_proxy.core.caches import OwnedEntries
from codex_proxy.core.events import Spending
from codex_proxy.core.faults import Fault
from codex_proxy.core.interfaces import Clock, keep_until_done
from codex_proxy.core.tokens import HOUR, Figures
from codex_proxy.store.usage import MAX_FIGURE, NO_FIGURES, UsageEntry, UsageLedger
from codex_proxy.store.values import StoreError

log = structlog.get_logger(__name__)

FLUSH_SECONDS: Final = 1.0
MAX_WAITING: Final = 10_000
"""Maximum sums that wait for a ledger that cannot write; the owner with most loses further ones."""
MAX_MODEL_NAME: Final = 128
"""Maximum characters of a model's name, which a client may choose."""


_Key: TypeAlias = tuple[str, str, int]
"""Owner, model and hour."""


def _no_sums() -> OwnedEntries[_Key, Figures]:
    return OwnedEntries(lambda key, _: key[0])


class UsageSource(Protocol):
    """Knows the tokens that a turn has used so far, and whether it has failed."""

    def spending(self) -> Spending: ...


class UsageRecorder:
    """Records the usage of turns. `durable`: the ledger's sums survive a restart."""

    def __init__(self, ledger: UsageLedger, clock: Clock, *, durable: bool) -> None:
        self.ledger = ledger
        self.durable = durable
        self.since = int(clock.epoch())
        """When this server started, in seconds since 1970."""
        self._clock = clock
        self._waiting = _no_sums()
        self._flushing: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._writes: set[asyncio.Task[None]] = set()

    @contextlib.contextmanager
    def turn(self, owner: str, model: str, source: UsageSource) -> Iterator[None]:
        """Records at its exit what `source` reports. A `Fault` counts as failed."""
        failed = False
        try:
            yield
        except Fault:
            failed = True
            raise
        finally:
            self._note(owner, model, source.spending(), failed=failed)

    def _note(self, owner: str, model: str, spending: Spending, *, failed: bool) -> None:
        now = int(self._clock.epoch())
        key = (owner, model[:MAX_MODEL_NAME], now - now % HOUR)
        self._add(key, _figures(spending, failed=failed))
        if self._flushing is None or self._flushing.done():
            self._flushing = asyncio.get_running_loop().create_task(self._flush_soon())

    def _add(self, key: _Key, figures: Figures) -> None:
        self._waiting[key] = self._waiting.get(key, NO_FIGURES) + figures
        if len(self._waiting) > MAX_WAITING:
            del self._waiting[self._waiting.oldest_of_most()]

    async def _flush_soon(self) -> None:
        await asyncio.sleep(FLUSH_SECONDS)
        await self._try_to_flush()

    async def _try_to_flush(self) -> None:
        try:
            await self.flush()
        except StoreError as error:
            log.warning("usage_not_written", reason=str(error))

    @property
    def waiting(self) -> bool:
        """Whether there are sums that are not in the ledger yet."""
        return bool(self._waiting) or self._writing.locked()

    async def flush(self) -> None:
        """Writes the sums, to the end also if the caller is cancelled. If that fails, keeps them and raises
        `StoreError`.
        """
        writing = asyncio.get_running_loop().create_task(self._write())
        await asyncio.shield(keep_until_done(self._writes, writing))

    async def _write(self) -> None:
        async with self._writing:
            waiting, self._waiting = self._waiting, _no_sums()
            if not waiting:
                return
            try:
                await self.ledger.add_usage([UsageEntry(*key, figures) for key, figures in waiting.items()])
            except Exception:
                for key, figures in waiting.items():
                    self._add(key, figures)
                raise

    async def close(self) -> None:
        """Writes the remaining sums; a failure is logged."""
        if self._flushing is not None:
            self._flushing.cancel()
            await asyncio.gather(self._flushing, return_exceptions=True)
        await self._try_to_flush()


def _figures(spending: Spending, *, failed: bool) -> Figures:
    tokens = spending.tokens
    counts = (tokens.input, tokens.cached, tokens.output, tokens.reasoning)
    # An agent may report any number.
    input, cached, output, reasoning = [max(0, min(count, MAX_FIGURE)) for count in counts]
    return Figures(
        turns=1,
        failed=int(failed or spending.failed),
        estimated=int(spending.estimated),
        input=input,
        cached=cached,
        output=output,
        reasoning=reasoning,
    )
