"""CPU time as the tests measure it: a busy machine makes none longer, and the collector of garbage is left out.

Most of what the collector looks at in the process of the tests is the tests' own, and a whole collection of it takes
longer than anything that is measured here. Whoever happens to allocate next pays for it.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable
from typing import Any

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


def assert_cpu_time_below(seconds: float, work: Callable[[], object], *, tries: int = 3) -> None:
    """Fails where none of so many runs takes less: another program on the same core makes the one or other longer."""
    taken: list[float] = []
    while not any(each < seconds for each in taken):
        assert len(taken) < tries, f"CPU time of {len(taken)} runs: {taken}"
        began = cpu_seconds()
        work()
        taken.append(cpu_seconds() - began)
