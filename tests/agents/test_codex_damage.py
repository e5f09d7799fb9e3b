"""Recordings of `codex exec` and `codex proto` that are cut, moved, broken or changed: the turn still ends once, and
nothing raises.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TypeAlias

from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.processes.session import LineFramer
from codex_proxy.core.events import Stop, TurnEnded
from codex_proxy.core.repair import TurnRepair
from tests.agents import exec_child, proto_child
from tests.agents.damage import broken, changed_line, in_pieces, moved, piped
from tests.agents.proto_child import assert_well_formed
from tests.core.well_formed import violations

RECORDINGS = {"exec": exec_child.ALL, "proto": proto_child.ALL}
NAMES = st.sampled_from(
    [(agent, name) for agent, recordings in RECORDINGS.items() for name in sorted(recordings)]
)
Name: TypeAlias = tuple[str, str]
"""A protocol, and the name of a recording of it."""
SEEDS = st.integers(0, 2**32)
GONE = Ended(signal=9, stderr_tail="Killed")


def survives(name: Name, pieces: Sequence[bytes], *, leaves_after: int | None = None) -> list[TurnEnded]:
    """Plays what came out of the pipe, piece by piece, then the child dies: what a run would see of it."""
    dialect = exec_child.begun() if name[0] == "exec" else proto_child.begun(extended=True)
    framer, rules = LineFramer(), TurnRepair()
    events, log = [], []
    reads = [framer.feed(piece) for piece in pieces]
    rest = framer.close()
    steps = [*reads, [rest] if rest else []]
    for number, lines in enumerate(steps):
        if number == leaves_after:
            events += dialect.interrupt().events
        events += dialect.receive(lines).events
    events += dialect.eof(GONE).events
    log = rules.feed(events)
    ends = [event for event in events if isinstance(event, TurnEnded)]
    assert len(ends) == 1, "the dialect itself ends exactly once"
    assert_well_formed(events)
    assert violations(log) == []
    assert dialect.finished
    assert not dialect.can_resume
    return ends


def recorded(name: Name) -> list[bytes]:
    agent, recording = name
    return list(RECORDINGS[agent][recording][0])


@given(NAMES, st.floats(0, 1), SEEDS)
def test_a_recording_may_be_cut_at_any_byte_and_come_in_any_pieces(
    name: Name, share: float, seed: int
) -> None:
    data = piped(recorded(name))
    cut = data[: int(len(data) * share)]
    [end] = survives(name, in_pieces(cut, random.Random(seed)))
    if end.stop == Stop.FAILED:
        assert end.failure is not None


@given(NAMES, SEEDS)
def test_lines_may_come_again_be_missing_and_change_places(name: Name, seed: int) -> None:
    survives(name, [piped(moved(recorded(name), random.Random(seed)))])


@given(NAMES, SEEDS, st.sampled_from([0.002, 0.01, 0.05, 0.3]))
def test_any_value_in_any_line_may_be_something_else(name: Name, seed: int, rate: float) -> None:
    chance = random.Random(seed)
    survives(name, [piped([changed_line(line, chance, rate) for line in recorded(name)])])


@given(NAMES, SEEDS)
def test_any_bytes_may_be_broken(name: Name, seed: int) -> None:
    chance = random.Random(seed)
    survives(name, [piped([broken(line, chance) for line in recorded(name)])])


@given(NAMES, st.integers(0, 60), SEEDS)
def test_the_client_may_leave_after_any_line_of_a_child_that_talks_nonsense(
    name: Name, place: int, seed: int
) -> None:
    chance = random.Random(seed)
    lines = [broken(line, chance) for line in moved(recorded(name), chance)]
    survives(name, [line + b"\n" for line in lines], leaves_after=place % (len(lines) + 1))
