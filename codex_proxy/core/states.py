"""State machines as tables: the next state for each state and change. A change that the table does not list is a
bug of this server.

The value of a state describes the state, the value of a change describes what has happened. `scripts/gen_states.py`
makes the diagrams of the documents from the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Never, TypeVar

S = TypeVar("S", bound=Enum)
C = TypeVar("C", bound=Enum)


class ImpossibleChange(Exception):  # noqa: N818 - says what it is
    """The table of a state machine has no transition for this state and change. That is a bug of this server."""


class StateTable(dict[tuple[S, C], S]):
    """A state machine: the first state `start`, and the next state for each state and change. A transition that is
    not listed is impossible.
    """

    def __init__(self, start: S, changes: Mapping[S, Mapping[C, S]]) -> None:
        super().__init__(
            {(state, change): after for state, row in changes.items() for change, after in row.items()}
        )
        self.start = start

    def __missing__(self, transition: tuple[S, C]) -> Never:
        state, change = transition
        raise ImpossibleChange(f"{change.name} in the state {state.name}")
