"""Reads JSON that somebody else wrote, and whose fields may have any type."""

from __future__ import annotations

from typing import Any, Final

UNREADABLE: Final = (ValueError, RecursionError)
"""The errors of decoding JSON, by `json` or msgspec: it is malformed, or no Unicode, or nested too deep."""


def value_at(value: object, *names: str) -> Any:
    """Returns the value at a path of JSON fields, if any."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def object_at(value: object, *names: str) -> dict[str, Any]:
    """Returns the object at a path of fields, or an empty one."""
    for name in names:  # not by `value_at`: these are called for every message and event
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def text_at(value: object, *names: str) -> str:
    """Returns the text at a path of fields, or empty."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def count_at(value: object, *names: str) -> int | None:
    """Returns the count at a path of fields, if any."""
    found = value_at(value, *names)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return found if 0 <= found < 1 << 53 else None


def objects_in(value: object) -> list[dict[str, Any]]:
    """Returns the objects in a JSON array; none of other values."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []
