"""A clock that may be wrong: what it lets expire is kept until the clock has been steady."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from codex_proxy.app import store_lifecycle
from codex_proxy.app.store_lifecycle import StoreLifecycle
from codex_proxy.store.retention import JUMP_SECONDS, STEADY_SECONDS, AgeClock
from codex_proxy.store.sqlite.store import SqliteStore
from codex_proxy.store.store import Store
from codex_proxy.store.values import Retention
from tests.store.stored import OWNER, conversation, turn
from tests.waiting import PATIENCE, eventually

DAY = 86400.0


class WrongClock:
    """The time of day and the time since the machine's start, each as a test sets it."""

    def __init__(self) -> None:
        self.day = 1_700_000_000.0
        self.running = 0.0

    def epoch(self) -> float:
        return self.day

    def monotonic(self) -> float:
        return self.running


def test_a_clock_that_goes_on_from_the_last_use_is_believed() -> None:
    ages = AgeClock(1000.0)
    assert ages.now(1000.0 + DAY, 5.0) == 1000.0 + DAY
    assert AgeClock(None).now(1e9, 0.0) == 1e9


def test_a_clock_far_ahead_of_the_last_use_is_believed_when_it_was_steady_for_an_hour() -> None:
    ages = AgeClock(0.0)
    assert ages.now(400 * DAY, 0.0) == JUMP_SECONDS
    assert ages.now(400 * DAY + STEADY_SECONDS - 1, STEADY_SECONDS - 1) == JUMP_SECONDS
    assert ages.now(400 * DAY + STEADY_SECONDS, STEADY_SECONDS) == 400 * DAY + STEADY_SECONDS


def test_a_clock_that_is_corrected_in_time_has_let_nothing_expire() -> None:
    ages = AgeClock(0.0)
    assert ages.now(400 * DAY, 0.0) == JUMP_SECONDS
    assert ages.now(DAY, 600.0) == DAY
    assert ages.now(DAY + 600, 1200.0) == DAY + 600


def test_a_clock_that_jumps_while_the_server_runs_is_not_believed_at_once() -> None:
    ages = AgeClock(0.0)
    assert ages.now(DAY, 0.0) == DAY
    assert ages.now(400 * DAY, 600.0) == DAY + JUMP_SECONDS


async def test_the_last_use_is_the_newest_of_responses_and_conversations(store: Store) -> None:
    assert await store.last_use() is None
    await turn(store, "resp_1", created=500.0)
    assert await store.last_use() == 500.0
    await store.add_conversation(conversation("conv_1"))
    assert (await store.last_use() or 0) > 500.0


async def test_a_server_that_starts_with_a_clock_far_ahead_keeps_its_responses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_lifecycle, "PRUNE_SECONDS", 0.0)
    clock, rounds = WrongClock(), 0

    class Watched(SqliteStore):
        async def vacuum(self) -> int:  # the step behind the removal
            nonlocal rounds
            rounds += 1
            return await super().vacuum()

    store = await Watched.open(tmp_path / "store.sqlite", clock=clock, retention=Retention(age=30 * DAY))
    await turn(store, "resp_1", created=clock.day)
    clock.day += 400 * DAY
    lifecycle = StoreLifecycle(store, clock, durable=True)
    try:
        await eventually(lambda: rounds > 1)
        assert await store.response(OWNER, "resp_1") is not None
        clock.day += STEADY_SECONDS
        clock.running += STEADY_SECONDS
        before = rounds
        await eventually(lambda: rounds > before + 1)
        assert await store.response(OWNER, "resp_1") is None
    finally:
        await lifecycle.close()


async def test_a_server_that_starts_with_a_clock_far_behind_says_what_will_be_lost(tmp_path: Path) -> None:
    swept = asyncio.Event()

    class Watched(SqliteStore):
        async def sweep(self) -> None:  # the step behind the warning
            swept.set()
            await super().sweep()

    clock = WrongClock()
    for days, warns in ((0, False), (-1, False), (-40, True)):
        store = await Watched.open(tmp_path / f"{days}.sqlite", clock=clock)
        await turn(store, "resp_1", created=clock.day)
        now = WrongClock()
        now.day += days * DAY
        swept.clear()
        with capture_logs() as logged:
            lifecycle = StoreLifecycle(store, now, durable=True)
            await asyncio.wait_for(swept.wait(), PATIENCE)
            await lifecycle.close()
        assert [line["days"] for line in logged if line["event"] == "clock_behind"] == [40] * warns
