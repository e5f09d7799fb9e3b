"""Keeps a reference to a task until it is done, since an event loop itself keeps none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar


class Task(Protocol):
    """The part of `asyncio.Task` that is used here."""

    def add_done_callback(self, callback: Callable[[Any], object], /) -> None: ...


T = TypeVar("T", bound=Task)


def keep_until_done(tasks: set[T], task: T) -> T:
    """Adds a task to `tasks`, removes it when it is done, and returns it."""
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task
