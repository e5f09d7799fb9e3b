"""Whether a store takes writes: asked of the disk, but not each time that somebody asks."""

from __future__ import annotations

import asyncio

import pytest

from codex_proxy.store import health
from codex_proxy.store.health import FRESH_SECONDS, FRESH_TROUBLE_SECONDS, WriteCheck
from codex_proxy.store.store import Store
from codex_proxy.store.values import StoreDamaged, StoreUnavailable
from tests.store.stored import Hands


class Disk:
    """A store of which only the check is asked."""

    def __init__(self) -> None:
        self.checks = 0
        self.full = False
        self.fault: Exception | None = None
        self.answers = asyncio.Event()
        self.answers.set()

    async def check_writable(self) -> None:
        self.checks += 1
        await self.answers.wait()
        if self.full:
            raise StoreUnavailable("the disk is full")
        if self.fault is not None:
            raise self.fault


@pytest.fixture
def disk() -> Disk:
    return Disk()


@pytest.fixture
def hands() -> Hands:
    return Hands()


@pytest.fixture
def check(disk: Disk, hands: Hands) -> WriteCheck:
    return WriteCheck(disk, hands)  # type: ignore[arg-type]


async def test_a_successful_write_check_is_reused_for_a_while(
    check: WriteCheck, disk: Disk, hands: Hands
) -> None:
    assert await check.is_writable()
    disk.full = True
    assert await check.is_writable()
    hands.now += FRESH_SECONDS
    assert not await check.is_writable()
    assert disk.checks == 2


async def test_a_bad_answer_is_asked_for_again_sooner(check: WriteCheck, disk: Disk, hands: Hands) -> None:
    disk.full = True
    assert not await check.is_writable()
    disk.full = False
    hands.now += FRESH_TROUBLE_SECONDS
    assert await check.is_writable()


@pytest.mark.parametrize("fault", [StoreDamaged("a row"), RuntimeError("a fault of this server")])
async def test_a_store_whose_check_fails_in_any_way_takes_no_writes(
    check: WriteCheck, disk: Disk, fault: Exception
) -> None:
    disk.fault = fault
    assert not await check.is_writable()


async def test_all_who_ask_at_once_share_one_write(check: WriteCheck, disk: Disk) -> None:
    disk.answers.clear()
    asking = [asyncio.create_task(check.is_writable()) for _ in range(5)]
    await asyncio.sleep(0)
    disk.answers.set()
    assert all(await asyncio.gather(*asking))
    assert disk.checks == 1


async def test_a_disk_that_hangs_takes_no_writes_and_is_not_asked_twice_at_once(
    check: WriteCheck, disk: Disk, hands: Hands, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "ANSWER_SECONDS", 0.01)
    disk.answers.clear()
    assert not await check.is_writable()
    hands.now += FRESH_TROUBLE_SECONDS
    assert not await check.is_writable()
    assert disk.checks == 1
    disk.answers.set()
    hands.now += FRESH_TROUBLE_SECONDS
    monkeypatch.setattr(health, "ANSWER_SECONDS", 20.0)
    assert await check.is_writable()


async def test_a_check_leaves_nothing_in_the_store(store: Store) -> None:
    before = await store.stats()
    for _ in range(3):
        await store.check_writable()
    assert (await store.stats()).steps == before.steps
