"""Collects what the items of a turn say. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
)
from codex_proxy.core.items import Item


class ItemTexts:
    """The items that were started so far, and their pieces of text."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        """The items by id, in order."""
        self.pieces: dict[str, list[str]] = {}
        """The pieces of each item's text or arguments, by its id."""
        self.outputs: dict[str, list[str]] = {}
        """The pieces of each activity's output, by its id."""

    def add(self, events: Sequence[Event]) -> None:
        """Adds what events say."""
        for event in events:
            if isinstance(event, ItemStarted):
                self.items[event.item.id] = event.item
            elif isinstance(event, TextDelta | RefusalDelta | ReasoningDelta | ArgumentsDelta):
                self.pieces.setdefault(event.id, []).append(event.text)
            elif isinstance(event, OutputDelta):
                self.outputs.setdefault(event.id, []).append(event.text)

    def text(self, id: str) -> str:
        """Returns the text or the arguments of an item so far."""
        return "".join(self.pieces.get(id, ()))

    def output(self, id: str) -> str:
        return "".join(self.outputs.get(id, ()))
