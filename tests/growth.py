"""What a reader of foreign bytes costs as its input grows: CPU time and memory in proportion to the size, and no more.

What is quadratic costs sixteen times as much for four times the input, what is linear four times.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Final, TypeVar

from tests.cpu_time import cpu_seconds

T = TypeVar("T")

MAX_FACTOR: Final = 2.5
"""What twice the input may cost, as a multiple."""
DOUBLINGS: Final = 2
"""How often the input is doubled: noise that makes a run half as long again is still no fault."""
_LIMIT: Final = MAX_FACTOR**DOUBLINGS


def assert_linear(
    make: Callable[[int], T], read: Callable[[T], object], size: int, *, tries: int = 24, memory: bool = True
) -> None:
    """Fails where reading `make(4 * size)` costs more than 6.25 times the CPU time or the peak memory of reading
    `make(size)`. Choose a size that takes ten milliseconds or so, and at which what is not linear already dominates:
    `tests/test_growth_plants.py` plants faults. `read` must leave its input as it is. CPU times are the shortest of
    several tries, since other programs make them longer and nothing makes them shorter. Before these the small input
    is read some times: the first one also pays for what is built once, such as pydantic's models.
    `memory=False`: for a reader that traces memory or runs in other threads.
    """
    small, large = make(size), make(size << DOUBLINGS)
    read(small)
    times: list[list[float]] = [[_seconds(read, small) for _ in range(2)], []]
    for _ in range(tries):
        for each, taken in zip((small, large), times, strict=True):
            taken.append(_seconds(read, each))
        growth = min(times[1]) / min(times[0])
        if growth <= _LIMIT:
            break
    assert growth <= _LIMIT, (
        f"CPU seconds for {size} and {size << DOUBLINGS}: {min(times[0])}, {min(times[1])}"
    )
    if memory:
        peaks = _peak(read, small), _peak(read, large)
        # A reader that needs next to nothing may need a buffer of some kilobytes once.
        assert peaks[1] <= _LIMIT * max(peaks[0], 1 << 16), (
            f"bytes for {size} and {size << DOUBLINGS}: {peaks}"
        )


def _seconds(read: Callable[[T], object], given: T) -> float:
    gc.disable()  # a collection looks at everything that the tests before have left
    try:
        began = cpu_seconds()
        read(given)
        return cpu_seconds() - began
    finally:
        gc.enable()


def _peak(read: Callable[[T], object], given: T) -> int:
    tracemalloc.start()
    try:
        kept = read(given)
        peak = tracemalloc.get_traced_memory()[1]
        del kept
        return peak
    finally:
        tracemalloc.stop()
