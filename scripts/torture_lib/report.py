"""The figures of a run, and the findings that follow from them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import combinations
from statistics import median

from scripts.torture_lib.watched_server import LOOK_SECONDS, Held

MAX_GROWTH = 30.0
"""Maximum growth of the steady server's RAM, in MiB, once it is warm."""
MIN_SAMPLES = 6
"""Minimum measurements of RAM from which a growth can be derived."""
MAX_DELAY = 0.1
"""Maximum seconds by which the server's own work may make the event loop late, but for one moment in a thousand."""
MIN_EXCEPTIONS = 10
"""Number of measurements that are left out of a short run: one in a thousand would be none."""
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
    """The figures of a run. Each list has one line for each finding."""

    seed: int
    seconds: float
    plant: str = "none"
    requests: dict[str, int] = field(default_factory=dict)
    kills: Counter[str] = field(default_factory=Counter)
    acknowledged: dict[str, int] = field(default_factory=dict)
    crossed: list[str] = field(default_factory=list)
    answered_early: int = 0
    """Unrequested answers of the evil upstream that arrived after a request was sent, and so count as its answer."""
    lost: list[str] = field(default_factory=list)
    stuck: list[str] = field(default_factory=list)
    leaked: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    late: list[float] = field(default_factory=list, repr=False)
    """How late the event loop of the steady server was at each measurement."""
    longest: list[Held] = field(default_factory=list)
    """The callbacks that held the event loop longest."""
    resident: list[tuple[float, float]] = field(default_factory=list)
    """Seconds since the steady server was warm, and MiB of its RAM then, whenever no request was running."""

    def leave_out_late(self, nonces: Sequence[str]) -> None:
        """Leaves out crossed answers that are unrequested bytes which arrived after a request was sent: in HTTP they
        are its answer.
        """
        kept = [line for line in self.crossed if not any(nonce in line for nonce in nonces)]
        self.answered_early += len(self.crossed) - len(kept)
        self.crossed = kept

    @property
    def loop_delay_p999(self) -> float:
        return delay(self.late, 0.999)

    @property
    def growth(self) -> float:
        """The growth of the RAM in MiB: the median slope, which single peaks do not move, times the time. The first
        third does not count: the largest inputs have not come before, and some of what they need is kept.
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
        """The findings by kind."""
        return {kind: getattr(self, kind) for kind in KINDS}

    def lines(self) -> list[str]:
        """Returns the report as text: a line for each kind, and its first findings."""
        said = [
            f"seed {self.seed}: {sum(self.requests.values())} requests in {self.seconds:.0f} s",
            f"kills {dict(self.kills)}",
            f"acknowledged and looked for: {self.acknowledged}",
            f"event loop late by {self.loop_delay_p999:.3f} s (p99.9), {max(self.late, default=0.0):.3f} s at most",
        ]
        if self.resident:
            said.append(
                f"RAM {self.resident[0][1]:.0f} MiB when warm, {self.resident[-1][1]:.0f} MiB at the end, "
                f"growth {self.growth:.0f} MiB"
            )
        if self.answered_early:
            said.append(
                f"{self.answered_early} requests were answered before the evil upstream had read them"
            )
        for kind, found in self.findings.items():
            said.append(f"{kind:8} {len(found):4}   ({KINDS[kind]})")
            said += [f"    {line}" for line in found[:20]]
        return said

    def figures(self) -> dict[str, object]:
        """Returns the report as JSON values."""
        return {
            **{name: getattr(self, name) for name in ("seed", "seconds", "plant", "requests", "kills")},
            "acknowledged": self.acknowledged,
            **self.findings,
            "loop_delay_p999": self.loop_delay_p999,
            "answered_early": self.answered_early,
            "longest_callbacks": self.longest,
            "resident_mib": {
                "warm": self.resident[0][1] if self.resident else None,
                "end": self.resident[-1][1] if self.resident else None,
                "growth": self.growth,
            },
        }


def delay(late: Sequence[float], share: float) -> float:
    """Returns the delay of the loop that all but a `1 - share` of the measurements stay below. While the loop is held
    for long, all the measurements that were due meanwhile are late, too.
    """
    all_looks = []
    for each in late:
        all_looks.append(each)
        while (each := each - LOOK_SECONDS) > 0:
            all_looks.append(each)
    exceptions = max(MIN_EXCEPTIONS, int(len(all_looks) * (1 - share)))
    return sorted(all_looks)[-exceptions - 1] if len(all_looks) > exceptions else 0.0
