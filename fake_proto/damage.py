"""Changes the types of the values in a line of JSON, for the fault `wrong_types`.

The fields that assign the line to a turn keep their values, so that the line reaches the turn.
"""

from __future__ import annotations

import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

KEPT = frozenset(("id", "method", "type", "threadId", "turnId", "itemId", "callId", "call_id"))


def with_other_types(line: bytes) -> bytes:
    """Returns the line of JSON with the same names, and every value replaced by one of another type."""
    return json.dumps(_changed(json.loads(line))).encode() + b"\n"


def _changed(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: each if key in KEPT else _changed(each) for key, each in value.items()}
    if isinstance(value, list):
        return {str(index): _changed(each) for index, each in enumerate(value)}
    if isinstance(value, str):
        return len(value)
    return ["nothing" if value is None else str(value)]
