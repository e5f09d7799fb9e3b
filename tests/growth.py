"""What a reader of foreign bytes costs as its input grows: CPU time and memory in proportion to the size, and no more.

Times of inputs that differ by a factor of 16 are compared: what is quadratic costs 256 times as much, what is linear 16
times, so that neither a busy machine nor a cache that the larger input does not fit into makes the one look as the
other.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable
from typing import Final, TypeVar

from tests.cpu_time import seconds_of

T = TypeVar("T")

MAX_FACTOR: Final = 2.5
"""What twice the input may cost, as a multiple."""
DOUBLINGS: Final = 2
"""How often the given size is doubled for the larger input, and halved for the input that takes least time."""
MAX_TIMES: Final = MAX_FACTOR ** (2 * DOUBLINGS)
MAX_BYTES: Final = MAX_FACTOR**DOUBLINGS
MIN_SECONDS: Final = 0.0002
"""What the small input is taken to cost at least: one that is read faster fits into a cache, unlike the large one."""
MIN_PEAK: Final = 1 << 16
"""The bytes that it is taken to need at least: a reader may hold all that one read brings."""


def assert_linear(
    make: Callable[[int], T], read: Callable[[T], object], size: int, *, tries: int = 24, memory: bool = True
) -> None:
    """Fails where reading `make(4 * size)` costs more than 39 times the CPU time of reading `make(size / 4)`, or more
    than 6.25 times the peak memory is needed for `make(size)`. Choose a size that takes some milliseconds, and at which
    what is not linear already dominates: `tests/parts/test_growth_plants.py` plants faults. `read` must leave its input
    as it is. CPU times are the shortest of several tries, since other programs make them longer and nothing makes them
    shorter. Before these the small input is read some times: the first one also pays for what is built once, such as
    pydantic's models. `memory=False`: for a reader that traces memory or runs in other threads.
    """
    small, large = make(max(1, size >> DOUBLINGS)), make(size << DOUBLINGS)
    read(small)
    times: list[list[float]] = [[_seconds(read, small) for _ in range(4)], []]
    for _ in range(tries):
        for each, taken in zip((small, large), times, strict=True):
            taken.append(_seconds(read, each))
        growth = min(times[1]) / max(min(times[0]), MIN_SECONDS)
        if growth <= MAX_TIMES:
            break
    assert growth <= MAX_TIMES, (
        f"CPU seconds for {size >> DOUBLINGS} and {size << DOUBLINGS}: {min(times[0])}, {min(times[1])}"
    )
    if memory:
        # Not of the large input: to trace its memory would take several times as long as all the tries.
        peaks = _peak(read, small), _peak(read, make(size))
        assert peaks[1] <= MAX_BYTES * max(peaks[0], MIN_PEAK), (
            f"bytes for {size >> DOUBLINGS} and {size}: {peaks}"
        )


def _seconds(read: Callable[[T], object], given: T) -> float:
    gc.disable()  # a collection looks at everything that the tests before have left
    try:
        return seconds_of(lambda: read(given))
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
