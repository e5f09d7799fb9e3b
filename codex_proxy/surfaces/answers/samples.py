"""Combines several turns into one with several choices. The prompt counts once, answers are summed
(docs/contract.md#whole-answers). The first failure ends it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from codex_proxy.core.events import (
    AnnotationAdded,
    ArgumentsDelta,
    EmptyReason,
    Event,
    HostedEvent,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    StepCompleted,
    TextDelta,
    TurnEnded,
    Usage,
    UsageReported,
)
from codex_proxy.surfaces.answers.usage import TurnTokens

ItemEvent: TypeAlias = (
    TextDelta
    | RefusalDelta
    | AnnotationAdded
    | ReasoningDelta
    | ArgumentsDelta
    | OutputDelta
    | HostedEvent
    | ItemEnded
)


class Samples:
    """The samples of one turn. `feed` takes each turn's events in order; turns may alternate."""

    def __init__(self, count: int) -> None:
        self.ended = False
        self._spent = [TurnTokens() for _ in range(count)]
        self._open: set[str] = set()
        self._ends: dict[int, TurnEnded] = {}

    def feed(self, choice: int, events: Iterable[Event]) -> list[Event]:
        """Returns the combined turn's events; none after `ended`."""
        out: list[Event] = []
        for event in events:
            if self.ended:
                break
            if isinstance(event, ItemStarted):
                self._start(choice, event, out)
            elif isinstance(event, ItemEvent):
                self._continue(choice, event, out)
            elif isinstance(event, UsageReported):
                self._spent[choice].add_total(event)
            elif isinstance(event, StepCompleted):
                self._spent[choice].add_call(event)
            elif isinstance(event, TurnEnded):
                self._end(choice, event, out)
        return out

    def _start(self, choice: int, event: ItemStarted, out: list[Event]) -> None:
        """Begins an item; of several choices of a turn only the first is used."""
        if event.item.choice in (None, 0):
            id = f"{choice}/{event.item.id}"
            self._open.add(id)
            out.append(ItemStarted(msgspec.structs.replace(event.item, id=id, choice=choice)))

    def _continue(self, choice: int, event: ItemEvent, out: list[Event]) -> None:
        id = f"{choice}/{event.id}"
        if id not in self._open:
            return
        if isinstance(event, ItemEnded):
            self._open.discard(id)
        out.append(msgspec.structs.replace(event, id=id))

    def _end(self, choice: int, event: TurnEnded, out: list[Event]) -> None:
        if event.failure is not None:
            self.ended = True
            out.append(event)
            return
        self._ends[choice] = event
        if len(self._ends) < len(self._spent):
            return
        self.ended = True
        usages = [spent.reported for spent in self._spent if spent.reported is not None]
        if len(usages) == len(self._spent):
            partial = any(spent.partial for spent in self._spent)
            out.append(UsageReported(_total(usages), self._spent[0].trigger, partial))  # type: ignore[arg-type]
        stops = {index: (end.choice_stops or {}).get(0, end.stop) for index, end in self._ends.items()}
        out.append(
            TurnEnded(stops[0], self._ends[0].trigger, choice_stops=stops, empty=_reason_of(self._ends))
        )


def _reason_of(ends: Mapping[int, TurnEnded]) -> EmptyReason:
    """Returns why all choices are empty, or that one was cancelled."""
    reasons = [ends[index].empty for index in sorted(ends)]
    return "cancelled" if "cancelled" in reasons else reasons[0] if all(reasons) else ""


def _total(usages: list[Usage]) -> Usage:
    # The turns share their prompt.
    first = max(usages, key=lambda usage: usage.input)
    return Usage(
        input=first.input,
        cached=first.cached,
        cache_written=first.cache_written,
        output=sum(usage.output for usage in usages),
        reasoning=sum(usage.reasoning for usage in usages),
    )
