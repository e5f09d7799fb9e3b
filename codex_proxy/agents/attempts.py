"""Which upstream is asked next, and when, after an attempt that failed before its answer began.

In: the upstreams that may be asked, one after the other, and the failure of each attempt. Out: the next attempt, or
None. Pure: chance is an argument. What the client has seen anything of is never asked for again; who uses this knows
when that is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from codex_proxy.core.faults import Failure, FaultKind

K = FaultKind

FIRST_WAIT: Final = 0.5
"""Seconds before the first further attempt; twice as long before each after it."""
MAX_WAIT: Final = 8.0

RETRIED: Final = frozenset(
    {
        *(K.UPSTREAM_UNREACHABLE, K.UPSTREAM_DISCONNECTED, K.UPSTREAM_ERROR, K.UNAVAILABLE),
        K.AGENT_RATE_LIMITED,
    }
)
"""Failures after which the same upstream may answer at once."""
ANOTHERS: Final = RETRIED | {
    *(K.UPSTREAM_TIMEOUT, K.UPSTREAM_UNAUTHORIZED, K.USAGE_LIMIT_REACHED, K.INSUFFICIENT_QUOTA),
    *(K.CONCURRENCY_EXCEEDED, K.AGENT_MISCONFIGURED, K.AGENT_NOT_AUTHENTICATED),
}
"""Failures after which another upstream may answer."""
BLAMED: Final = frozenset(
    {
        *(K.UPSTREAM_UNREACHABLE, K.UPSTREAM_DISCONNECTED, K.UPSTREAM_ERROR, K.UNAVAILABLE),
        K.UPSTREAM_TIMEOUT,
    }
)
"""Failures that a breaker counts: the upstream does not work. A limit or a wrong key is an answer."""


class Target(msgspec.Struct, frozen=True):
    """An upstream and its own name of the model that it is asked for."""

    name: str
    model: str
    retries: int = 0
    longest: float = 30.0
    """Seconds that it may ask to wait; a longer wait is not waited for."""


class NextAttempt(msgspec.Struct, frozen=True):
    """The target of the next attempt, and the seconds until it is made."""

    target: Target
    wait: float = 0.0


class AttemptPlan:
    """The attempts of one turn."""

    def __init__(self, targets: Sequence[Target], chance: Callable[[], float]) -> None:
        """`targets`: the first is asked first; there is at least one. `chance`: a number from 0 to 1, by which waits
        differ, so that clients that failed together do not come back together."""
        self.target, *self._others = targets
        self.attempts = 1
        """The number of attempts made, including the current one."""
        self._chance = chance
        self._retried = 0

    @property
    def is_last(self) -> bool:
        """Whether no other upstream is left."""
        return not self._others

    def after(self, failure: Failure, *, refused_here: bool = False) -> NextAttempt | None:
        """Returns the attempt after one that failed; None if there is none. `refused_here`: this server made no
        attempt, so that a further one here would be refused as well."""
        wait = None if refused_here else self._wait_here(failure)
        if wait is not None:
            self._retried += 1
            self.attempts += 1
            return NextAttempt(self.target, wait)
        if not self._others or not (refused_here or failure.kind in ANOTHERS):
            return None
        self.target = self._others.pop(0)
        self._retried = 0
        self.attempts += not refused_here
        return NextAttempt(self.target)

    def _wait_here(self, failure: Failure) -> float | None:
        """Returns the seconds until the same upstream is asked again; None if it is not."""
        if failure.kind not in RETRIED or self._retried >= self.target.retries:
            return None
        if failure.kind is K.AGENT_RATE_LIMITED and self._others:
            return None  # another one need not be waited for
        asked = failure.retry_after or 0.0
        if asked > self.target.longest:
            return None
        backoff = min(FIRST_WAIT * 2.0**self._retried, MAX_WAIT)
        return max(asked, backoff * (0.5 + self._chance() / 2))
