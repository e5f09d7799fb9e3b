"""The figures of a torture, and what they say. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

from scripts.torture_lib.watched_server import LOOK_SECONDS, Held

MAX_GROWTH = 30.0
"""MiB of RAM by which the steady server may grow in a run, after it was warm."""
MIN_SAMPLES = 6
"""Measurements of RAM from which a growth can be told."""
MAX_DELAY = 0.1
"""Seconds by which the event loop may be late through the server's own work, but for one moment in a thousand."""
MIN_EXCEPTIONS = 10
"""Of a short run so many looks are left out: one moment in a thousand would be none."""
KINDS = {
    "crossed": "answers that are another request's, or another conversation's",
    "lost": "acknowledged and gone, or never told by webhook",
    "stuck": "requests, turns or responses that do not end",
    "leaked": "left open when nobody asks for anything",
    "wrong": "answers that nobody may get",
    "held": "event loop held by the server's own work",
    "grown": "growth of RAM after the server was warm",
}


@dataclass
class Report:
    """The figures of a run. The lists hold one line for each finding."""

    seed: int
    seconds: float
    plant: str = "none"
    requests: dict[str, int] = field(default_factory=dict)
    kills: dict[str, int] = field(default_factory=dict)
    acknowledged: dict[str, int] = field(default_factory=dict)
    crossed: list[str] = field(default_factory=list)
    answered_early: int = 0
    """Answers that the evil upstream sent before it had read the request, and behind it."""
    lost: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    late: list[float] = field(default_factory=list, repr=False)
    """How late the event loop of the steady server was in each look."""
    longest: list[Held] = field(default_factory=list)
    """The callbacks that held the event loop longest."""
    resident: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the server was warm, and MiB of its RAM then, whenever nobody asked for anything."""

    def leave_out_late(self, nonces: Sequence[str]) -> None:
        """Leaves out crossed answers with unasked bytes that came behind their request: in HTTP, its answer."""
        kept = [line for line in self.crossed if not any(nonce in line for nonce in nonces)]
        self.answered_early += len(self.crossed) - len(kept)
        self.crossed = kept

    @property
    def loop_delay_p999(self) -> float:
        return delay(self.late, 0.999)

    @property
    def growth(self) -> float:
        """MiB by which the RAM has grown: its slope, which single peaks do not move, times the time. The first third
        does not count: what is kept of the largest inputs is not there before they have come.
        """
        warm = self.resident[len(self.resident) // 3 :]
        slopes = [(b - a) / (t - s) for (s, a), (t, b) in combinations(warm, 2) if t > s]
        return median(slopes) * (warm[-1][0] - warm[0][0]) if slopes else 0.0

    @property
    def held(self) -> list[str]:
        if self.loop_delay_p999 <= MAX_DELAY:
            return []
        named = "; ".join(
            f"{each['seconds']:.2f} s {each['name']} ({each['place']})" for each in self.longest[:3]
        )
        return [
            f"late by {self.loop_delay_p999:.2f} s (p99.9); held longest by {named or 'no single callback'}"
        ]

    @property
    def grown(self) -> list[str]:
        if len(self.resident) < MIN_SAMPLES or self.growth <= MAX_GROWTH:
            return []
        return [f"the steady server grows by {self.growth:.0f} MiB in this time"]

    @property
    def findings(self) -> dict[str, list[str]]:
        """What has to be mended, by its kind."""
        return {kind: getattr(self, kind) for kind in KINDS}

    def lines(self) -> list[str]:
        """The report in words: a line for each kind, and the first findings of it."""
        said = [
            f"seed {self.seed}: {sum(self.requests.values())} requests in {self.seconds:.0f} s; kills {self.kills}",
            f"acknowledged and looked for: {self.acknowledged}",
            f"event loop late by {self.loop_delay_p999:.3f} s (p99.9), {max(self.late, default=0.0):.3f} s at most",
            f"RAM {self.resident[0][1]:.0f} MiB when warm, {self.resident[-1][1]:.0f} MiB at the end, "
            f"growth {self.growth:.0f} MiB",
        ]
        if self.answered_early:
            said.append(
                f"{self.answered_early} requests were answered before the evil upstream had read them"
            )
        for kind, found in self.findings.items():
            said.append(f"{kind:8} {len(found):4}   ({KINDS[kind]})")
            said += [f"    {line}" for line in found[:20]]
        return said

    def figures(self) -> dict[str, object]:
        """The report as JSON values."""
        return {
            **{name: getattr(self, name) for name in ("seed", "seconds", "plant", "requests", "kills")},
            "acknowledged": self.acknowledged,
            **self.findings,
            "loop_delay_p999": self.loop_delay_p999,
            "answered_early": self.answered_early,
            "longest_callbacks": self.longest,
            "resident_mib": {"warm": self.resident[0][1], "end": self.resident[-1][1], "growth": self.growth},
        }


def delay(late: Sequence[float], share: float) -> float:
    """By how much the loop is late at most, in this share of all moments. While it is held for long, all the looks
    that should have been meanwhile are late, too.
    """
    all_looks = []
    for each in late:
        all_looks.append(each)
        while (each := each - LOOK_SECONDS) > 0:
            all_looks.append(each)
    exceptions = max(MIN_EXCEPTIONS, int(len(all_looks) * (1 - share)))
    return sorted(all_looks)[-exceptions - 1] if len(all_looks) > exceptions else 0.0
