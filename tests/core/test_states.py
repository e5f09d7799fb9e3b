"""The tables of states: each state is reached, the end is reached from each, and what is not listed is a fault."""

from __future__ import annotations

from enum import Enum
from typing import Any

import pytest

from codex_proxy.agents.codex_app_server import thread_turns
from codex_proxy.core.states import ImpossibleChange, StateTable
from codex_proxy.process import child

TABLES = pytest.mark.parametrize(
    ("table", "end"),
    [
        pytest.param(thread_turns.TABLE, thread_turns.TurnState.DONE, id="turn"),
        pytest.param(child.TABLE, child.ChildState.ENDED, id="child"),
    ],
)


def reachable_states(table: StateTable[Any, Any], start: Enum) -> set[Enum]:
    found, new = {start}, {start}
    while new:
        new = {following for (state, _), following in table.items() if state in new} - found
        found |= new
    return found


@TABLES
def test_every_state_is_reached_and_leads_to_the_end(table: StateTable[Any, Any], end: Enum) -> None:
    states = set(type(end))
    assert reachable_states(table, table.start) == states
    assert {state for state in states if end in reachable_states(table, state)} == states


@TABLES
def test_a_change_that_is_not_listed_is_a_fault(table: StateTable[Any, Any], end: Enum) -> None:
    listed = dict(table)
    changes: set[Enum] = {change for _, change in listed}
    assert changes == set(type(min(changes, key=repr)))
    for state in type(end):
        for change in changes:
            if (state, change) in listed:
                assert table[state, change] is listed[state, change]
            else:
                with pytest.raises(ImpossibleChange, match=f"{change.name} in the state {state.name}"):
                    table[state, change]
