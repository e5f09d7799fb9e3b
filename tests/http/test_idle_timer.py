"""A wait that is broken off after some silence, and by nothing else."""

from __future__ import annotations

import asyncio

import pytest

from codex_proxy.http.sse import IdleTimer
from tests.runs.virtual import settle, virtual


async def _after(seconds: float) -> None:
    await asyncio.sleep(seconds)


@virtual
async def test_input_within_the_limit_begins_the_count_anew() -> None:
    silence = IdleTimer(10)
    for seconds in (6, 6, 9.5, 0, 9.5):
        assert await silence.wait_for(_after(seconds))
        silence.reset()
    silence.stop()


@virtual
async def test_input_that_is_not_passed_on_does_not_end_a_silence() -> None:
    loop = asyncio.get_running_loop()
    silence = IdleTimer(10)
    began = loop.time()
    heard = [await silence.wait_for(_after(3)) for _ in range(4)]
    assert heard == [True, True, True, False]
    assert loop.time() - began == pytest.approx(10)
    silence.stop()


@virtual
async def test_silence_breaks_a_wait_off_exactly_when_its_time_is_over() -> None:
    loop = asyncio.get_running_loop()
    silence = IdleTimer(10)
    assert await silence.wait_for(_after(3))
    silence.reset()
    for _ in range(3):
        began = loop.time()
        assert not await silence.wait_for(_after(60))
        assert loop.time() - began == pytest.approx(10)
        await asyncio.sleep(25)  # what is written between two waits is no silence
        silence.reset()
    assert await silence.wait_for(_after(9))
    silence.stop()


@virtual
async def test_without_seconds_it_waits_for_ever() -> None:
    silence = IdleTimer(0)
    assert await silence.wait_for(_after(1e6))
    silence.stop()


@virtual
async def test_a_cancellation_by_somebody_else_goes_on() -> None:
    async def waits() -> None:
        silence = IdleTimer(10)
        try:
            await silence.wait_for(_after(60))
        finally:
            silence.stop()

    task = asyncio.create_task(waits())
    await settle()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()
