"""A child that waits for the next turn of a command that is used often: it saves the start, and is never in the way."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codex_proxy.agents.agent import ProcessCounts
from codex_proxy.agents.process_pool.plan import AHEAD_USES
from codex_proxy.agents.sessions.child_per_turn import ChildPerTurnAgent
from tests.http.serving import Proxy, fake_proxy, user
from tests.process.children import have_ended
from tests.waiting import eventually

ONE_WAITS = ProcessCounts(idle=1)


@pytest.fixture
async def proxy(tmp_path: Path) -> AsyncIterator[Proxy]:
    environment = {"FAKE_CODEX_PID_FILE": str(tmp_path / "pids")}
    async with fake_proxy(tmp_path, environment, workdir_roots=str(tmp_path)) as running:
        yield running
    assert have_ended(pids(tmp_path))


def pids(folder: Path) -> list[int]:
    """Every child that has begun, in the order of their starts."""
    return [int(line) for line in (folder / "pids").read_text().split()]


async def ask(proxy: Proxy, text: str = "Hello. [[fake:text]]") -> None:
    assert (await proxy.ask(user(text))).status == 200


async def until_one_waits(proxy: Proxy, folder: Path) -> int:
    """Returns the pid of the child that waits, when it has begun."""
    begun = len(pids(folder)) if (folder / "pids").exists() else 0
    for _ in range(AHEAD_USES):
        await ask(proxy)
    await eventually(lambda: proxy.server.agent.processes() == ONE_WAITS)
    await eventually(lambda: len(pids(folder)) == begun + AHEAD_USES + 1)
    [waiting] = [pid for pid in pids(folder) if not have_ended([pid])]
    return waiting


async def test_a_command_that_is_used_rarely_has_no_child_that_waits(proxy: Proxy) -> None:
    for _ in range(AHEAD_USES - 1):
        await ask(proxy)
    await eventually(lambda: proxy.server.agent.processes() == ProcessCounts())


async def test_the_next_turn_takes_the_child_that_waits_and_another_follows_it(
    proxy: Proxy, tmp_path: Path
) -> None:
    waiting = await until_one_waits(proxy, tmp_path)
    await ask(proxy)
    await eventually(lambda: have_ended([waiting]))  # each child serves one turn
    await eventually(lambda: len(pids(tmp_path)) == AHEAD_USES + 2)
    await eventually(lambda: proxy.server.agent.processes() == ONE_WAITS)


async def test_a_child_that_dies_while_it_waits_costs_no_turn(proxy: Proxy, tmp_path: Path) -> None:
    waiting = await until_one_waits(proxy, tmp_path)
    os.kill(waiting, signal.SIGKILL)
    await ask(proxy)
    await eventually(lambda: have_ended([waiting]))


async def test_a_child_that_hangs_up_as_it_is_given_the_turn_is_replaced(
    proxy: Proxy, tmp_path: Path
) -> None:
    waiting = await until_one_waits(proxy, tmp_path)
    os.kill(waiting, signal.SIGSTOP)  # it is alive when it is taken, and dies before it has read anything
    turn = proxy.ask(user("Hello. [[fake:text]]"))

    async def kill_when_taken() -> None:
        await eventually(lambda: proxy.server.agent.processes().busy == 1)
        os.kill(waiting, signal.SIGKILL)

    reply, _ = await asyncio.gather(turn, kill_when_taken())
    assert reply.status == 200


async def test_a_child_that_dies_while_it_waits_leaves_the_pool_at_once(proxy: Proxy, tmp_path: Path) -> None:
    waiting = await until_one_waits(proxy, tmp_path)
    os.kill(waiting, signal.SIGKILL)
    await eventually(lambda: proxy.server.agent.processes() == ProcessCounts(idle=1, restarts=1))
    await eventually(lambda: len(pids(tmp_path)) == AHEAD_USES + 2)


async def test_a_child_does_not_wait_for_ever(proxy: Proxy, tmp_path: Path) -> None:
    await until_one_waits(proxy, tmp_path)
    agent = proxy.server.agent
    assert isinstance(agent, ChildPerTurnAgent)
    for group in agent.pool._groups.values():
        group.uses.clear()  # those of a minute ago count no longer
    agent.pool._tick()
    await eventually(lambda: agent.processes() == ProcessCounts())
    await eventually(lambda: have_ended(pids(tmp_path)))


async def test_a_turn_in_another_folder_gets_a_child_of_its_own(proxy: Proxy, tmp_path: Path) -> None:
    waiting = await until_one_waits(proxy, tmp_path)
    (tmp_path / "below").mkdir()
    headers = {"X-Codex-Workdir": str(tmp_path / "below"), "X-Codex-Mode": "agent"}
    assert (await proxy.ask(user("Hello. [[fake:text]]"), headers=headers)).status == 200
    assert not have_ended([waiting])
