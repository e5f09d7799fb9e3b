"""Observers of turns: the page's records, and traces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from codex_proxy.core.events import Event
from codex_proxy.core.turn import Turn


class TurnObserver(Protocol):
    def add(self, events: Sequence[Event]) -> None:
        """Takes the next events, after the repair, until a `TurnEnded`."""


class TurnWatcher(Protocol):
    def begin(self, turn: Turn, agent: str) -> TurnObserver:
        """Returns the observer of a turn that starts now, in its context."""
