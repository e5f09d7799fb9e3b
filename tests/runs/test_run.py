"""One turn: what its child says becomes a log with one end, whoever ends it, and its lane is let go once."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.dialect import Ended
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.events import (
    ApprovalRequested,
    FullText,
    InputRequested,
    Retrying,
    Stop,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.runs.event_log import CUT_WATER, HIGH_WATER
from codex_proxy.runs.run import Run
from codex_proxy.runs.scheduler import RunLimits, RunScheduler
from codex_proxy.runs.time_and_tokens import Deadlines
from tests.runs.actors import (
    DONE,
    TURN,
    WordAgent,
    WordDialect,
    WordTransport,
    all_events,
    deltas,
    end_of,
    text_of,
)
from tests.runs.virtual import settle, virtual


async def begin_run(
    agent: WordAgent | None = None, *, deadlines: Deadlines | None = None, **turn: Any
) -> tuple[Run, WordTransport, WordDialect]:
    """A run that has begun, the lane it has and the dialect it drives."""
    agent = agent or WordAgent()
    scheduler = RunScheduler(agent, RunLimits(), deadlines or Deadlines())
    run = await scheduler.start(msgspec.structs.replace(TURN, **turn))
    return run, agent.transports[-1], agent.dialects[-1]


@virtual
async def test_a_turn_is_logged_as_it_comes_and_its_transport_is_released_once() -> None:
    run, lane, _ = await begin_run()
    lane.say(TurnStarted("t", "m"), *deltas("Hello,"))
    assert not run.log.ended
    lane.say(TextDelta("a", " world."), DONE)
    assert text_of(all_events(run)) == "Hello, world."
    assert end_of(run).stop == Stop.STOP
    await settle()
    assert lane.released == [True]


@virtual
async def test_an_interrupted_turn_ends_its_log_at_once_and_interrupts_the_agent() -> None:
    agent = WordAgent()
    agent.slow_to_finish = True
    run, lane, dialect = await begin_run(agent)
    lane.say(*deltas("Hel"))
    run.interrupt()
    assert end_of(run).stop == Stop.INTERRUPTED
    assert lane.sent[-1] == b"interrupt"
    await settle()
    assert lane.released == [], "the agent has yet to forget the turn"
    dialect.finished = True
    lane.say()
    await settle()
    assert lane.released == [True]


@virtual
async def test_an_interrupt_after_the_end_changes_nothing() -> None:
    run, lane, _ = await begin_run()
    lane.say(*deltas("Hi."), DONE)
    run.interrupt()
    run.fail(Failure(kind=FaultKind.TIMED_OUT, message="late"))
    assert end_of(run).stop == Stop.STOP
    await settle()
    assert lane.released == [True]


@virtual
async def test_an_agent_that_does_not_settle_is_given_up_after_its_time() -> None:
    agent = WordAgent()
    agent.slow_to_finish = True
    run, lane, _ = await begin_run(agent)
    run.interrupt()
    await asyncio.sleep(4.9)
    assert lane.released == []
    await asyncio.sleep(0.2)
    assert lane.released == [False], "its process is not to be used again"


@virtual
async def test_a_child_that_serves_one_session_is_not_waited_for() -> None:
    agent = WordAgent(exclusive=True)
    agent.slow_to_finish = True
    run, lane, _ = await begin_run(agent)
    run.interrupt()
    await settle()
    assert lane.released == [True]


@virtual
async def test_a_child_that_dies_fails_the_turn_and_releases_the_transport() -> None:
    run, lane, _ = await begin_run()
    lane.say(*deltas("half"))
    assert lane.reader is not None
    lane.reader.on_end(Ended(signal=9))
    end = end_of(run)
    assert end.failure is not None
    assert end.failure.kind is FaultKind.AGENT_CRASHED
    await settle()
    assert lane.released == [True]


@virtual
async def test_an_event_that_the_repair_refuses_ends_the_turn_and_stops_the_agent() -> None:
    """The agent unsays what was streamed: the turn has failed, whatever the agent goes on to say."""
    run, lane, _ = await begin_run()
    lane.say(*deltas("One thing."))
    lane.say(Retrying("again"), FullText("a", "Quite another."), DONE)
    assert end_of(run).stop == Stop.FAILED
    assert text_of(all_events(run)) == "One thing."
    await settle()
    assert b"interrupt" in lane.sent
    assert lane.released == [True]


@virtual
async def test_an_internal_error_in_the_middle_ends_this_turn_and_releases_the_transport() -> None:
    run, lane, dialect = await begin_run()
    lane.say(*deltas("Hel"))
    dialect.breaks = "receive"
    lane.say(TextDelta("a", "lo"))
    end = end_of(run)
    assert end.failure is not None
    assert end.failure.kind is FaultKind.INTERNAL
    await settle()
    assert lane.released == [False]


@virtual
async def test_questions_of_the_agent_are_declined_at_once() -> None:
    _, lane, dialect = await begin_run()
    lane.say(ApprovalRequested("q1", "command", "rm -rf /"), InputRequested("q2", "?"))
    assert dialect.calls[-2:] == ["answer q1", "answer q2"]
    assert lane.sent[-2:] == [b"answer q1", b"answer q2"]
    lane.say(DONE)


@virtual
async def test_a_stop_sequence_ends_the_turn_of_client_and_agent() -> None:
    run, lane, _ = await begin_run(stop=("END",))
    lane.say(*deltas("One E"))
    assert text_of(all_events(run)) == "One ", "the beginning of a stop sequence is held back"
    lane.say(TextDelta("a", "ND two"), size=3)
    end = end_of(run)
    assert (end.stop, end.failure) == (Stop.STOP, None)
    assert text_of(all_events(run)) == "One "
    assert lane.sent[-1] == b"interrupt"
    lane.say(TextDelta("a", "three"), DONE)
    end_of(run)
    await settle()
    assert lane.released == [True]


@virtual
async def test_max_tokens_ends_the_turn_with_length() -> None:
    run, lane, _ = await begin_run(max_tokens=3)
    lane.say(*deltas("123456789"))
    assert not run.log.ended
    lane.say(TextDelta("a", "0"))
    assert end_of(run).stop == Stop.LENGTH
    assert text_of(all_events(run)) == "123456789"


@virtual
@pytest.mark.parametrize(
    ("limit", "stop"), [({"stop": ("END",)}, Stop.STOP), ({"max_tokens": 1}, Stop.LENGTH)]
)
async def test_a_limit_that_is_hit_in_the_last_words_ends_the_turn_once(
    limit: dict[str, Any], stop: Stop
) -> None:
    """The agent's own end is in the same read of the pipe."""
    run, lane, _ = await begin_run(**limit)
    lane.say(*deltas("12345END9"), UsageReported(Usage(1, 0, 1)), DONE)
    assert end_of(run).stop == stop
    await settle()
    assert lane.released == [True]


