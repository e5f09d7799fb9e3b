"""Long work is done in a thread, and whoever waits for it goes on when it is over."""

from __future__ import annotations

import asyncio
import threading

import pytest

from codex_proxy.core.beside_the_loop import beside_the_loop


async def test_short_work_is_done_at_once_and_long_work_in_a_thread() -> None:
    assert await beside_the_loop(threading.get_ident, long=False) == threading.get_ident()
    assert await beside_the_loop(threading.get_ident, long=True) != threading.get_ident()


@pytest.mark.parametrize("cancels", [1, 2])
async def test_whoever_is_cancelled_goes_on_when_the_work_is_over(cancels: int) -> None:
    begun, may_end, done = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        may_end.wait()
        done.set()

    waiting = asyncio.ensure_future(beside_the_loop(work, long=True))
    await asyncio.to_thread(begun.wait)
    for _ in range(cancels):
        waiting.cancel()
        for _ in range(10):
            await asyncio.sleep(0)
        assert not waiting.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert done.is_set()
