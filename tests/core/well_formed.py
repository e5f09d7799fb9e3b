"""What every log of a turn must be like, checked without a line of the repair that makes it so."""

from __future__ import annotations

from collections.abc import Sequence

from codex_proxy.core.events import (
    AccountLimitsReported,
    AnnotationAdded,
    ArgumentsDelta,
    Event,
    FullArguments,
    FullReasoning,
    FullText,
    HostedEvent,
    ItemEnded,
    ItemStarted,
    Notice,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    Retrying,
    Stop,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.items import Activity, Message, Reasoning, ToolCall

HOMES: dict[type, type] = {
    TextDelta: Message,
    RefusalDelta: Message,
    AnnotationAdded: Message,
    ReasoningDelta: Reasoning,
    ArgumentsDelta: ToolCall,
    OutputDelta: Activity,
    HostedEvent: Activity,
}
"""Which delta may stand in which item."""

NEVER = (FullText, FullReasoning, FullArguments, Retrying)
BEFORE_THE_START = (Notice, AccountLimitsReported)


def violations(events: Sequence[Event], *, ended: bool = True) -> list[str]:
    """What is wrong with a log, in words; `ended` is False for the beginning of one."""
    return [*_of_the_turn(events, ended), *_of_the_items(events)]


def _of_the_turn(events: Sequence[Event], ended: bool) -> list[str]:
    wrong = [f"{type(event).__name__} in a log" for event in events if isinstance(event, NEVER)]
    starts = [n for n, event in enumerate(events) if isinstance(event, TurnStarted)]
    ends = [n for n, event in enumerate(events) if isinstance(event, TurnEnded)]
    if len(starts) > 1 or (ended and not starts):
        wrong.append(f"{len(starts)} starts")
    first = next((n for n, event in enumerate(events) if not isinstance(event, BEFORE_THE_START)), None)
    if first is not None and starts[:1] != [first]:
        wrong.append("something comes before the start")
    if len(ends) > 1 or (ended and not ends):
        wrong.append(f"{len(ends)} ends")
    if ends and ends[0] != len(events) - 1:
        wrong.append("something comes after the end")
    wrong += [
        f"stop {event.stop} with failure {event.failure}"
        for event in events
        if isinstance(event, TurnEnded) and (event.failure is not None) != (event.stop == Stop.FAILED)
    ]
    return wrong


def _of_the_items(events: Sequence[Event]) -> list[str]:
    wrong = []
    kinds: dict[str, type] = {}
    open_ids: list[str] = []
    for event in events:
        name = type(event).__name__
        if isinstance(event, ItemStarted):
            if event.item.id in kinds:
                wrong.append(f"{event.item.id} is opened twice")
            kinds[event.item.id] = type(event.item)
            open_ids.append(event.item.id)
        elif isinstance(event, ItemEnded):
            if event.id not in open_ids:
                wrong.append(f"{event.id} is closed while it is not open")
            else:
                open_ids.remove(event.id)
        elif isinstance(event, tuple(HOMES)):
            id = event.id  # type: ignore[union-attr]
            text = event.json if isinstance(event, AnnotationAdded | HostedEvent) else event.text  # type: ignore[union-attr]
            if id not in open_ids:
                wrong.append(f"{name} outside {id}")
            elif kinds[id] is not HOMES[type(event)]:
                wrong.append(f"{name} in a {kinds[id].__name__}")
            if not text:
                wrong.append(f"{name} that says nothing")
        elif isinstance(event, TurnEnded) and open_ids:
            wrong.append(f"{open_ids} still open at the end")
    return wrong


def open_items(events: Sequence[Event]) -> list[str]:
    """The ids of the items that are open now, in order of opening."""
    ids = [event.item.id for event in events if isinstance(event, ItemStarted)]
    gone = {event.id for event in events if isinstance(event, ItemEnded)}
    return [id for id in ids if id not in gone]


def texts(events: Sequence[Event]) -> dict[str, str]:
    """What each message says, its deltas joined, by id in order of opening."""
    said: dict[str, str] = {}
    for event in events:
        if isinstance(event, ItemStarted) and isinstance(event.item, Message):
            said[event.item.id] = ""
        elif isinstance(event, TextDelta):
            said[event.id] += event.text
    return said


def arguments(events: Sequence[Event]) -> dict[str, str]:
    """The argument text of each call, by the name of its tool and its call id: `get_weather call_1`."""
    calls = {
        event.item.id: f"{event.item.name} {event.item.call_id}"
        for event in events
        if isinstance(event, ItemStarted) and isinstance(event.item, ToolCall)
    }
    said = dict.fromkeys(calls.values(), "")
    for event in events:
        if isinstance(event, ArgumentsDelta):
            said[calls[event.id]] += event.text
    return said
