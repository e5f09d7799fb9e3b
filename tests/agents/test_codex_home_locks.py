"""Locks on Codex's files: who starts first starts alone, and a home for one question is gone behind its use."""

from __future__ import annotations

import asyncio
import math
import subprocess
import sys
from pathlib import Path

import pytest

from codex_proxy.agents.codex.home_locks import first_start_lock, private_home, remove_left_homes
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


KILLED = """
import os, signal, sys
from codex_proxy.agents.codex.home_locks import private_home
with private_home(sys.argv[1]) as home:
    open(os.path.join(home, "file"), "w").close()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_home_is_empty_for_its_owner_alone_and_gone_afterwards(tmp_path: Path) -> None:
    with private_home(str(tmp_path)) as home:
        assert list(Path(home).iterdir()) == []
        assert Path(home).stat().st_mode & 0o077 == 0
        (Path(home) / "file").touch()
    assert list(tmp_path.iterdir()) == []


def test_the_home_of_one_who_was_killed_is_removed_and_one_in_use_is_not(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], timeout=PATIENCE)
    assert len(list(tmp_path.iterdir())) == 1
    with private_home(str(tmp_path)) as home:
        remove_left_homes(str(tmp_path))
        assert list(tmp_path.iterdir()) == [Path(home)]


def test_a_folder_that_only_looks_like_a_left_home_stays(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "home-link").symlink_to("elsewhere")
    (tmp_path / "home-file").touch()
    remove_left_homes(str(tmp_path))
    assert len(list(tmp_path.iterdir())) == 3
