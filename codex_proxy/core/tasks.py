"""References to tasks, since an event loop keeps none; and work beside the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol, TypeVar

R = TypeVar("R")

FEW_ITEMS: Final = 500
"""Items of a conversation for which the event loop itself may work: each costs up to 20 us."""


async def beside_the_loop(items: int, work: Callable[[], R]) -> R:
    """Returns what `work` returns, which costs time for each of so many items. For more than `FEW_ITEMS` a thread does
    it, so that others are served meanwhile.
    """
    return work() if items <= FEW_ITEMS else await asyncio.to_thread(work)


class Task(Protocol):
    """The part of `asyncio.Task` that is used."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


T = TypeVar("T", bound=Task)


def keep_until_done(tasks: set[T], task: T) -> T:
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
