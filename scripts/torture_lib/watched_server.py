"""A `codex-proxy` that reports what it has open, and how long its event loop was held.

python -m scripts.torture_lib.watched_server CENSUS PLANT serve ...

It is the unchanged server, started by this module. At SIGUSR1 it writes a census as JSON to the file CENSUS (see
`Census`). PLANT is the name of a fault of `plants` that is put into the server before it starts, or `none`.
"""

from __future__ import annotations

import asyncio
import gc
import json
import os
import re
import signal
import sys
import threading
import time
import traceback
from asyncio import AbstractEventLoop, BaseEventLoop, Handle
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import TypedDict
from weakref import WeakSet

from scripts.torture_lib.plants import PLANTS, put_in_place

LOOK_SECONDS = 0.01
"""Seconds between two measurements of how late the event loop is."""
HELD_SECONDS = 0.05
"""Seconds of CPU time above which a callback is named in the census."""
NAMED = 10
"""Maximum callbacks in the census, the longest first."""
PLACES = 6
"""Maximum lines of code that are named of such a callback, the innermost first."""
NUMBER = re.compile(r"\d+")
ROOT = Path(__file__).resolve().parents[2]


class Held(TypedDict):
    """A callback that has held the event loop."""

    seconds: float
    """CPU time of the callback."""
    name: str
    place: str
    """The lines of code at work during the callback; empty if none were seen."""


class Census(TypedDict):
    """What a server has open, and how late its event loop was since the previous census."""

    tasks: dict[str, int]
    """Tasks of asyncio that have not ended, by the name of their coroutine."""
    descriptors: dict[str, int]
    """Open file descriptors, by what they are: `socket`, `pipe`, the path of a file."""
    threads: dict[str, int]
    at_work: str
    """The lines of code that the signal interrupted."""
    late: list[float]
    """How late the loop was at each measurement, in seconds of the server's own CPU time."""
    held: list[Held]


class LoopWatch:
    """Measures how late the event loop of this process is, and which callbacks hold it.

    Only the CPU time of this process counts: if another program has the processor, the loop is late without any fault
    of the server. A measurement is late by the time since it was due, but by no more than the CPU time that this
    process has used since the one before.
    """

    def __init__(self) -> None:
        self.late: list[float] = []
        self.held: list[Held] = []
        self._paused = False
        self._began: float | None = None
        self._place = ""
        self._thread = threading.get_ident()

    def install(self) -> None:
        """Measures every callback of this thread from now on, and the delay of every loop that it runs."""
        run = Handle._run

        def run_measured(handle: Handle) -> None:
            if threading.get_ident() != self._thread:
                run(handle)
                return
            callback = handle._callback  # type: ignore[attr-defined]
            self._place, self._began = "", time.monotonic()
            before = time.thread_time()
            run(handle)
            spent = time.thread_time() - before
            self._began = None
            if spent > HELD_SECONDS:
                self._note(spent, callback)

        put_in_place(Handle, "_run", run_measured)
        threading.Thread(target=self._see_places, name="watch", daemon=True).start()
        run_forever = BaseEventLoop.run_forever
        watched = WeakSet[AbstractEventLoop]()

        def run_watched(loop: BaseEventLoop) -> None:
            if threading.get_ident() == self._thread and loop not in watched:
                watched.add(loop)
                loop.call_soon(self._look, loop, loop.time(), time.process_time())
            run_forever(loop)

        put_in_place(BaseEventLoop, "run_forever", run_watched)

    def _look(self, loop: AbstractEventLoop, due: float, cpu_before: float) -> None:
        cpu = time.process_time()
        if not self._paused:
            self.late.append(max(0.0, min(loop.time() - due, cpu - cpu_before)))
        self._paused = False
        loop.call_at(loop.time() + LOOK_SECONDS, self._look, loop, loop.time() + LOOK_SECONDS, cpu)

    def _note(self, spent: float, callback: object) -> None:
        if self._paused:
            return
        self.held.append({"seconds": spent, "name": name_of(callback), "place": self._place})
        self.held.sort(key=lambda held: -held["seconds"])
        del self.held[NAMED:]

    def _see_places(self) -> None:
        """Records, in a thread, the code at work in long callbacks."""
        while True:
            time.sleep(LOOK_SECONDS * 2)
            began = self._began
            if began is not None and not self._place and time.monotonic() - began > HELD_SECONDS:
                frame = sys._current_frames().get(self._thread)
                if frame is not None and self._began == began:
                    self._place = place_of(frame)

    def take(self) -> tuple[list[float], list[Held]]:
        """Returns what was measured since the last call. CPU time until the next measurement does not count."""
        taken = self.late, self.held
        self.late, self.held, self._paused = [], [], True
        return taken


def name_of(callback: object) -> str:
    """Returns the name of a task's coroutine, or of a function."""
    owner = getattr(callback, "__self__", None)
    if isinstance(owner, asyncio.Task):
        return str(getattr(owner.get_coro(), "__qualname__", owner))
    return str(getattr(callback, "__qualname__", callback))


def place_of(frame: FrameType) -> str:
    """Returns the innermost lines of code at work, as `file:line function < file:line function`."""
    lines = traceback.extract_stack(frame, limit=40)[::-1]
    ours = [line for line in lines if line.filename.startswith(str(ROOT))] or lines
    shown = [lines[0], *(line for line in ours[:PLACES] if line is not lines[0])]
    return " < ".join(f"{os.path.basename(line.filename)}:{line.lineno} {line.name}" for line in shown)


def census(watch: LoopWatch, frame: FrameType | None) -> Census:
    """Returns what this process has open. Call it in the thread of the event loop; `frame` is what the signal
    interrupted.
    """
    late, held = watch.take()
    gc.collect()  # what nobody refers to any more is not open
    try:
        tasks = asyncio.all_tasks()
    except RuntimeError:  # before the loop, or after it
        tasks = set()
    return {
        "tasks": Counter(name_of(task.cancel) for task in tasks),
        "descriptors": Counter(filter(None, map(kind_of, os.listdir("/proc/self/fd")))),
        "threads": Counter(NUMBER.sub("N", thread.name) for thread in threading.enumerate()),
        "at_work": "" if frame is None else place_of(frame),
        "late": late,
        "held": held,
    }


def kind_of(descriptor: str) -> str:
    """Returns what a descriptor of this process is open on; empty if it was closed meanwhile."""
    try:
        return os.readlink(f"/proc/self/fd/{descriptor}").partition(":[")[0]
    except OSError:
        return ""


def write_census_at_signal(file: Path, watch: LoopWatch) -> None:
    """Writes a census to `file` at each SIGUSR1, whole or not at all."""

    def write(_: int, frame: FrameType | None) -> None:
        part = file.with_suffix(".part")
        part.write_text(json.dumps(census(watch, frame)))
        part.replace(file)

    signal.signal(signal.SIGUSR1, write)


def main(file: str, plant: str, *arguments: str) -> None:
    watch = LoopWatch()
    watch.install()
    write_census_at_signal(Path(file), watch)
    if plant != "none":
        PLANTS[plant].put()
    from codex_proxy.cli import main as serve

    serve(arguments, prog_name="codex-proxy")


if __name__ == "__main__":
    main(*sys.argv[1:])
