"""How often Python's garbage collector looks, in a process that serves."""

from __future__ import annotations

import gc

COLLECT_AFTER = 20_000
"""Objects, a few MB of them, that may be there more than at the collector's last look. Python comes with 700."""


def tune_gc() -> None:
    """Lets the collector look less often, and not at what was there before the first request.

    What a turn leaves is freed by counting references (`tests/http/test_memory.py` holds it to that); each look at
    thousands of streams takes milliseconds, in which none of them moves.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER)
