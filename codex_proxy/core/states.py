"""State machines as tables: the next state for each state and change (event). A change that the table does not have
for the state raises `ImpossibleChange`, because it is a bug of this server.

States and changes are members of enums, whose values are descriptions in words. `scripts/gen_states.py` makes the
diagrams in the documentation from the tables.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Never, TypeVar

S = TypeVar("S", bound=Enum)
C = TypeVar("C", bound=Enum)


class ImpossibleChange(Exception):  # noqa: N818 - says what it is
    """The table of a state machine has no next state for this state and change, which is a bug of this server."""


class StateTable(dict[tuple[S, C], S]):
    """The table of a state machine: the next state, by state and change. `start` is the first state. Access to a
    pair that the table does not have raises `ImpossibleChange`.
    """

    def __init__(self, start: S, changes: Mapping[S, Mapping[C, S]]) -> None:
        super().__init__(
            {(state, change): after for state, row in changes.items() for change, after in row.items()}
        )
        self.start = start

    def __missing__(self, transition: tuple[S, C]) -> Never:
        state, change = transition
        raise ImpossibleChange(f"{change.name} in the state {state.name}")
