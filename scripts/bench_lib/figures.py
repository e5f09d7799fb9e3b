"""A measurement: samples of two sides, taken in turns, and the ratio of their quantiles."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Figure:
    """One line of the table. `ratio` is the proxy's figure divided by that of `against`, if it is compared with
    something; `value` is the proxy's own figure, if the goal is in seconds or bytes.
    """

    row: str
    what: str
    against: str
    ratio: float | None
    goal: str
    samples: int
    value: str = ""

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {"ratio": None if self.ratio is None else round(self.ratio, 3)}


def quantile(samples: Sequence[float], share: float) -> float:
    """Returns the sample below which this share of all samples lies (nearest rank)."""
    ranked = sorted(samples)
    return ranked[min(len(ranked) - 1, int(share * len(ranked)))]


def table(figures: Sequence[Figure]) -> str:
    """Returns the figures as text, one per line."""
    head = ("row", "what", "against", "ratio", "value", "goal", "samples")
    lines = [head] + [
        (
            each.row,
            each.what,
            each.against,
            "" if each.ratio is None else f"{each.ratio:.2f}",
            each.value,
            each.goal,
            str(each.samples),
        )
        for each in figures
    ]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )
