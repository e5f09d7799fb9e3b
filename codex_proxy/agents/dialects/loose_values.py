"""Reads what an agent or a model server may send in any form and length."""

from __future__ import annotations

from typing import Any, Final

MAX_LINE_CHARS: Final = 300
"""The most characters of the line that describes an activity."""


def objects_in(value: object) -> list[dict[str, Any]]:
    """Returns the objects in a JSON array; none if the value is something else."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def one_line(text: str) -> str:
    """Returns the words of the text joined by single spaces, at most `MAX_LINE_CHARS` characters."""
    text = " ".join(text[: MAX_LINE_CHARS * 4].split())
    return text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"
