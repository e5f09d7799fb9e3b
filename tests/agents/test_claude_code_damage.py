"""Recordings of Claude Code that are cut, moved, broken or changed: the turn still ends once, and nothing raises."""

from __future__ import annotations

import random
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.processes.session import LineFramer
from codex_proxy.core.events import Event, Stop, ToolCallRequested, TurnEnded
from codex_proxy.core.items import HistoryOutput, TextPart
from codex_proxy.core.repair import TurnRepair
from tests.agents.claude_code_replayer import NAMES, begun, output_lines, recorded_turn
from tests.agents.damage import broken, changed_line, in_pieces, moved, piped
from tests.core.well_formed import violations

RECORDINGS = st.sampled_from(NAMES)
SEEDS = st.integers(0, 2**32)
GONE = Ended(signal=9, stderr_tail="Killed")


def survives(name: str, pieces: Sequence[bytes], *, leaves_after: int | None = None) -> None:
    """Plays what came out of the pipe, piece by piece, then the child dies: what a run would see of it. A client whose
    calls wait brings their outputs in another turn."""
    dialect, framer, repair = begun(name), LineFramer(), TurnRepair()
    events: list[Event] = []
    log: list[Event] = []
    reads = [framer.feed(piece) for piece in pieces]
    rest = framer.close()
    for number, lines in enumerate([*reads, [rest] if rest else []]):
        if number == leaves_after:
            events += dialect.interrupt().events
        new = dialect.receive(lines).events
        events += new
        log += repair.feed(new)
        if repair.ended or not dialect.can_resume:
            continue
        asked = {event.call_id for event in log if isinstance(event, ToolCallRequested)}
        waits = [HistoryOutput(id, (TextPart("3"),)) for id in sorted(asked)]
        log += repair.feed([TurnEnded(Stop.TOOL_CALLS)])
        assert violations(log) == []
        log, repair = [], TurnRepair()
        new = dialect.resume(recorded_turn(name), waits).events
        events += new
        log += repair.feed(new)
    last = dialect.eof(GONE).events
    log += repair.feed(last)
    ends = [event for event in [*events, *last] if isinstance(event, TurnEnded)]
    assert len(ends) == 1, "the dialect itself ends exactly once"
    if not log or not isinstance(log[-1], TurnEnded):
        log += repair.feed([TurnEnded(Stop.INTERRUPTED)])
    assert violations(log) == []
    assert dialect.finished
    assert not dialect.can_resume


@given(RECORDINGS, st.floats(0, 1), SEEDS)
def test_a_recording_may_be_cut_at_any_byte_and_come_in_any_pieces(
    name: str, share: float, seed: int
) -> None:
    data = piped(output_lines(name))
    survives(name, in_pieces(data[: int(len(data) * share)], random.Random(seed)))


@given(RECORDINGS, SEEDS)
def test_lines_may_come_again_be_missing_and_change_places(name: str, seed: int) -> None:
    survives(name, [line + b"\n" for line in moved(output_lines(name), random.Random(seed))])


@given(RECORDINGS, SEEDS, st.sampled_from([0.002, 0.01, 0.05, 0.3]))
def test_any_value_in_any_line_may_be_something_else(name: str, seed: int, rate: float) -> None:
    chance = random.Random(seed)
    survives(name, [piped([changed_line(line, chance, rate) for line in output_lines(name)])])


@given(RECORDINGS, SEEDS)
def test_any_bytes_may_be_broken(name: str, seed: int) -> None:
    chance = random.Random(seed)
    survives(name, [piped([broken(line, chance) for line in output_lines(name)])])


@given(RECORDINGS, st.integers(0, 60), SEEDS)
def test_the_client_may_leave_after_any_line_of_a_child_that_talks_nonsense(
    name: str, place: int, seed: int
) -> None:
    chance = random.Random(seed)
    lines = [broken(line, chance) for line in moved(output_lines(name), chance)]
    survives(name, [line + b"\n" for line in lines], leaves_after=place % (len(lines) + 1))
