"""Recordings that are cut, doubled, shuffled or changed: the turn still ends once, and nothing raises."""

from __future__ import annotations

import random

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codex_proxy.core.events import RawItem, Stop, TurnEnded
from codex_proxy.runs.model_items import ModelItem
from codex_proxy.tools.policy import ToolPolicy
from codex_proxy.tools.replay import assistant_messages, entries_of
from tests.agents.app_server_outcomes import COMES_BACK
from tests.agents.app_server_replayer import (
    GONE,
    NAMES,
    Line,
    Played,
    play,
    recorded_turn,
    recording,
)
from tests.agents.damage import broken, changed_line
from tests.core.well_formed import violations

SEEDS = st.integers(0, 2**32)
RECORDINGS = st.sampled_from([(name, False) for name in NAMES] + [(name, True) for name in COMES_BACK])
"""And whether the client brings the outputs of its calls."""


def survives(name: str, lines: list[Line], *, resumes: bool = False) -> Played:
    """Plays damaged lines, then the child dies: what a run would see. `resumes`: as `Played` has it."""
    played = play(lines, recorded_turn(recording(name), 0), resumes=resumes)
    over = played.repair.ended
    played.take_step(played.turn.eof(GONE))
    for log in (*played.earlier, played.log):
        assert violations(log) == []
        can_be_remembered([event.json for event in log if isinstance(event, RawItem)], played.policy)
    ends = [event for event in played.events if isinstance(event, TurnEnded)]
    assert len(ends) == 1, "the dialect itself ends exactly once"
    assert played.events[-1] is ends[0], "and says nothing after its end"
    assert played.turn.finished
    assert not played.turn.can_resume
    if not over:
        assert played.end.stop == Stop.FAILED
        assert played.end.failure is not None
        assert played.end.failure.kind in ("agent_crashed", "upstream_disconnected")
    return played


def can_be_remembered(raw: list[bytes], policy: ToolPolicy) -> None:
    """What is read of raw items once the turn is over: for the tool loop, for kept threads, for the store."""
    entries_of(raw, policy, "agent/model")
    assistant_messages(raw)
    for item in raw:
        head = ModelItem("agent/model", msgspec.Raw(item)).head
        assert isinstance(head.text, str)
        assert head.kind


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    "name",
    [
        *("stateless_flow_0.169.0", "err_drop_once", "interrupt_shell_running", "reasoning"),
        *("raw_events_tool_parallel", "code_mode_dynamic_tool"),
    ],
)
def test_a_child_that_dies_after_any_line_or_in_it_ends_the_turn_once(name: str) -> None:
    lines = list(recording(name))
    for n, line in enumerate(lines):
        half = Line(line.dir, line.data[: len(line.data) // 2])
        for resumes in (False, True):
            survives(name, lines[:n], resumes=resumes)
            survives(name, [*lines[:n], half], resumes=resumes)


@given(RECORDINGS, st.integers(0, 10**6))
def test_any_recording_may_be_cut_at_any_byte(which: tuple[str, bool], place: int) -> None:
    name, resumes = which
    lines = list(recording(name))
    place %= sum(len(line.data) for line in lines)
    whole: list[Line] = []
    for line in lines:
        if place < len(line.data):
            survives(name, [*whole, Line(line.dir, line.data[:place])], resumes=resumes)
            return
        place -= len(line.data)
        whole.append(line)


@given(RECORDINGS, SEEDS, st.integers(1, 4))
def test_any_line_may_come_again(which: tuple[str, bool], seed: int, times: int) -> None:
    name, resumes = which
    chance = random.Random(seed)
    lines = list(recording(name))
    for _ in range(times):
        line = chance.choice(lines)
        lines.insert(chance.randrange(len(lines) + 1), line)
    survives(name, lines, resumes=resumes)


@given(RECORDINGS, SEEDS)
def test_the_lines_may_come_in_any_order(which: tuple[str, bool], seed: int) -> None:
    name, resumes = which
    lines = list(recording(name))
    random.Random(seed).shuffle(lines)
    survives(name, lines, resumes=resumes)


@given(RECORDINGS, SEEDS)
def test_neighbouring_lines_may_change_places(which: tuple[str, bool], seed: int) -> None:
    name, resumes = which
    chance = random.Random(seed)
    lines = list(recording(name))
    for n in range(len(lines) - 1):
        if chance.random() < 0.3:
            lines[n], lines[n + 1] = lines[n + 1], lines[n]
    survives(name, lines, resumes=resumes)


@given(RECORDINGS, SEEDS, st.sampled_from([0.002, 0.01, 0.05, 0.3]))
def test_any_value_in_any_line_may_be_something_else(which: tuple[str, bool], seed: int, rate: float) -> None:
    name, resumes = which
    chance = random.Random(seed)
    lines = [
        Line("out", changed_line(line.data, chance, rate)) if line.dir == "out" else line
        for line in recording(name)
    ]
    survives(name, lines, resumes=resumes)


@example(("code_mode_dynamic_tool", False), 17859)  # a letter is broken in a raw item, where nobody looked
@given(RECORDINGS, SEEDS)
def test_any_bytes_may_be_broken(which: tuple[str, bool], seed: int) -> None:
    name, resumes = which
    chance = random.Random(seed)
    lines = [
        Line(line.dir, broken(line.data, chance)) if line.dir == "out" else line for line in recording(name)
    ]
    survives(name, lines, resumes=resumes)


@given(RECORDINGS, st.data())
def test_the_client_may_leave_after_any_line(which: tuple[str, bool], data: st.DataObject) -> None:
    name, resumes = which
    lines = list(recording(name))
    place = data.draw(st.integers(0, len(lines)))
    left = Line("in", b'{"id": 999, "method": "turn/interrupt", "params": {}}')
    played = survives(name, [*lines[:place], left, *lines[place:]], resumes=resumes)
    assert played.end.stop in set(Stop)