@virtual
async def test_a_text_of_just_the_limit_ends_as_the_agent_says() -> None:
    run, lane, _ = await begin_run(max_tokens=3)
    lane.say(*deltas("123456789"), DONE)
    assert end_of(run).stop == Stop.STOP


@virtual
@pytest.mark.parametrize("cut", [1, 3, 7, 40])
async def test_of_two_limits_the_first_in_the_text_counts_however_it_is_cut(cut: int) -> None:
    for text, expected, stop in (
        ("123456789 too long END", "123456789", Stop.LENGTH),
        ("123 END and too long", "123 ", Stop.STOP),
    ):
        run, lane, _ = await begin_run(max_tokens=3, stop=("END",))
        lane.say(*deltas(*(text[start : start + cut] for start in range(0, len(text), cut))), DONE)
        assert (text_of(all_events(run)), end_of(run).stop) == (expected, stop)


@virtual
async def test_an_answer_that_was_held_back_may_still_be_too_long_when_the_turn_is_ended() -> None:
    run, lane, _ = await begin_run(max_tokens=3, stop=("LONG",))
    lane.say(*deltas("123456789"))
    lane.say(TextDelta("a", "LO"))
    run.interrupt()
    assert end_of(run).stop == Stop.LENGTH
    assert text_of(all_events(run)) == "123456789"


@virtual
async def test_a_slow_reader_makes_a_child_that_serves_one_session_wait() -> None:
    run, lane, _ = await begin_run(WordAgent(exclusive=True))
    cursor = run.log.cursor()
    lane.say(*deltas("a"), size=HIGH_WATER)
    assert not lane.paused
    lane.say(TextDelta("a", "b"), size=1)
    assert lane.paused
    cursor.take()
    assert not lane.paused
    lane.say(DONE)


@virtual
async def test_a_child_that_was_made_to_wait_is_not_idle() -> None:
    run, lane, _ = await begin_run(
        WordAgent(exclusive=True), deadlines=Deadlines(first=5, idle=10, total=1000)
    )
    cursor = run.log.cursor()
    lane.say(*deltas("a"), size=HIGH_WATER + 1)
    await asyncio.sleep(100)
    assert not run.log.ended
    cursor.take()
    await asyncio.sleep(9)
    assert not run.log.ended, "it has as long as after any sign of life"
    await asyncio.sleep(2)
    [*_, end] = cursor.take()
    assert isinstance(end, TurnEnded)
    assert end.failure is not None
    assert end.failure.kind is FaultKind.TIMED_OUT


@virtual
async def test_a_paused_child_goes_on_when_its_client_leaves() -> None:
    run, lane, _ = await begin_run(WordAgent(exclusive=True))
    cursor = run.log.cursor()
    lane.say(*deltas("a"), size=HIGH_WATER + 1)
    assert lane.paused
    cursor.detach()
    run.interrupt()
    assert not lane.paused
    await settle()
    assert lane.released == [True]


