"""References to tasks, since an event loop keeps none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar


class Task(Protocol):
    """The part of `asyncio.Task` that is used."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


T = TypeVar("T", bound=Task)


def keep_until_done(tasks: set[T], task: T) -> T:
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
