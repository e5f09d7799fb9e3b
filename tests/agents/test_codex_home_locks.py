"""Locks on Codex's files: who starts first starts alone."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from codex_proxy.agents.codex.plain_home import first_start_lock
from tests.waiting import PATIENCE


class Inside:
    """How many are in the body at once, at most."""

    def __init__(self) -> None:
        self.now = self.most = self.times = 0

    async def stay(self, mark: str, fails: bool = False) -> None:
        async with first_start_lock(mark, math.inf):
            self.now += 1
            self.times += 1
            self.most = max(self.most, self.now)
            await asyncio.sleep(0)
            self.now -= 1
            if fails:
                raise ZeroDivisionError


async def test_first_starts_of_a_release_happen_one_at_a_time(tmp_path: Path) -> None:
    inside, mark = Inside(), str(tmp_path / "mark")
    failing = [inside.stay(mark, fails=True) for _ in range(3)]
    outcomes = await asyncio.gather(*failing, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [ZeroDivisionError] * 3
    assert (inside.times, inside.most) == (3, 1)
    assert not Path(mark).exists(), "nobody has started yet"


async def test_after_the_first_nobody_waits(tmp_path: Path) -> None:
    inside, mark = Inside(), str(tmp_path / "mark")
    await inside.stay(mark)
    async with asyncio.timeout(PATIENCE), first_start_lock(mark, math.inf), first_start_lock(mark, math.inf):
        await asyncio.gather(*(inside.stay(mark) for _ in range(3)))
    assert inside.most == 3


async def test_a_stuck_first_start_does_not_hold_up_the_others_for_ever(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    async with first_start_lock(mark, math.inf), first_start_lock(mark, 0.05):
        assert not Path(mark).exists()


async def test_a_cancelled_first_start_lets_the_next_one_begin(tmp_path: Path) -> None:
    mark = str(tmp_path / "mark")
    holding, held = asyncio.Event(), asyncio.Event()

    async def hold() -> None:
        async with first_start_lock(mark, math.inf):
            holding.set()
            await held.wait()

    first = asyncio.create_task(hold())
    await holding.wait()
    second = asyncio.create_task(Inside().stay(mark))
    first.cancel()
    async with asyncio.timeout(PATIENCE):
        await second
    with pytest.raises(asyncio.CancelledError):
        await first
