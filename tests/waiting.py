"""The one wait of the tests for what nobody tells: a fact of the operating system, of another process, or of a poll.

Whatever can be an event is awaited as one, and time that has to pass is the virtual clock's (`tests/runs/virtual.py`).
`tests/test_waiting.py` holds that nothing else sleeps.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from codex_proxy.runs.scheduler import RunScheduler
from codex_proxy.runs.time_and_tokens import Deadlines

PATIENCE = 60.0
"""Seconds for what takes one at most. It bounds hangs and measures no speed: where all is well a wait ends at once, and
a machine that is busy with thirty other things takes as many times as long."""
_PAUSE = 0.005


T = TypeVar("T")


def out_of_patience(scheduler: RunScheduler) -> None:
    """Makes the time limits of every running turn expire now: for its first output, and for its next one. A test calls
    this when all that must come before is there: only a quiet machine keeps to a limit in seconds."""
    for run in scheduler._runs:
        run._watch._deadlines = Deadlines(first=0.0, idle=0.0)
        run._watch.resume()


def turns_shown(scheduler: RunScheduler) -> int:
    """The number of running turns of which clients have seen something."""
    return sum(run._watch.visible for run in scheduler._runs)


async def eventually(look: Callable[[], T], *, within: float = PATIENCE) -> T:
    """The first thing that is true of what `look` gives; fails when there is none within these seconds."""

    async def seen() -> T:
        return look()

    return await poll(seen, within=within)


async def poll(look: Callable[[], Awaitable[T]], *, within: float = PATIENCE) -> T:
    """The same for what has to be asked for."""
    deadline = time.monotonic() + within
    while not (seen := await look()):
        assert time.monotonic() < deadline, f"not within {within} s"
        await asyncio.sleep(_PAUSE)
    return seen


def hold_up_the_loop(seconds: float) -> None:
    """What the event loop must not do: nothing else runs meanwhile. For tests of what shows that it was held up."""
    time.sleep(seconds)
