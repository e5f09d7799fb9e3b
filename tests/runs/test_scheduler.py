"""Slots and the queue before them: one for each turn, given back once, whichever way the turn goes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
import structlog

from codex_proxy.agents.dialect import Ended
from codex_proxy.core.events import Event, ItemStarted, Stop, TurnStarted
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import Activity, Item, Message, Reasoning
from codex_proxy.core.turn import Turn
from codex_proxy.runs.run import Run
from codex_proxy.runs.scheduler import RunLimits, RunScheduler
from codex_proxy.runs.time_and_tokens import Deadlines
from tests.runs.actors import DONE, TURN, WordAgent, deltas, end_of
from tests.runs.virtual import settle, virtual

SPAWN_FAILED = Failure(kind=FaultKind.SPAWN_FAILED, message="no")


def scheduler_and_agent(agent: WordAgent | None = None, **limits: float) -> tuple[RunScheduler, WordAgent]:
    agent = agent or WordAgent()
    given = RunLimits(**{"max_running": 2, "max_waiting": 2, "max_wait_seconds": 30.0, **limits})  # type: ignore[arg-type]
    return RunScheduler(agent, given, Deadlines()), agent


def at_rest(scheduler: RunScheduler, agent: WordAgent) -> None:
    """Nothing is held: no slot, no place in the queue, no lane."""
    assert (scheduler.running, scheduler.queued, agent.held) == (0, 0, 0)


async def start_as_task(scheduler: RunScheduler) -> asyncio.Task[Run]:
    task = asyncio.create_task(scheduler.start(TURN))
    await settle()
    return task


@virtual
async def test_a_turn_takes_a_slot_and_gives_it_back_at_its_end() -> None:
    scheduler, agent = scheduler_and_agent()
    await scheduler.start(TURN)
    assert scheduler.running == 1
    agent.transports[0].say(*deltas("Hi."), DONE)
    await settle()
    at_rest(scheduler, agent)


@virtual
async def test_turns_that_wait_get_their_slots_in_the_order_of_coming() -> None:
    scheduler, agent = scheduler_and_agent(max_running=1)
    await scheduler.start(TURN)
    first, second = await start_as_task(scheduler), await start_as_task(scheduler)
    assert scheduler.queued == 2
    assert not first.done()
    agent.transports[0].say(DONE)
    await settle()
    assert first.done()
    assert not second.done()
    assert scheduler.running == 1
    agent.transports[1].say(DONE)
    await settle()
    assert second.done()
    agent.transports[2].say(DONE)
    await settle()
    at_rest(scheduler, agent)


@virtual
async def test_a_newcomer_does_not_overtake_who_waits() -> None:
    scheduler, agent = scheduler_and_agent(max_running=1)
    await scheduler.start(TURN)
    waiting = await start_as_task(scheduler)
    agent.transports[0].say(DONE)  # the slot is on its way to who waits
    late = asyncio.create_task(scheduler.start(TURN))
    await settle()
    assert waiting.done()
    assert not late.done()
    for lane in (1, 2):
        agent.transports[lane].say(DONE)
        await settle()
    at_rest(scheduler, agent)


@virtual
async def test_a_full_queue_is_refused_at_once() -> None:
    scheduler, agent = scheduler_and_agent(max_running=1, max_waiting=1)
    await scheduler.start(TURN)
    waiting = await start_as_task(scheduler)
    with pytest.raises(Fault) as caught:
        await scheduler.start(TURN)
    assert caught.value.failure.kind is FaultKind.CONCURRENCY_EXCEEDED
    assert caught.value.failure.retry_after
    waiting.cancel()
    await settle()
    assert scheduler.queued == 0
    agent.transports[0].say(DONE)
    await settle()
    at_rest(scheduler, agent)


@virtual
async def test_a_turn_that_waits_too_long_is_refused() -> None:
    scheduler, agent = scheduler_and_agent(max_running=1, max_wait_seconds=30.0)
    run = await scheduler.start(TURN)
    began = asyncio.get_running_loop().time()
    with pytest.raises(Fault) as caught:
        await scheduler.start(TURN)
    assert caught.value.failure.kind is FaultKind.CONCURRENCY_EXCEEDED
    assert asyncio.get_running_loop().time() - began == pytest.approx(30.0)
    run.interrupt()
    await settle()
    at_rest(scheduler, agent)


@virtual
async def test_a_slot_that_comes_in_the_moment_of_the_refusal_is_not_lost() -> None:
    scheduler, agent = scheduler_and_agent(max_running=1, max_wait_seconds=30.0)
    run = await scheduler.start(TURN)
    loop = asyncio.get_running_loop()
    waiting = await start_as_task(scheduler)
    loop.call_at(loop.time() + 30.0, run.interrupt)
    outcome = await asyncio.gather(waiting, return_exceptions=True)
    for each in outcome:
        if isinstance(each, Run):
            each.interrupt()
    await settle()
    at_rest(scheduler, agent)


@virtual
async def test_a_slot_that_comes_to_a_client_that_is_just_leaving_goes_on_to_the_next() -> None:
    scheduler, agent = scheduler_and_agent(max_running=1)
    run = await scheduler.start(TURN)
    leaving, next_one = await start_as_task(scheduler), await start_as_task(scheduler)
    run.interrupt()  # the slot is given to the first of them
    leaving.cancel()  # who has not heard of it yet
    await settle()
    assert leaving.cancelled()
    assert next_one.done()
    next_one.result().interrupt()
    await settle()
    at_rest(scheduler, agent)


@virtual
async def test_a_client_that_leaves_while_its_session_is_opened_gives_the_slot_back() -> None:
    scheduler, agent = scheduler_and_agent()
    agent.gate = asyncio.Event()
    opening = await start_as_task(scheduler)
    assert scheduler.running == agent.opening == 1
    opening.cancel()
    await settle()
    assert agent.opening == 0
    at_rest(scheduler, agent)


@virtual
async def test_a_client_that_leaves_right_when_its_session_is_open_gives_everything_back() -> None:
    scheduler, agent = scheduler_and_agent()
    agent.gate = asyncio.Event()
    opening = await start_as_task(scheduler)
    agent.gate.set()
    opening.cancel()
    await settle()
    at_rest(scheduler, agent)


@virtual
@pytest.mark.parametrize("fault", [Fault(SPAWN_FAILED), ZeroDivisionError("a fault of ours")])
async def test_a_session_that_cannot_be_opened_gives_the_slot_back(fault: Exception) -> None:
    scheduler, agent = scheduler_and_agent(max_running=1)
    agent.fault = fault
    for _ in range(3):
        with pytest.raises(type(fault)):
            await scheduler.start(TURN)
    at_rest(scheduler, agent)


@virtual
async def test_a_turn_that_breaks_in_its_first_step_ends_with_our_fault_and_holds_nothing() -> None:
    scheduler, agent = scheduler_and_agent()
    agent.breaks = "begin"
    run = await scheduler.start(TURN)
    end = end_of(run)
    assert end.failure is not None
    assert end.failure.kind is FaultKind.INTERNAL
    await settle()
    assert agent.transports[0].released == [False]
    at_rest(scheduler, agent)


@virtual
async def test_a_child_that_ends_while_its_run_begins_gives_the_slot_back() -> None:
    scheduler, agent = scheduler_and_agent()
    agent.exclusive = True
    run = await scheduler.start(TURN)
    reader = agent.transports[0].reader
    assert reader is not None
    reader.on_end(Ended(code=1))
    reader.on_end(Ended(code=1))
    assert end_of(run).stop == Stop.FAILED
    await settle()
    at_rest(scheduler, agent)
    assert agent.transports[0].released == [True], "once"


@virtual
async def test_draining_refuses_new_turns_and_those_that_wait_and_lets_running_ones_end() -> None:
    scheduler, agent = scheduler_and_agent(max_running=1)
    run = await scheduler.start(TURN)
    waiting = await start_as_task(scheduler)
    draining = asyncio.create_task(scheduler.drain(10.0))
    await settle()
    assert not draining.done()
    for refused in (waiting, asyncio.create_task(scheduler.start(TURN))):
        with pytest.raises(Fault) as caught:
            await refused
        assert caught.value.failure.kind is FaultKind.STOPPING
    agent.transports[0].say(*deltas("Hi."), DONE)
    await draining
    assert end_of(run).stop == Stop.STOP
    await scheduler.close()
    at_rest(scheduler, agent)


@virtual
async def test_a_turn_that_does_not_end_in_its_time_of_grace_fails_and_is_never_called_complete() -> None:
    scheduler, agent = scheduler_and_agent()
    run = await scheduler.start(TURN)
    agent.transports[0].say(*deltas("half an"))
    began = asyncio.get_running_loop().time()
    await scheduler.drain(10.0)
    assert asyncio.get_running_loop().time() - began == pytest.approx(10.0)
    end = end_of(run)
    assert end.stop == Stop.FAILED
    assert end.failure is not None
    assert end.failure.kind is FaultKind.STOPPING
    await scheduler.close()
    at_rest(scheduler, agent)
    assert agent.closed


@virtual
async def test_a_turn_that_was_accepted_before_the_end_is_waited_for_while_its_session_is_opened() -> None:
    scheduler, agent = scheduler_and_agent()
    agent.gate = asyncio.Event()
    opening = await start_as_task(scheduler)
    draining = asyncio.create_task(scheduler.drain(10.0))
    await settle()
    agent.gate.set()
    run = await opening
    agent.transports[0].say(*deltas("Hi."), DONE)
    await draining
    assert end_of(run).stop == Stop.STOP


@virtual
async def test_a_turn_whose_session_is_open_only_after_the_time_of_grace_fails_at_once() -> None:
    scheduler, agent = scheduler_and_agent()
    agent.gate = asyncio.Event()
    opening = await start_as_task(scheduler)
    await scheduler.drain(1.0)
    agent.gate.set()
    run = await opening
    failure = end_of(run).failure
    assert failure is not None
    assert failure.kind is FaultKind.STOPPING
    await settle()
    at_rest(scheduler, agent)


@virtual
async def test_an_idle_server_drains_at_once() -> None:
    scheduler, _ = scheduler_and_agent()
    began = asyncio.get_running_loop().time()
    await scheduler.drain(10.0)
    assert asyncio.get_running_loop().time() == began


@virtual
async def test_the_log_says_when_a_turn_begins_and_what_a_long_one_does() -> None:
    scheduler, agent = scheduler_and_agent()
    with structlog.testing.capture_logs() as lines:
        await scheduler.start(TURN)
        await asyncio.sleep(1)
        assert lines == [
            {"event": "turn_started", "log_level": "info", "agent": "words", "model": "m", "mode": TURN.mode}
        ]
        transport = agent.transports[0]
        begun: dict[float, Item] = {
            35.0: Reasoning("r"),
            65.0: Activity("c", "command", "cat secret"),
            95.0: Message("a"),
        }
        for seconds, item in begun.items():
            loop = asyncio.get_running_loop()
            loop.call_later(seconds, transport.say, ItemStarted(item))
        loop.call_later(125.0, transport.say, DONE)
        await asyncio.sleep(300.0)
    assert [(line["seconds"], line["doing"]) for line in lines[1:]] == [
        (30, "waiting for the agent"),
        (60, "thinking"),
        (90, "running a command"),
        (120, "writing the answer"),
    ]
    assert "secret" not in str(lines)
    at_rest(scheduler, agent)


class BrokenWatcher:
    """A watcher that raises when a turn begins, or at these events, and counts what it was given."""

    def __init__(self, breaks_at: str) -> None:
        self.breaks_at = breaks_at
        self.given: list[str] = []
        self.broke = self.ended = False

    def begin(self, turn: Turn, agent: str) -> BrokenWatcher:
        if self.breaks_at == "begin":
            raise RuntimeError("planted")
        return self

    def add(self, events: Sequence[Event]) -> None:
        self.given += [type(event).__name__ for event in events]
        if self.breaks_at in self.given and not (self.broke and len(events) == 1):
            self.broke = True
            raise RuntimeError("planted")
        self.ended = type(events[-1]).__name__ == "TurnEnded"


@virtual
@pytest.mark.parametrize("breaks_at", ["begin", "TurnStarted", "TextDelta", "TurnEnded"])
async def test_a_watcher_that_breaks_ends_no_turn_and_hides_nothing_from_others(breaks_at: str) -> None:
    scheduler, agent = scheduler_and_agent()
    broken, other = BrokenWatcher(breaks_at), BrokenWatcher("")
    scheduler.watchers += [broken, other]
    with structlog.testing.capture_logs() as lines:
        run = await scheduler.start(TURN)
        agent.transports[0].say(TurnStarted(), *deltas("Hi."))
        agent.transports[0].say(DONE)
        await settle()
    assert end_of(run).stop == Stop.STOP
    assert other.given[-1] == "TurnEnded"
    assert [line["log_level"] for line in lines if line["event"] == "internal_error"] == ["error"]
    assert broken.ended == (breaks_at != "begin")
    at_rest(scheduler, agent)


@virtual
async def test_a_watcher_keeps_no_event_from_being_dropped() -> None:
    """It is no reader: a turn whose only reader has taken all holds nothing."""
    scheduler, agent = scheduler_and_agent()
    scheduler.watchers.append(BrokenWatcher(""))
    run = await scheduler.start(TURN)
    cursor = run.log.cursor()
    agent.transports[0].say(*deltas("Hi."), DONE)
    await settle()
    while not cursor.finished:
        cursor.take()
    assert (run.log.backlog, [*run.log.batches]) == (0, [])
