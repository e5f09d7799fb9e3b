"""The guard of streams: no more than so many at once, each counted from before its agent is started until its
exchange is over. Source: docs/contract.md#the-guard-of-streams.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Final, Literal

import msgspec
import structlog
from aiohttp import web

from codex_proxy.core.fair_queue import share_of
from codex_proxy.core.faults import Failure, Fault, FaultKind

log = structlog.get_logger("codex_proxy.http")

Release = Literal["finish", "close", "aborted"]
"""How a stream ended: as it should, by a fault of ours or the agent's, or because its client left."""


class Count(msgspec.Struct, frozen=True):
    """How many streams there were before and after one asked for its place; `limit` 0 is none."""

    before: int
    after: int
    limit: int

    def headers(self) -> dict[str, str]:
        """What the test instrumentation tells of it."""
        return {
            "X-Conc-Before": str(self.before),
            "X-Conc-After": str(self.after),
            "X-Conc-Limit": str(self.limit),
        }


class ConcurrencyFault(Fault):
    """A stream was turned away; `count` is what it found. `theirs`: its owner has as many already as it may have."""

    def __init__(self, count: Count, theirs: int | None = None) -> None:
        message = f"{count.before} streams are open, and this server allows {count.limit} at once."
        if theirs is not None:
            message = (
                f"{theirs} of this server's {count.limit} streams are this key's; the rest is for others."
            )
        super().__init__(
            Failure(kind=FaultKind.CONCURRENCY_EXCEEDED, message=f"{message} Try again when one has ended.")
        )
        self.count = count


class SseGuard:
    """Counts open streams, and turns away the one that is too many. `limit` None: it only counts. `owners` tells how
    many there may be: with several, none of them gets every place."""

    def __init__(self, limit: int | None, owners: Callable[[], int] = lambda: 1) -> None:
        self.active = 0
        self._limit = limit
        self._owners = owners
        self._by_owner: Counter[str] = Counter()

    def acquire(self, request_id: str, owner: str = "") -> Place:
        """A place for one stream. Raises `ConcurrencyFault` where there is none."""
        before, theirs = self.active, self._by_owner[owner]
        if self._limit is not None:
            full = before >= self._limit
            if full or theirs >= share_of(self._limit, self._owners()):
                count = self._count(before)
                self._tell("rejected", count, request_id)
                raise ConcurrencyFault(count, None if full else theirs)
        self.active += 1
        self._by_owner[owner] += 1
        count = self._count(before)
        self._tell("acquired", count, request_id)
        return Place(self, request_id, owner, count)

    def _count(self, before: int) -> Count:
        return Count(before, self.active, self._limit or 0)

    def give_back(self, request_id: str, owner: str, how: Release) -> None:
        before = self.active
        self.active -= 1
        self._by_owner[owner] -= 1
        if not self._by_owner[owner]:
            del self._by_owner[owner]
        self._tell("released", self._count(before), request_id, cause=how)

    def _tell(self, outcome: str, count: Count, request_id: str, **more: str) -> None:
        tell = log.debug if self._limit is None else log.info
        tell(
            "sse_guard",
            scope="sse_guard",
            outcome=outcome,
            before=count.before,
            after=count.after,
            limit=self._limit,
            req_id=request_id,
            **more,
        )


class Place:
    """One stream's place. Given back once, however often its end is told."""

    def __init__(self, guard: SseGuard, request_id: str, owner: str, count: Count) -> None:
        self.count = count
        self._guard: SseGuard | None = guard
        self._request_id = request_id
        self._owner = owner

    def release(self, how: Release) -> None:
        guard, self._guard = self._guard, None
        if guard is not None:
            guard.give_back(self._request_id, self._owner, how)


STREAM_GUARD: Final = web.AppKey("stream_guard", SseGuard)
