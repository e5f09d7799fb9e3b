"""A thread whose process is gone as it is taken, kept or new: the request goes to another one, once, while nobody has
seen anything of it."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from codex_proxy.agents.dialect import Ended
from codex_proxy.core.events import ItemStarted, RawItem, Stop, TextDelta, TurnEnded, Usage, UsageReported
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import HistoryMessage, Message, TextPart
from codex_proxy.core.turn import Turn
from codex_proxy.runs.run import Run
from codex_proxy.runs.scheduler import RunLimits, RunScheduler
from codex_proxy.runs.time_and_tokens import Deadlines
from tests.runs.actors import WordTransport, all_events, end_of, text_of
from tests.runs.test_run_tools import (
    GOOD,
    ToolAgent,
    go_on,
    output,
    scheduler_of_tool_agent,
    spent,
    step,
    words,
)
from tests.runs.virtual import settle, virtual

HI = HistoryMessage("user", (TextPart("hi"),))
AGAIN = Turn(
    model="m",
    history=(
        HI,
        HistoryMessage("assistant", (TextPart("Hello."),)),
        HistoryMessage("user", (TextPart("And?"),)),
    ),
    mode="model",
)


async def continue_on_thread() -> tuple[RunScheduler, ToolAgent, Run]:
    """A second request of a conversation, which goes on on the thread of the first."""
    scheduler, agent = scheduler_of_tool_agent()
    await scheduler.start(Turn(model="m", history=(HI,), mode="model"))
    agent.transports[0].say(*words("Hello."))
    await settle()
    run = await scheduler.start(AGAIN)
    assert len(agent.transports) == 1
    assert agent.last.fresh == [AGAIN.history[-1]]
    return scheduler, agent, run


def dies(lane: WordTransport) -> None:
    assert lane.reader is not None
    lane.reader.on_end(Ended(signal=9))


def breaks_its_protocol(lane: WordTransport) -> None:
    assert lane.reader is not None
    lane.reader.fail(Failure(kind=FaultKind.AGENT_PROTOCOL, message="a line is longer than 8 bytes"))


@virtual
@pytest.mark.parametrize("goes", [dies, breaks_its_protocol])
async def test_the_whole_history_is_sent_to_a_new_thread_and_the_client_sees_one_answer(
    goes: Callable[[WordTransport], None],
) -> None:
    scheduler, agent, run = await continue_on_thread()
    agent.transports[0].say(RawItem("reasoning", b"{}"), UsageReported(Usage(input=3)))
    goes(agent.transports[0])
    await settle()
    assert agent.transports[0].released == [True]
    assert agent.last.began == AGAIN
    agent.transports[1].say(*words("And so on.", spent=4))
    await settle()
    assert end_of(run).stop == Stop.STOP
    assert text_of(all_events(run)) == "And so on."
    assert spent(run) == 7, "what the first thread has cost was for this request too"
    assert scheduler.running == 0
    assert len(scheduler.services.idle_sessions) == 1
    await scheduler.close()
    assert agent.held == 0


@virtual
async def test_the_outputs_of_calls_are_sent_to_a_new_thread_too() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    await scheduler.start(go_on())
    agent.transports[0].say(*step(("a", GOOD)))
    await settle()
    run = await scheduler.start(go_on("a"))
    assert agent.last.fresh == [output("a")]
    dies(agent.transports[0])
    await settle()
    assert agent.last.began is not None
    assert agent.last.began.history[-1] == output("a")
    agent.transports[1].say(*words("Done."))
    await settle()
    assert text_of(all_events(run)) == "Done."
    await scheduler.close()


@virtual
async def test_a_second_session_that_dies_fails_the_turn() -> None:
    scheduler, agent, run = await continue_on_thread()
    dies(agent.transports[0])
    await settle()
    dies(agent.transports[1])
    await settle()
    assert len(agent.transports) == 2
    failure = end_of(run).failure
    assert failure is not None
    assert failure.kind == FaultKind.AGENT_CRASHED
    assert (scheduler.running, agent.held) == (0, 0)


@virtual
@pytest.mark.parametrize(
    "seen", [[ItemStarted(Message("b"))], [ItemStarted(Message("b")), TextDelta("b", "An")]]
)
async def test_an_answer_that_the_client_has_seen_is_not_begun_again(
    seen: list[ItemStarted | TextDelta],
) -> None:
    scheduler, agent, run = await continue_on_thread()
    agent.transports[0].say(*seen)
    dies(agent.transports[0])
    await settle()
    assert len(agent.transports) == 1
    assert end_of(run).stop == Stop.FAILED
    assert scheduler.running == 0


@virtual
async def test_a_new_thread_on_a_process_that_was_gone_already_is_left_for_another() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(AGAIN)
    dies(agent.transports[0])
    await settle()
    agent.transports[1].say(*words("And so on."))
    await settle()
    assert text_of(all_events(run)) == "And so on."
    await scheduler.close()


@virtual
async def test_a_turn_that_has_begun_is_not_repeated_on_another_process() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(AGAIN)
    agent.transports[0].say()  # it has answered, although there is nothing in it for the log
    dies(agent.transports[0])
    await settle()
    assert len(agent.transports) == 1
    assert end_of(run).stop == Stop.FAILED
    assert scheduler.running == 0


@virtual
async def test_a_child_that_serves_one_session_is_not_started_again() -> None:
    agent = ToolAgent(exclusive=True)
    scheduler = RunScheduler(agent, RunLimits(), Deadlines())
    run = await scheduler.start(AGAIN)
    dies(agent.transports[0])
    await settle()
    assert len(agent.transports) == 1
    assert end_of(run).stop == Stop.FAILED


@virtual
async def test_a_client_that_has_left_meanwhile_gets_no_new_thread() -> None:
    scheduler, agent, run = await continue_on_thread()
    run.interrupt()
    dies(agent.transports[0])
    await settle()
    assert len(agent.transports) == 1
    assert end_of(run) == TurnEnded(Stop.INTERRUPTED)
    assert (scheduler.running, agent.held) == (0, 0)


@virtual
async def test_a_turn_that_cannot_restart_fails_with_the_reason() -> None:
    scheduler, agent, run = await continue_on_thread()
    agent.fault = Fault(Failure(kind=FaultKind.UNAVAILABLE, message="no"))
    dies(agent.transports[0])
    await settle()
    failure = end_of(run).failure
    assert failure is not None
    assert failure.kind == FaultKind.UNAVAILABLE
    assert (scheduler.running, agent.held) == (0, 0)
