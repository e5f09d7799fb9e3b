"""State machines as tables: the next state for each state and change. A change that the table does not list is a
bug of this server.

The value of a state describes the state, the value of a change describes what has happened. `scripts/gen_states.py`
makes the diagrams of the documents from the tables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Generic, TypeVar

S = TypeVar("S", bound=Enum)
C = TypeVar("C", bound=Enum)


class ImpossibleChange(Exception):  # noqa: N818 - says what it is
    """A change that the table does not list for the state."""


class StateTable(Generic[S, C]):
    """Transitions by state and change, with the first state `start`. A transition that is not listed is impossible."""

    def __init__(self, start: S, changes: Mapping[S, Mapping[C, S]]) -> None:
        self.start = start
        self._changes = changes

    def after(self, state: S, change: C) -> S:
        """Returns the state that follows `state` after `change`. Raises `ImpossibleChange`."""
        try:
            return self._changes[state][change]
        except KeyError:
            raise ImpossibleChange(f"{change.name} in the state {state.name}") from None

    def rows(self) -> Iterator[tuple[S, C, S]]:
        """Yields every transition: state, change, next state."""
        for state, changes in self._changes.items():
            for change, following in changes.items():
                yield state, change, following
