"""Step memory: on disk, in RAM, off; for a day, and no longer."""

from __future__ import annotations

from pathlib import Path

import pytest

from codex_proxy.core.step_memory import StepMemorySettings
from codex_proxy.store.store import Store
from tests.store.conftest import Make
from tests.store.stored import OTHER, OWNER, Hands

DAY = 86400.0


def entries(*pairs: tuple[bytes, bytes]) -> dict[bytes, bytes]:
    return dict(pairs)


async def recalled_items(store: Store, *keys: bytes, owner: str = OWNER) -> dict[bytes, bytes]:
    return await store.recall(owner, keys)


@pytest.mark.parametrize("durable", [True, False])
async def test_steps_are_recalled_by_owner_and_key(store: Store, durable: bool) -> None:
    await store.remember(OWNER, entries((b"one", b"1"), (b"two", b"2")), durable=durable)
    assert await store.recall(OWNER, [b"one", b"never"]) == {b"one": b"1"}
    assert await recalled_items(store, b"one", b"two", owner=OTHER) == {}


@pytest.mark.parametrize("durable", [True, False])
async def test_a_step_that_is_remembered_again_is_replaced(store: Store, durable: bool) -> None:
    await store.remember(OWNER, entries((b"key", b"old")), durable=durable)
    await store.remember(OWNER, entries((b"key", b"new")), durable=durable)
    assert await recalled_items(store, b"key") == {b"key": b"new"}


@pytest.mark.parametrize("durable", [True, False])
async def test_a_step_is_forgotten_after_a_day(store: Store, clock: Hands, durable: bool) -> None:
    await store.remember(OWNER, entries((b"key", b"1")), durable=durable)
    clock.now += DAY - 1
    assert await recalled_items(store, b"key") == {b"key": b"1"}
    clock.now += 1
    assert await recalled_items(store, b"key") == {}
    await store.prune()
    assert (await store.stats()).steps == 0


async def test_a_later_step_in_ram_wins_over_the_one_on_disk_and_the_other_way_round(store: Store) -> None:
    await store.remember(OWNER, entries((b"a", b"disk"), (b"b", b"disk")))
    await store.remember(OWNER, entries((b"a", b"ram")), durable=False)
    await store.remember(OWNER, entries((b"a", b"disk again")))
    await store.remember(OWNER, entries((b"b", b"ram")), durable=False)
    assert await recalled_items(store, b"a", b"b") == {b"a": b"disk again", b"b": b"ram"}


async def test_more_keys_than_a_statement_takes_are_recalled_at_once(store: Store) -> None:
    keys = [b"%d" % number for number in range(2000)]
    await store.remember(OWNER, entries(*((key, key) for key in keys)))
    assert len(await store.recall(OWNER, keys)) == 2000


async def test_ram_keeps_the_newest_by_count(make: Make) -> None:
    store = await make(memory=StepMemorySettings(kind="ram", max_entries=3))
    await store.remember(OWNER, entries((b"a", b"1"), (b"b", b"1"), (b"c", b"1")))
    await store.remember(OWNER, entries((b"a", b"2")))  # now the newest
    await store.remember(OWNER, entries((b"d", b"1")))
    assert set(await recalled_items(store, *(bytes([each]) for each in b"abcd"))) == {b"a", b"c", b"d"}


async def test_ram_keeps_the_newest_by_bytes(make: Make) -> None:
    store = await make(memory=StepMemorySettings(kind="ram", max_bytes=10))
    await store.remember(OWNER, entries((b"a", b"x" * 6)))
    await store.remember(OWNER, entries((b"b", b"x" * 4)))
    assert set(await recalled_items(store, b"a", b"b")) == {b"a", b"b"}
    await store.remember(OWNER, entries((b"b", b"x" * 5)))
    assert set(await recalled_items(store, b"a", b"b")) == {b"b"}
    await store.remember(OWNER, entries((b"c", b"x" * 11)))
    assert await recalled_items(store, b"b", b"c") == {}


async def test_memory_that_is_off_remembers_nothing(make: Make) -> None:
    store = await make(memory=StepMemorySettings(kind="off"))
    await store.remember(OWNER, entries((b"a", b"1")))
    await store.remember(OWNER, entries((b"b", b"1")), durable=False)
    assert await recalled_items(store, b"a", b"b") == {}


async def test_steps_that_may_not_be_kept_never_reach_the_disk(file_store: Store, path: Path) -> None:
    await file_store.remember(OWNER, entries((b"may", b"keep this one")))
    await file_store.remember(OWNER, entries((b"may not", b"but not this")), durable=False)
    await file_store.close()
    on_disk = b"".join(file.read_bytes() for file in path.parent.iterdir())
    assert b"keep this one" in on_disk
    assert b"but not this" not in on_disk
