"""Threads that are kept between two requests of one client: idle after an answer, or parked on their calls.

The fast path on top of replay, and never more than that: a thread is used again only by the same owner with the
same model, tools and settings, and only where the new history begins with exactly what the thread has seen.
Anything else is a miss. Bounded in number and time; what does not come back is interrupted and forgotten.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Sequence

import msgspec

from codex_proxy.agents.base import Decision
from codex_proxy.core.events import ApprovalAsked, Event, InputAsked
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import HistoryItem, PastOutput
from codex_proxy.core.turn import Turn
from codex_proxy.runs.deadlines import Scheduler, TimerHandle
from codex_proxy.runs.seat import Seat
from codex_proxy.tools.broker import Answered
from codex_proxy.tools.fingerprint import Prints, fresh_after, prints_of


class KeptLimits(msgspec.Struct, frozen=True):
    """How many threads are kept (1.4 MiB each), and for how many seconds.

    The time is about that of the provider's prompt cache, whose key a kept thread keeps; later nothing is won.
    """

    count: int = 32
    seconds: float = 300.0


class Parked(msgspec.Struct, frozen=True):
    """What a parked thread waits for: the client's outputs, and those that are ours to give with them."""

    visible: frozenset[str] = frozenset()
    hidden: tuple[Answered, ...] = ()


class _Kept:
    __slots__ = ("key", "parked", "prints", "seat", "timer")

    def __init__(self, key: bytes, seat: Seat, prints: Prints, parked: Parked, timer: TimerHandle) -> None:
        self.key = key
        self.seat = seat
        self.prints = prints
        self.parked = parked
        self.timer = timer


class Hit(msgspec.Struct, frozen=True):
    """A thread to go on with, and what is new to it."""

    seat: Seat
    fresh: tuple[HistoryItem, ...]
    hidden: tuple[Answered, ...]


def thread_key(owner: str, turn: Turn) -> bytes:
    """What must be the same for a thread to serve another turn.

    What is fixed when it starts, and what the agent keeps for later turns that do not say it anew (effort,
    summary, tier); a parked turn's output schema cannot be changed either.
    """
    fixed = (
        owner,
        turn.mode,
        turn.model,
        turn.tools,
        turn.tool_choice,
        turn.web_search,
        turn.verbosity,
        turn.workdir,
        turn.sandbox,
        turn.effort,
        turn.summary,
        turn.service_tier,
        turn.output_schema,
    )
    return hashlib.sha256(msgspec.json.encode(fixed)).digest()


class KeptThreads:
    """The listener of resting seats. `put` gives one into its care, `take` gets one out of it."""

    def __init__(self, limits: KeptLimits, scheduler: Callable[[], Scheduler]) -> None:
        self._limits = limits
        self._scheduler = scheduler
        self._kept: OrderedDict[int, _Kept] = OrderedDict()
        """By the seat's identity, the longest kept first."""

    def __len__(self) -> int:
        return len(self._kept)

    def put(self, key: bytes, seat: Seat, prints: Prints, parked: Parked) -> None:
        """Keeps a seat that rests. One too many ends the one that has rested longest."""
        if not seat.resting or self._limits.count == 0:
            seat.close()
            return
        scheduler = self._scheduler()
        when = scheduler.time() + self._limits.seconds
        timer = scheduler.call_at(when, lambda: self._drop(seat))
        seat.listener = self
        seat.rest(True)
        self._kept[id(seat)] = _Kept(key, seat, prints, parked, timer)
        while len(self._kept) > self._limits.count:
            self._drop(next(iter(self._kept.values())).seat)

    def take(self, key: bytes, history: Sequence[HistoryItem]) -> Hit | None:
        """The thread that this history goes on with. It is then no longer kept."""
        printed: tuple[Prints, tuple[int, ...]] | None = None
        for kept in reversed(self._kept.values()):
            if kept.key != key or not kept.seat.resting:
                continue
            printed = printed or prints_of(history)
            fresh = fresh_after(kept.prints, history, printed)
            if fresh is None or not _fits(kept.parked, fresh):
                continue
            self._forget(kept.seat)
            kept.seat.rest(False)
            return Hit(kept.seat, fresh, kept.parked.hidden)
        return None

    def close(self) -> None:
        """Ends all of them."""
        for kept in list(self._kept.values()):
            self._drop(kept.seat)

    def _drop(self, seat: Seat) -> None:
        if self._forget(seat):
            seat.close()

    def _forget(self, seat: Seat) -> bool:
        kept = self._kept.pop(id(seat), None)
        if kept is not None:
            kept.timer.cancel()
        return kept is not None

    # --- what a resting agent may still say -------------------------------------------------------

    def stepped(self, seat: Seat, events: list[Event], size: int) -> None:
        for event in events:
            if isinstance(event, ApprovalAsked | InputAsked):
                seat.answer(event.ask_id, Decision())
        if seat.gone or not seat.resting:
            self._drop(seat)

    def failed(self, seat: Seat, failure: Failure) -> None:
        self._drop(seat)

    def broke(self, seat: Seat) -> None:
        self._forget(seat)


def _fits(parked: Parked, fresh: Sequence[HistoryItem]) -> bool:
    """An idle thread takes anything new; a parked one exactly the outputs that it waits for."""
    if not parked.visible:
        return not any(isinstance(item, PastOutput) for item in fresh)
    outputs = [item.call_id for item in fresh if isinstance(item, PastOutput)]
    return (
        len(outputs) == len(fresh) and len(outputs) == len(parked.visible) and set(outputs) == parked.visible
    )