@virtual
async def test_the_stream_of_a_too_slow_reader_on_a_shared_process_fails_and_has_no_normal_end() -> None:
    run, lane, _ = await begin_run()
    cursor = run.log.cursor()
    lane.say(*deltas("a"), size=CUT_WATER)
    assert not run.log.ended
    lane.say(TextDelta("a", "b"), size=1)
    assert not lane.paused, "others are served by the same pipe"
    end = end_of(run)
    assert end.stop == Stop.FAILED
    assert lane.sent[-1] == b"interrupt"
    assert cursor.take()
    await settle()
    assert lane.released == [True]


@virtual
async def test_a_turn_that_takes_too_long_fails_and_the_agent_is_stopped() -> None:
    run, lane, _ = await begin_run(deadlines=Deadlines(first=5, idle=10, total=20))
    await asyncio.sleep(6)
    failure = end_of(run).failure
    assert failure is not None
    assert failure.kind is FaultKind.TIMED_OUT
    assert lane.sent[-1] == b"interrupt"
    assert lane.released == [True]


@virtual
async def test_a_turn_that_runs_out_of_time_in_retries_fails_by_their_reason_where_it_is_known() -> None:
    limited = Failure(kind=FaultKind.AGENT_RATE_LIMITED, message="The rate limit is reached.", retry_after=7)
    run, lane, _ = await begin_run(deadlines=Deadlines(first=5, idle=10, total=20))
    lane.say(Retrying("attempt 1", 429, limited), Retrying("attempt 2", 429, limited))
    await asyncio.sleep(6)
    failure = end_of(run).failure
    assert failure is not None
    assert (failure.kind, failure.retry_after) == (FaultKind.AGENT_RATE_LIMITED, 7)
    assert failure.message.startswith("The rate limit is reached. The agent retried 2 times")
    assert "5 s" in failure.message
    assert lane.sent[-1] == b"interrupt"


@virtual
async def test_a_turn_that_reaches_a_usage_limit_says_in_how_many_seconds_that_is_reset() -> None:
    agent = WordAgent()
    run, lane, _ = await begin_run(agent)
    agent.limits.update(b'{"primary":{"used_percent":100,"resets_in_seconds":60}}')
    await asyncio.sleep(20)
    reached = Failure(kind=FaultKind.USAGE_LIMIT_REACHED, message="The limit is reached.")
    lane.say(TurnEnded.with_failure(reached))
    await settle()
    failure = end_of(run).failure
    assert failure is not None
    assert failure.retry_after == pytest.approx(40, abs=1)


@virtual
async def test_a_reason_that_is_not_known_stays_a_timeout_that_quotes_what_was_reported() -> None:
    run, lane, _ = await begin_run(deadlines=Deadlines(first=5, idle=10, total=20))
    lane.say(Retrying("A transient error. Retrying..."))
    await asyncio.sleep(6)
    failure = end_of(run).failure
    assert failure is not None
    assert failure.kind is FaultKind.TIMED_OUT
    assert failure.message.endswith("It had retried its model request once: A transient error. Retrying...")


@virtual
async def test_a_silence_after_a_retry_that_succeeded_is_a_timeout() -> None:
    limited = Failure(kind=FaultKind.AGENT_RATE_LIMITED, message="The rate limit is reached.")
    run, lane, _ = await begin_run(deadlines=Deadlines(first=5, idle=10, total=20))
    lane.say(Retrying("attempt 1", 429, limited), *deltas("It works again."))
    await asyncio.sleep(11)
    failure = end_of(run).failure
    assert failure is not None
    assert failure.kind is FaultKind.TIMED_OUT
    assert "rate limit" not in failure.message


@virtual
@pytest.mark.parametrize("begins", [False, True])
async def test_a_schema_that_may_take_long_to_compile_is_named_where_nothing_came(begins: bool) -> None:
    field = "text.format.schema"
    run, lane, _ = await begin_run(deadlines=Deadlines(first=5, idle=10, total=20), schema_field=field)
    if begins:
        lane.say(*deltas("It has compiled."))
    await asyncio.sleep(11)
    failure = end_of(run).failure
    assert failure is not None
    assert failure.kind is FaultKind.TIMED_OUT
    assert failure.param == (None if begins else field)
    assert (f"The schema in '{field}'" in failure.message) is not begins


@virtual
async def test_a_silent_agent_is_reported_with_what_its_silence_can_mean() -> None:
    agent = WordAgent()
    run, lane, _ = await begin_run(agent, deadlines=Deadlines(first=5, idle=10, total=20))
    assert isinstance(lane.reader, AgentSession)
    lane.reader.silence_hint = "It says nothing while it waits."
    await asyncio.sleep(6)
    failure = end_of(run).failure
    assert failure is not None
    assert failure.message.endswith("raise the time limit. It says nothing while it waits.")
