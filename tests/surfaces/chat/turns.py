"""Turns that tests tell: each a short list of events."""

from __future__ import annotations

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    ReasoningDelta,
    StepCompleted,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageSeen,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Activity, Message, Reasoning, ToolCall

USAGE = Usage(input=11, cached=3, output=7, reasoning=2)
CRASH = Failure(kind=FaultKind.TIMED_OUT, message="The agent took too long.")


def said(*texts: str, id: str = "m", choice: int | None = None) -> list[Event]:
    """A message, one delta per text."""
    deltas = [TextDelta(id, text) for text in texts]
    return [ItemStarted(Message(id, choice)), *deltas, ItemEnded(id)]


def called(
    *arguments: str, id: str = "t", name: str = "get_weather", choice: int | None = None
) -> list[Event]:
    """A call of a function; its call id is `call_` and the item's id."""
    deltas = [ArgumentsDelta(id, text) for text in arguments]
    return [ItemStarted(ToolCall(id, f"call_{id}", name, choice=choice)), *deltas, ItemEnded(id)]


def thought(*texts: str, id: str = "r") -> list[Event]:
    """A reasoning item, one summary part per text."""
    deltas = [ReasoningDelta(id, text, part) for part, text in enumerate(texts)]
    return [ItemStarted(Reasoning(id)), *deltas, ItemEnded(id)]


def did(text: str, id: str = "c") -> list[Event]:
    return [ItemStarted(Activity(id, "command", text)), ItemEnded(id)]


def counted(usage: Usage = USAGE) -> list[Event]:
    return [UsageSeen(usage, "token_count")]


def stepped(usage: Usage | None) -> list[Event]:
    return [StepCompleted(usage)]


def turn(*parts: list[Event], stop: str = "stop", choice_stops: dict[int, str] | None = None) -> list[Event]:
    """A whole turn that ends well."""
    events = [event for part in parts for event in part]
    return [TurnStarted(), *events, TurnEnded(stop, choice_stops=choice_stops)]


def failed(*parts: list[Event]) -> list[Event]:
    return [*turn(*parts)[:-1], TurnEnded("failed", failure=CRASH)]
