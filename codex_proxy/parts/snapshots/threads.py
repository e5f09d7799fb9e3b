"""Work in threads that the server's end does not wait for."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")


def in_thread(work: Callable[[], R]) -> asyncio.Future[R]:
    """Returns the future of what `work` returns in a thread of its own: on a file system that does not answer it may
    never end, and must not hold up the server's end.
    """
    loop = asyncio.get_running_loop()
    future: asyncio.Future[R] = loop.create_future()

    def tell(result: R | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is None:
            future.set_result(result)  # type: ignore[arg-type]
        else:
            future.set_exception(error)

    def run() -> None:
        result, error = None, None
        try:
            result = work()
        except BaseException as raised:  # noqa: BLE001 - told to the one who waits
            error = raised
        with contextlib.suppress(RuntimeError):  # the loop is closed, and nobody waits
            loop.call_soon_threadsafe(tell, result, error)

    threading.Thread(target=run, daemon=True, name="snapshot").start()
    return future
