"""What may be said of an exception in a log: what kind it was and where it happened, never its text.

The text of an exception often holds a piece of what it failed on: a prompt, a path, a key. In: an exception. Out:
fields of a log line. Reads no source file.
"""

from __future__ import annotations

import traceback
from typing import Any, Final

MAX_CAUSES: Final = 5


def trace_of(error: BaseException) -> dict[str, Any]:
    """`raised`, `caused_by` (the nearest first) and `at`, from the outermost place to the innermost."""
    return {
        "raised": type(error).__name__,
        "caused_by": [type(cause).__name__ for cause in _causes(error)],
        "at": [
            f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}"
            for frame, line in traceback.walk_tb(error.__traceback__)
        ],
    }


def _causes(error: BaseException) -> list[BaseException]:
    """What it came of; of a group: what the group holds."""
    found: list[BaseException] = []
    to_see = _behind(error)
    while to_see and len(found) < MAX_CAUSES:
        cause = to_see.pop(0)
        found.append(cause)
        to_see += _behind(cause)
    return found


def _behind(error: BaseException) -> list[BaseException]:
    inner = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    cause = error.__cause__ or error.__context__
    return inner if cause is None else [*inner, cause]
