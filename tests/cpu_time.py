"""CPU time as the tests measure it: as where the limits were chosen, and without the collector of garbage.

A slower machine needs more of it, and so does a busy one, whose programs share caches and halves of cores. So what is
measured is divided by `slowness`, which measures the same work each time.

Most of what the collector looks at in the process of the tests is the tests' own, and a whole collection of it takes
longer than anything that is measured here. Whoever happens to allocate next pays for it.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any, Final

import msgspec

_threads = threading.local()


def _note(phase: str, _: dict[str, Any]) -> None:
    now = time.thread_time()
    if phase == "start":
        _threads.began = now
    elif (began := getattr(_threads, "began", None)) is not None:
        _threads.collecting = getattr(_threads, "collecting", 0.0) + now - began


gc.callbacks.append(_note)


def cpu_seconds() -> float:
    """The CPU time of this thread so far, without that of the collector: to be subtracted from a later one."""
    return float(time.thread_time() - getattr(_threads, "collecting", 0.0))


class _Empty(msgspec.Struct):
    """Its decoder passes over all values."""


_PASS_OVER: Final = msgspec.json.Decoder(_Empty).decode
_NUMBERS: Final = b'{"x":[' + b",".join([b"[1]"] * 100_000) + b"]}"
_OBJECTS: Final = msgspec.json.encode([{"number": number} for number in range(5_000)])
_WORK_SECONDS: Final = 0.004
"""What `_work` took where the limits were chosen."""


def _work() -> None:
    """Reads bytes in C, makes objects, and runs Python's own code."""
    _PASS_OVER(_NUMBERS)
    total = 0
    for each in msgspec.json.decode(_OBJECTS):
        total += each["number"]
    for number in range(20_000):
        total += number


def slowness() -> float:
    """How many times longer than where the limits were chosen this machine takes for the same work now; at least 1."""
    return max(1.0, min(seconds_of(_work) for _ in range(3)) / _WORK_SECONDS)


def assert_cpu_time_below(seconds: float, work: Callable[[], object], *, tries: int = 3) -> None:
    """Fails where none of so many runs takes less: another program on the same core makes the one or other longer."""
    taken: list[float] = []
    while not any(each < seconds for each in taken):
        assert len(taken) < tries, f"CPU time of {len(taken)} runs: {taken}"
        taken.append(seconds_of(work) / slowness())


def seconds_of(work: Callable[[], object]) -> float:
    """The CPU time that the work takes, without that of the collector."""
    began = cpu_seconds()
    work()
    return cpu_seconds() - began
