"""The tokens that turns have used, as sums."""

from __future__ import annotations

from typing import Final

import msgspec

HOUR: Final = 3600
DAY: Final = 24 * HOUR


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Sums over turns. `cached` is part of `input`, `reasoning` of `output`."""

    turns: int = 0
    failed: int = 0
    """Number of turns that failed, or found no slot."""
    estimated: int = 0
    """Number of turns whose tokens were not reported."""
    input: int = 0
    cached: int = 0
    output: int = 0
    reasoning: int = 0

    def __add__(self, other: Figures) -> Figures:
        return Figures(**{name: getattr(self, name) + getattr(other, name) for name in FIGURES})


FIGURES: Final = Figures.__struct_fields__


class UsageSum(msgspec.Struct, frozen=True):
    """The sums of the bucket that begins at `start`. `model` is empty for all models, `owner` is empty if the query
    names one.
    """

    start: int
    model: str
    figures: Figures
    owner: str = ""
