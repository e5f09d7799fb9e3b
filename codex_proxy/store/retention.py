"""What `Retention` removes, as rules in their order, each applied in small writes until it removes nothing: what is too
old, responses above their number; then, while the store is too large, steps, stream events, and the oldest objects. The
number of chains is limited when one may have been added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Literal, NamedTuple, TypeAlias

from codex_proxy.store.values import PruneResult, Retention

OBJECTS_AT_ONCE: Final = 50
"""Maximum objects that one write removes, in some ms."""
ROWS_AT_ONCE: Final = 1000
"""Maximum steps or frames that one write removes."""

NOTHING_REMOVED: Final = PruneResult()


Removed: TypeAlias = Literal["steps", "frames", "usage", "responses", "conversations", "records"]
What: TypeAlias = Removed | Literal["objects"]


class Rule(NamedTuple):
    """A step of the removal: removes the oldest rows, or objects of all kinds (`objects`), from before `before`
    (seconds since 1970).
    """

    what: What
    before: float
    max_count: int | None = None
    """If set, the rule applies only while there are more responses."""
    max_bytes: int | None = None
    """If set, the rule applies only while more bytes are stored."""

    @property
    def at_once(self) -> int:
        """Maximum rows or objects that one write removes."""
        return ROWS_AT_ONCE if self.what in ("steps", "frames", "usage") else OBJECTS_AT_ONCE


JUMP_SECONDS: Final = 2 * 86400.0
"""A clock that is more seconds than this ahead of the last use may be wrong."""
STEADY_SECONDS: Final = 3600.0
"""A clock that seemed wrong is believed after these seconds without a correction: then the store was really unused
for so long.
"""
CORRECTION_SECONDS: Final = 60.0


class AgeClock:
    """The time at which ages are counted. While the clock may be wrong, it is `JUMP_SECONDS` after the last use: what a
    wrong clock lets expire would be lost.
    """

    def __init__(self, last_use: float | None) -> None:
        self._last_use = last_use
        self._offset: float | None = None
        self._steady_since = 0.0

    def now(self, epoch: float, monotonic: float) -> float:
        """Returns the time to which ages are counted, in seconds since 1970. `epoch`, `monotonic`: the present."""
        offset = epoch - monotonic
        if self._offset is None or abs(offset - self._offset) > CORRECTION_SECONDS:
            self._offset, self._steady_since = offset, monotonic
        last_use, steady = self._last_use, monotonic - self._steady_since
        if last_use is not None and epoch > last_use + JUMP_SECONDS and steady < STEADY_SECONDS:
            return last_use + JUMP_SECONDS
        self._last_use = epoch
        return epoch


def rules(retention: Retention, step_age: float, now: float) -> Iterator[Rule]:
    """Yields the rules at the time `now` (seconds since 1970). Steps are kept for `step_age` seconds."""
    yield Rule("steps", now - step_age)
    yield Rule("frames", now - retention.frames_age)
    if retention.usage_age is not None:
        yield Rule("usage", now - retention.usage_age)
    if retention.age is not None:
        yield Rule("responses", now - retention.age)
    if retention.conversation_age is not None:
        yield Rule("conversations", now - retention.conversation_age)
        yield Rule("records", now - retention.conversation_age)
    spared_since = now - retention.spared
    if retention.max_responses is not None:
        yield Rule("responses", spared_since, max_count=retention.max_responses)
    if retention.max_bytes is not None:
        yield Rule("steps", spared_since, max_bytes=retention.max_bytes)
        yield Rule("frames", spared_since, max_bytes=retention.max_bytes)
        yield Rule("objects", spared_since, max_bytes=retention.max_bytes)
