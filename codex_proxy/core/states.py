"""State machines as tables. The enums' values are descriptions, from which `scripts/gen_states.py` draws diagrams."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Never, TypeVar

S = TypeVar("S", bound=Enum)
C = TypeVar("C", bound=Enum)


class ImpossibleChange(Exception):  # noqa: N818 - says what it is
    """The table has no next state: a bug."""


class StateTable(dict[tuple[S, C], S]):
    """The next state by state and change; `start` is the first. A missing pair raises `ImpossibleChange`."""

    def __init__(
        self, start: S, changes: Mapping[S, Mapping[C, S]], always: Mapping[C, S] | None = None
    ) -> None:
        """`always`: the changes that are possible in every state."""
        rows = {state: {**row, **(always or {})} for state, row in changes.items()}
        super().__init__(
            {(state, change): after for state, row in rows.items() for change, after in row.items()}
        )
        self.start = start

    def __missing__(self, transition: tuple[S, C]) -> Never:
        state, change = transition
        raise ImpossibleChange(f"{change.name} in the state {state.name}")
