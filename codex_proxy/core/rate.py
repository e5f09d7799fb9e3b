"""How many requests a minute a key may make: a token bucket for each key.

In: a key and the time (from an injected clock). Out: whether the request may pass, and the figures that the
`x-ratelimit-*` headers carry. It knows neither headers nor who the keys belong to.
"""

from __future__ import annotations

import msgspec

from codex_proxy.core.ids import Clock

MOST_BUCKETS = 1024
"""Full buckets say nothing that a new one would not: past this many they are dropped."""


class Allowance(msgspec.Struct, frozen=True):
    """What one request found. Times are seconds."""

    allowed: bool
    limit: int
    remaining: int
    full_after: float
    """Until nothing of the past counts any more."""
    wait: float
    """Until the next request may pass; 0 if it may at once."""


class RateLimits:
    """Buckets of `per_minute` requests that fill evenly: a full one takes a minute's worth at once."""

    def __init__(self, per_minute: int, clock: Clock) -> None:
        self._limit = per_minute
        self._per_second = per_minute / 60
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}
        """Per key what was in its bucket, and when."""

    def take(self, key: str) -> Allowance:
        """Takes one request out of the key's bucket, if there is one in it."""
        now = self._clock.monotonic()
        level = self._level(key, now)
        allowed = level >= 1
        if allowed:
            level -= 1
        self._buckets[key] = (level, now)
        if len(self._buckets) > MOST_BUCKETS:
            self._drop_full(now)
        return Allowance(
            allowed,
            self._limit,
            int(level),
            (self._limit - level) / self._per_second,
            max(0.0, (1 - level) / self._per_second),
        )

    def _level(self, key: str, now: float) -> float:
        level, since = self._buckets.get(key, (float(self._limit), now))
        return min(float(self._limit), level + (now - since) * self._per_second)

    def _drop_full(self, now: float) -> None:
        for key in [key for key in self._buckets if self._level(key, now) >= self._limit]:
            del self._buckets[key]
