"""An event loop whose clock jumps: a wait of an hour takes no time, and nothing in a test sleeps.

Only for code that does no IO. Time passes when every task waits, by exactly as much as the next timer needs.
"""

from __future__ import annotations

import asyncio
import functools
import selectors
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

Event = tuple[selectors.SelectorKey, int]


class _Selector(selectors.DefaultSelector):
    """Instead of waiting, moves the clock."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> list[Event]:
        if timeout is None:
            raise AssertionError("every task waits for something that nothing will bring")
        self.now += max(timeout, 0.0)
        return super().select(0)


class VirtualLoop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._jumping = _Selector()
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._jumping.now


_closing: list[Callable[[], Awaitable[object]]] = []


def close_after_test(close: Callable[[], Awaitable[object]]) -> None:
    """Calls `close` when the virtual test that runs has passed; those that were given last first."""
    _closing.append(close)


def virtual(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs an async test on a `VirtualLoop`. Tasks that are left over fail it."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        _closing.clear()

        async def body() -> None:
            await test(*args, **kwargs)
            while _closing:
                await _closing.pop()()
            await settle()
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"left running: {left}"

        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            runner.run(body())

    return run


async def settle() -> None:
    """Lets everything happen that needs no time."""
    for _ in range(20):
        await asyncio.sleep(0)
