"""Work in threads that the server's end does not wait for, and who writes in folders now: agents in their turns, and
this server in such threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
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


class Writer:
    """One that may write in a folder. `others_wrote`: whether another one may have written in the folder, above it or
    below it meanwhile.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.others_wrote = False


class Writers:
    def __init__(self) -> None:
        # A turn that never begins is forgotten with its object.
        self._writers: weakref.WeakSet[Writer] = weakref.WeakSet()
        self._own: dict[asyncio.Future[None], list[Writer]] = {}
        """What this server writes, each until its future is done."""

    def add(self, writer: Writer) -> None:
        for other in self._writers:
            if overlap(other.folder, writer.folder):
                other.others_wrote = writer.others_wrote = True
        self._writers.add(writer)

    def remove(self, writer: Writer) -> None:
        self._writers.discard(writer)

    def __contains__(self, writer: Writer) -> bool:
        return writer in self._writers

    def all(self) -> list[Writer]:
        return [*self._writers]

    def is_anyone_in(self, folder: str) -> bool:
        """Whether anyone writes in the folder, above it or below it."""
        return any(overlap(writer.folder, folder) for writer in self._writers)

    async def write(self, folders: Sequence[str], work: Callable[[], R]) -> R:
        """Does `work`, which writes in folders, in a thread: to its end, also if nobody waits for it any more. Returns
        or raises what it does. No other task runs before it is known as a writer.
        """
        writers = [Writer(folder) for folder in folders]
        for writer in writers:
            self.add(writer)
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._own[ended] = writers

        def on_done(_: asyncio.Future[R]) -> None:
            for writer in self._own.pop(ended):
                self.remove(writer)
            ended.set_result(None)

        doing = in_thread(work)
        doing.add_done_callback(on_done)
        return await asyncio.shield(doing)

    def own_in(self, folder: str) -> set[asyncio.Future[None]]:
        """Returns what is done when this server writes no more in the folder, above it or below it."""
        return {
            ended
            for ended, writers in self._own.items()
            if any(overlap(writer.folder, folder) for writer in writers)
        }


def overlap(one: str, other: str) -> bool:
    """Whether a folder is the other one, or in it, or the other way round."""
    one, other = one.rstrip("/") + "/", other.rstrip("/") + "/"
    return one.startswith(other) or other.startswith(one)
