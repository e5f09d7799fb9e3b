"""The tokens that turns have used, by owner (key), model and hour.

`UsageRecorder` adds them up in RAM, and writes the sums to a ledger about once a second, so that the end of a turn does
not wait for the disk; a ledger that cannot be written gets them later. The ledger is the store; `RamUsage` is for a
server without one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator, Sequence
from typing import Final, Protocol, TypeAlias

import msgspec
import structlog

from codex_proxy.core.caches import OwnedEntries
from codex_proxy.core.events import Spending
from codex_proxy.core.faults import Fault
from codex_proxy.core.interfaces import Clock, keep_until_done
from codex_proxy.core.tokens import HOUR, Figures, UsageSum
from codex_proxy.store.values import StoreError

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
        before = self._waiting.get(key)
        self._waiting[key] = figures if before is None else before + figures
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
