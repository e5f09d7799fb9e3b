"""Many clients on one process, one of which does not read: it harms nobody but itself, and what it costs is bounded."""

from __future__ import annotations

from codex_proxy.core.events import Stop, TextDelta, TurnEnded
from codex_proxy.core.faults import FaultKind
from codex_proxy.runs.event_log import CUT_WATER
from codex_proxy.runs.run import Run
from codex_proxy.runs.scheduler import RunLimits, RunScheduler
from codex_proxy.runs.time_and_tokens import Deadlines
from tests.runs.actors import DONE, TURN, WordAgent, deltas, end_of, text_of
from tests.runs.virtual import settle, virtual

CLIENTS = 100
READ = 1 << 16
"""Bytes of one read of the pipe."""


def held_bytes(run: Run) -> int:
    """Bytes that a log holds."""
    return sum(batch.size for batch in run.log.batches)


@virtual
async def test_one_stalled_client_among_a_hundred_is_cut_and_the_others_never_wait() -> None:
    agent = WordAgent()
    scheduler = RunScheduler(agent, RunLimits(max_running=CLIENTS), Deadlines())
    runs = [await scheduler.start(TURN) for _ in range(CLIENTS)]
    cursors = [run.log.cursor() for run in runs]
    stalled, reading = runs[0], list(zip(runs, cursors, strict=True))[1:]
    for lane in agent.transports:
        lane.say(*deltas("_"))
    for _, cursor in reading:
        cursor.take()

    rounds = most = 0
    while not stalled.log.ended:
        rounds += 1
        for lane in agent.transports:
            lane.say(TextDelta("a", "x"), size=READ)
        most = max(most, held_bytes(stalled))
        assert [text_of(cursor.take()) for _, cursor in reading] == ["x"] * len(reading), (
            "each has it at once"
        )
        assert not any(held_bytes(run) for run, _ in reading)

    assert most <= CUT_WATER + READ
    assert rounds <= CUT_WATER // READ + 1
    failure = end_of(stalled).failure
    assert failure is not None
    assert failure.kind is FaultKind.TIMED_OUT
    assert not any(lane.paused for lane in agent.transports)

    for lane in agent.transports[1:]:
        lane.say(DONE)
    ends = [cursor.take()[-1] for _, cursor in reading]
    assert all(isinstance(end, TurnEnded) and end.stop == Stop.STOP for end in ends)
    await settle()
    assert agent.held == 0
