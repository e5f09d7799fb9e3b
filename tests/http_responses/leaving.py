"""A handler whose client leaves at a chosen moment."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Generator
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class CancelledAt(Generic[T]):
    """Awaits `work` in the task that awaits this, and has that task cancelled when it waits for the `number`th time."""

    def __init__(self, work: Coroutine[Any, Any, T], number: int) -> None:
        self._work = work
        self._number = number
        self.reached = False
        """Whether it waited so often."""

    def __await__(self) -> Generator[Any, Any, T]:
        count, resume = 0, self._work.send
        given: Any = None
        while True:
            try:
                waits_for = resume(given)
            except StopIteration as end:
                result: T = end.value
                return result
            count += 1
            if count == self._number:
                self.reached = True
                task = asyncio.current_task()
                assert task is not None
                asyncio.get_running_loop().call_soon(task.cancel)
            try:
                given = yield waits_for
                resume = self._work.send
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is for the work
                resume, given = self._work.throw, error
