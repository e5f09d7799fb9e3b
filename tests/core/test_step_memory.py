"""The step memory in RAM: whose entries go when it is full."""

from __future__ import annotations

import pytest

from codex_proxy.core.step_memory import RamStepMemory, StepMemorySettings


def numbered_items(first: int, count: int, size: int = 1) -> dict[bytes, bytes]:
    return {str(number).encode(): bytes(size) for number in range(first, first + count)}


@pytest.mark.parametrize(
    ("limits", "size"),
    [(StepMemorySettings(max_entries=10), 1), (StepMemorySettings(max_bytes=1000), 100)],
    ids=["entries", "bytes"],
)
async def test_an_owner_with_many_entries_displaces_its_own_alone(
    limits: StepMemorySettings, size: int
) -> None:
    memory = RamStepMemory(limits, lambda: 0.0)
    await memory.remember("one", numbered_items(0, 4, size))
    await memory.remember("many", numbered_items(0, 50, size))
    assert len(memory) == 10
    assert set(await memory.recall("one", list(numbered_items(0, 4)))) == set(numbered_items(0, 4))
    assert set(await memory.recall("many", list(numbered_items(0, 50)))) == set(numbered_items(44, 6))


async def test_an_owner_that_is_alone_has_all_of_it() -> None:
    memory = RamStepMemory(StepMemorySettings(max_entries=10), lambda: 0.0)
    await memory.remember("one", numbered_items(0, 12))
    assert set(await memory.recall("one", list(numbered_items(0, 12)))) == set(numbered_items(2, 10))


async def test_entries_that_are_too_old_are_removed_whoever_has_the_most() -> None:
    now = [0.0]
    memory = RamStepMemory(StepMemorySettings(age=10, max_entries=3), lambda: now[0])
    await memory.remember("one", numbered_items(0, 1))
    now[0] = 11.0
    await memory.remember("many", numbered_items(0, 3))
    assert len(memory) == 3
    assert not await memory.recall("one", [b"0"])
