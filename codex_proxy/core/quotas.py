"""How much a key may have: requests a minute (a token bucket for each key), requests at once, and bytes of bodies.

In: a key's name, its limit, and the time (from an injected clock). Out: whether the request may pass, and the figures
that the `x-ratelimit-*` headers carry. It knows neither headers nor who the keys belong to.
"""

from __future__ import annotations

from collections import Counter
from typing import Literal

import msgspec

from codex_proxy.core.ids import Clock

MAX_BUCKETS = 1024
"""Full buckets say nothing that a new one would not: past this many they are dropped."""


class Allowance(msgspec.Struct, frozen=True):
    """What a rate limit says to one request. Times are in seconds."""

    allowed: bool
    limit: int
    remaining: int
    full_after: float
    """Until nothing of the past counts any more."""
    wait: float
    """Until the next request may pass; 0 if it may at once."""


class _Bucket(msgspec.Struct, frozen=True):
    """How many requests were left at a time, and how many it holds at most."""

    level: float
    since: float
    limit: int

    def at(self, now: float) -> float:
        return min(float(self.limit), self.level + (now - self.since) * self.limit / 60)


class RateLimits:
    """Buckets that fill evenly: a full one takes a minute's worth at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._buckets: dict[str, _Bucket] = {}

    def take(self, key: str, per_minute: int) -> Allowance:
        """Takes one request from the key's bucket of `per_minute`, if one is left.

        A limit that changes counts from now on; what was used up before stays so.
        """
        now = self._clock.monotonic()
        before = self._buckets.get(key)
        level = float(per_minute) if before is None else min(float(per_minute), before.at(now))
        allowed = level >= 1
        if allowed:
            level -= 1
        self._buckets[key] = _Bucket(level, now, per_minute)
        if len(self._buckets) > MAX_BUCKETS:
            self._drop_full(now)
        second = per_minute / 60
        return Allowance(
            allowed, per_minute, int(level), (per_minute - level) / second, max(0.0, (1 - level) / second)
        )

    def _drop_full(self, now: float) -> None:
        for key in [key for key, bucket in self._buckets.items() if bucket.at(now) >= bucket.limit]:
            del self._buckets[key]


class RunningRequests:
    """Counts the requests under way of each key."""

    def __init__(self) -> None:
        self._running: dict[str, int] = {}

    def enter(self, key: str, limit: int) -> bool:
        """Counts one more, unless there are `limit` already (0: any number). Whoever entered has to `leave`."""
        running = self._running.get(key, 0)
        if limit and running >= limit:
            return False
        self._running[key] = running + 1
        return True

    def leave(self, key: str) -> None:
        left = self._running[key] - 1
        if left:
            self._running[key] = left
        else:
            del self._running[key]

    def of(self, key: str) -> int:
        return self._running.get(key, 0)


Refusal = Literal["owner", "total"]
"""Whose limit it is that has no room."""


class ByteBudget:
    """Bounds bytes in memory: `total` for all owners together, `each` for one of them; 0 for no bound."""

    def __init__(self, total: int, each: int) -> None:
        self.total = total
        self.each = each
        self._held: Counter[str] = Counter()

    @property
    def held(self) -> int:
        return self._held.total()

    def take(self, owner: str, size: int) -> Refusal | None:
        """Counts `size` more bytes, or returns which limit has no room for them. An owner that holds nothing always
        has room, because one body may be larger than this limit and has a limit of its own."""
        theirs = self._held[owner]
        if self.each and theirs and theirs + size > self.each:
            return "owner"
        if self.total and self.held and self.held + size > self.total:
            return "total"
        self._held[owner] += size
        return None

    def give_back(self, owner: str, size: int) -> None:
        self._held[owner] -= size
        if not self._held[owner]:
            del self._held[owner]
