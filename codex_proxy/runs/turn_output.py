"""What becomes of a turn's events after the attempt: they are repaired, kept within the limits, and logged. Usage is
summed over the attempts, and the model's raw items are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence

from codex_proxy.core.events import Event, TurnEnded, Usage, UsageReported
from codex_proxy.core.faults import Failure
from codex_proxy.core.items import HistoryItem, Item, RawHistoryItem
from codex_proxy.core.limits import TurnLimits
from codex_proxy.core.repair import TurnRepair
from codex_proxy.runs.deadlines import deadline_failure
from codex_proxy.runs.event_log import EventLog
from codex_proxy.runs.observers import TurnObserver
from codex_proxy.tools.replay import clean_item, output_id


class TurnOutput:
    """The log of one turn, and what stands before it. `on_backlog`: see `EventLog`; `forwards`: the answer is passed on
    as it is; `observers` get all events of the log.
    """

    def __init__(
        self,
        limits: TurnLimits,
        on_backlog: Callable[[int], None],
        *,
        forwards: bool,
        observers: Sequence[TurnObserver],
    ) -> None:
        self.log = EventLog(on_backlog)
        self.observers = observers
        self.raw: list[bytes] = []
        """Raw items of this turn, in order: what the model has to see again."""
        self._limits = limits
        self._forwards = forwards
        self._repair = TurnRepair()
        self._spent_before = Usage()
        """The tokens of a first attempt that was discarded."""
        self._spent: UsageReported | None = None
        """The newest report of the current attempt; None if there was none."""
        self._uncounted = False
        """Whether an attempt was discarded whose tokens the agent has not reported."""

    @property
    def ended(self) -> bool:
        """Whether the turn is over. The log may still get the last events."""
        return self._repair.ended

    @property
    def open_item(self) -> Item | None:
        """The item on which the agent works; None if no item is open."""
        return self._repair.open_item

    def deadline_failure(self, late: Failure, hint: str) -> Failure:
        """Returns the failure of a turn that a deadline ends, with the agent's last retry (`deadlines`)."""
        return deadline_failure(late, self._repair.retrying, self._repair.retries, hint)

    def repair(self, events: Sequence[Event]) -> list[Event]:
        """Returns the events, well-formed."""
        return self._repair.feed(events)

    def add_usage(self, reported: UsageReported) -> UsageReported:
        """Returns the reported usage plus that of a discarded attempt: the client pays for both."""
        self._spent = reported
        partial = self._uncounted or reported.partial
        return UsageReported(self._spent_before + reported.usage, reported.trigger, partial=partial)

    def begin_attempt(self) -> list[Event]:
        """Discards what the attempt has written, but for its usage. Returns events for the log."""
        self.raw.clear()
        spent, self._spent = self._spent, None
        if spent is None:
            return []
        self._spent_before += spent.usage
        # Until the new attempt's tokens are reported, if they ever are.
        return [UsageReported(self._spent_before, spent.trigger, partial=True)]

    def lose_count(self) -> None:
        """Notes that the attempt is discarded although it has begun; its tokens may be unknown."""
        self._uncounted = self._uncounted or self._spent is None

    def ran_items(self, ran: Container[str | None]) -> tuple[HistoryItem, ...]:
        """Returns the model's items up to the last output of the calls `ran`, for the history of a second attempt."""
        last = max((index for index, raw in enumerate(self.raw) if output_id(raw) in ran), default=-1)
        return tuple(RawHistoryItem(clean_item(raw)) for raw in self.raw[: last + 1])

    def within_limits(self, events: list[Event]) -> list[Event]:
        """Returns the events within the limits; at a limit, with the end of the turn."""
        events, stop = self._limits.feed(events)
        if stop is not None:
            self._repair.feed([TurnEnded(stop)])
            met = self._limits.stop_sequence
            events = [
                *events,
                TurnEnded(stop, "provider", cut=True, stop_sequence=met, empty=self._limits.empty),
            ]
        if events and type(events[-1]) is TurnEnded and not (events[-1].cut or self._forwards):
            events[-1] = self._repair.explained(events[-1])
        return events

    def append(self, events: list[Event], size: int, *, ended: bool = False) -> None:
        """Appends to the log. `size`: bytes of agent output. `ended`: these are the last events."""
        for observer in self.observers:
            observer.add(events)
        self.log.append(events, size, ended=ended)
