"""What turns have cost: sums by owner, model and hour, in a file, in memory, and in RAM without a store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from codex_proxy.core.events import Spending, Usage
from codex_proxy.core.tokens import HOUR, Figures, UsageSum
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.store import Store
from codex_proxy.store.usage import MAX_FIGURE, RamUsage, UsageEntry, UsageLedger, UsageQuery, UsageRecorder
from codex_proxy.store.values import Retention, StoreUnavailable
from tests.store.conftest import Make
from tests.store.stored import OTHER, OWNER, Hands

DAY = 24 * HOUR
MIDNIGHT = 19_675 * DAY
ONE = Figures(turns=1, input=10, cached=4, output=5, reasoning=2)
FAILED = Figures(turns=1, failed=1)


def spent(hour: int, figures: Figures = ONE, *, owner: str = OWNER, model: str = "gpt") -> UsageEntry:
    return UsageEntry(owner, model, MIDNIGHT + hour * HOUR, figures)


def query(*, width: int = HOUR, hours: int = 48, by_model: bool = False, owner: str = OWNER) -> UsageQuery:
    return UsageQuery(
        owner=owner, start=MIDNIGHT, end=MIDNIGHT + hours * HOUR, width=width, by_model=by_model
    )


@pytest.fixture(params=["file", "memory", "ram"])
async def ledger(request: pytest.FixtureRequest, path: Path, clock: Hands) -> AsyncIterator[UsageLedger]:
    if request.param == "ram":
        yield RamUsage()
        return
    store = (
        await SqliteStore.open(path, clock=clock)
        if request.param == "file"
        else SqliteStore.in_memory(clock=clock)
    )
    yield store
    await store.close()


async def test_turns_of_one_hour_are_one_sum(ledger: UsageLedger) -> None:
    await ledger.add_usage([spent(1), spent(1)])
    await ledger.add_usage([spent(1, FAILED)])
    assert await ledger.usage(query()) == [UsageSum(MIDNIGHT + HOUR, "", ONE + ONE + FAILED)]


async def test_a_day_is_the_sum_of_its_hours(ledger: UsageLedger) -> None:
    await ledger.add_usage([spent(0), spent(23), spent(24)])
    assert await ledger.usage(query(width=DAY)) == [
        UsageSum(MIDNIGHT, "", ONE + ONE),
        UsageSum(MIDNIGHT + DAY, "", ONE),
    ]


async def test_models_are_distinguished_where_that_is_asked_for(ledger: UsageLedger) -> None:
    await ledger.add_usage([spent(0, model="b"), spent(0, model="a"), spent(1, model="b")])
    assert [(each.start, each.model) for each in await ledger.usage(query(by_model=True))] == [
        (MIDNIGHT, "a"),
        (MIDNIGHT, "b"),
        (MIDNIGHT + HOUR, "b"),
    ]
    assert [(each.model, each.figures.turns) for each in await ledger.usage(query(width=DAY))] == [("", 3)]


async def test_the_end_is_left_out_and_the_start_is_not(ledger: UsageLedger) -> None:
    await ledger.add_usage([spent(-1), spent(0), spent(2)])
    assert [each.start for each in await ledger.usage(query(hours=2))] == [MIDNIGHT]


async def test_an_owner_sees_nothing_of_another_one(ledger: UsageLedger) -> None:
    await ledger.add_usage([spent(0), spent(0, owner=OTHER)])
    assert [each.figures for each in await ledger.usage(query(owner=OTHER))] == [ONE]
    assert await ledger.usage(query(owner="somebody")) == []


async def test_the_usage_of_everybody_is_listed_by_owner(ledger: UsageLedger) -> None:
    await ledger.add_usage([spent(0), spent(1, model="other"), spent(0, owner=OTHER)])
    everybody = UsageQuery(owner=None, start=MIDNIGHT, end=MIDNIGHT + DAY, width=DAY)
    assert await ledger.usage(everybody) == [
        UsageSum(MIDNIGHT, "", ONE + ONE, OWNER),
        UsageSum(MIDNIGHT, "", ONE, OTHER),
    ]


async def test_sums_of_the_largest_figures_are_still_exact(ledger: UsageLedger) -> None:
    huge = Figures(turns=1, input=MAX_FIGURE, output=MAX_FIGURE)
    await ledger.add_usage([spent(hour, huge) for hour in range(48)])
    assert [each.figures.input for each in await ledger.usage(query(width=DAY))] == [24 * MAX_FIGURE] * 2


async def test_usage_is_there_after_the_store_was_opened_anew(path: Path, clock: Hands) -> None:
    store = await SqliteStore.open(path, clock=clock)
    await store.add_usage([spent(0)])
    await store.close()
    again = await SqliteStore.open(path, clock=clock)
    assert await again.usage(query()) == [UsageSum(MIDNIGHT, "", ONE)]
    await again.close()


async def test_sums_that_are_too_old_are_removed_and_others_stay(make: Make) -> None:
    store: Store = await make(retention=Retention(usage_age=float(2 * HOUR)))
    await store.add_usage([spent(hour) for hour in range(6)])
    assert (await store.prune(now=MIDNIGHT + 5.0 * HOUR)).usage == 3
    assert [each.start for each in await store.usage(query())] == [MIDNIGHT + n * HOUR for n in (3, 4, 5)]


async def test_without_a_store_the_oldest_hours_make_room() -> None:
    ram = RamUsage(max_entries=3)
    await ram.add_usage([spent(0), spent(1), spent(2)])
    await ram.add_usage([spent(3), spent(2)])
    assert [each.start for each in await ram.usage(query())] == [MIDNIGHT + n * HOUR for n in (1, 2, 3)]


async def test_without_a_store_an_owner_with_many_sums_displaces_none_of_another() -> None:
    ram = RamUsage(max_entries=3)
    await ram.add_usage([spent(0, owner=OTHER)])
    await ram.add_usage([spent(1, model=str(number)) for number in range(5)])
    assert [each.figures for each in await ram.usage(query(owner=OTHER))] == [ONE]
    assert [each.model for each in await ram.usage(query(by_model=True))] == ["3", "4"]


class FailingLedger(RamUsage):
    """A ledger that writes nothing until it may."""

    fails = True

    async def add_usage(self, entries: Sequence[UsageEntry]) -> None:
        if self.fails:
            raise StoreUnavailable("full")
        await super().add_usage(entries)


class OneCall:
    def spending(self) -> Spending:
        return Spending(Usage(input=10, output=5))


async def test_while_nothing_can_be_written_an_owner_with_many_sums_displaces_none_of_another(
    clock: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.store.usage.MAX_WAITING", 3)
    ledger = FailingLedger()
    recorder = UsageRecorder(ledger, clock, durable=True)
    for number in range(5):
        with recorder.turn(OWNER, str(number), OneCall()):
            pass
    with recorder.turn(OTHER, "gpt", OneCall()):
        pass
    with pytest.raises(StoreUnavailable):
        await recorder.flush()
    ledger.fails = False
    await recorder.close()
    everybody = UsageQuery(owner=None, start=0, end=1 << 40, width=DAY, by_model=True)
    assert [(each.owner, each.model) for each in await ledger.usage(everybody)] == [
        (OWNER, "3"),
        (OWNER, "4"),
        (OTHER, "gpt"),
    ]


class SlowLedger(RamUsage):
    """A ledger that writes when it may, and fails once if it is to."""

    def __init__(self, error: Exception | None = None) -> None:
        super().__init__()
        self.write_begun, self.may_write = asyncio.Event(), asyncio.Event()
        self._error = error

    async def add_usage(self, entries: Sequence[UsageEntry]) -> None:
        self.write_begun.set()
        await self.may_write.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error
        await super().add_usage(entries)


@pytest.mark.parametrize("error", [None, StoreUnavailable("full"), RuntimeError("a fault of this server")])
async def test_sums_are_written_once_even_if_who_has_asked_for_it_is_cancelled(
    clock: Hands, error: Exception | None
) -> None:
    ledger = SlowLedger(error)
    recorder = UsageRecorder(ledger, clock, durable=True)
    with recorder.turn(OWNER, "gpt", OneCall()):
        pass
    reader = asyncio.create_task(recorder.flush())
    await ledger.write_begun.wait()
    reader.cancel()
    await asyncio.wait({reader})
    ledger.may_write.set()
    await recorder.close()
    assert [each.figures.turns for each in await ledger.usage(query(hours=1 << 30, owner=OWNER))] == [1]
