"""A pool of workers: who gets one, and what becomes of questions that get no answer."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

import psutil
import pytest

from codex_proxy.workers.pool import NoAnswer, WorkerPool
from tests.waiting import eventually
from tests.workers.busy_worker import Done, Work

MODULE = "tests.workers.busy_worker"


@pytest.fixture
async def pool() -> AsyncIterator[WorkerPool[Work, Done]]:
    """One of several owners, with patience for what never ends."""
    made = WorkerPool[Work, Done](MODULE, Done, wall_seconds=30.0, owners=lambda: 2)
    yield made
    await made.close()
    assert made.workers == []


async def test_an_owner_that_asks_without_end_leaves_a_worker_to_the_others(
    pool: WorkerPool[Work, Done],
) -> None:
    greedy = [asyncio.ensure_future(pool.ask(Work(endless=True), "a")) for _ in range(3)]
    await eventually(lambda: pool.workers)
    assert await pool.ask(Work(), "b") == Done()
    await pool.close()
    assert await asyncio.gather(*greedy) == [NoAnswer.STOPPING] * 3


async def test_a_question_for_which_no_worker_is_free_in_time_returns_busy(
    pool: WorkerPool[Work, Done],
) -> None:
    first = asyncio.ensure_future(pool.ask(Work(endless=True), "a"))
    await eventually(lambda: pool.workers)
    assert await pool.ask(Work(), "a", wait_seconds=0.1) is NoAnswer.BUSY
    first.cancel()


async def test_a_closed_pool_has_waited_for_the_worker_of_a_cancelled_question(
    pool: WorkerPool[Work, Done],
) -> None:
    asked = asyncio.ensure_future(pool.ask(Work(endless=True)))
    await eventually(lambda: pool.workers)
    (pid,) = pool.workers
    asked.cancel()
    await asyncio.sleep(0)
    await pool.close()
    assert not psutil.pid_exists(pid)


async def test_a_question_that_takes_too_long_is_given_up_and_the_next_one_is_answered() -> None:
    pool = WorkerPool[Work, Done](MODULE, Done, wall_seconds=0.5)
    assert await pool.ask(Work(endless=True)) is NoAnswer.GAVE_UP
    assert pool.workers == []
    patient = WorkerPool[Work, Done](MODULE, Done, wall_seconds=30.0)
    assert await patient.ask(Work()) == Done()
    await patient.close()
    assert await patient.ask(Work()) is NoAnswer.STOPPING
    await pool.close()


async def test_a_worker_that_was_killed_while_it_waited_is_asked_nothing(
    pool: WorkerPool[Work, Done],
) -> None:
    assert await pool.ask(Work()) == Done()
    (pid,) = pool.workers
    psutil.Process(pid).kill()
    await eventually(lambda: not pool.workers)
    assert await pool.ask(Work()) == Done()
    assert pool.workers != [pid]


async def test_where_the_system_starts_no_process_a_question_returns_not_started(
    pool: WorkerPool[Work, Done], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    assert await pool.ask(Work()) is NoAnswer.NOT_STARTED
