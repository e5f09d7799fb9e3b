"""A client's own words in a message: no more of them than a person reads."""

from __future__ import annotations

from typing import Final

MAX_EXCERPT: Final = 80


def excerpt(words: str) -> str:
    """The beginning of them, and dots for the rest."""
    return words if len(words) <= MAX_EXCERPT else f"{words[:MAX_EXCERPT]}..."
