"""Tools that the server runs in a turn: how long a call may take, what ends it, and what an approval sets going."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar

import msgspec
import pytest

from codex_proxy.agents.dialect import Decision, ToolReply
from codex_proxy.core.events import (
    ApprovalRequested,
    Event,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    StepCompleted,
    Stop,
    TextDelta,
    ToolCallRequested,
)
from codex_proxy.core.faults import UNFORESEEN, Failure, Fault, FaultKind
from codex_proxy.core.items import (
    ActionDetails,
    HistoryCall,
    HistoryMessage,
    HistoryOutput,
    McpCall,
    McpOrigin,
    McpTools,
    TextPart,
    Tool,
)
from codex_proxy.core.limits import ITEM_SIZE
from codex_proxy.core.turn import McpPermissions, Toolset, Turn
from codex_proxy.runs.run import Run
from codex_proxy.runs.scheduler import RunLimits, RunScheduler
from codex_proxy.runs.server_calls import NOT_APPROVED, TOOL_BROKEN, question_about
from codex_proxy.runs.time_and_tokens import Deadlines
from codex_proxy.tools.policy import ServerCall, ToolOutput
from tests.runs.actors import DONE, WordAgent, all_events, deltas, end_of
from tests.runs.virtual import settle, virtual

TOOL = Tool("desk__find", mcp=McpOrigin("desk", "find"))
TOOL_OUTPUT = ToolOutput((TextPart("found"),), "found")
USER = HistoryMessage("user", (TextPart("hi"),))
TOOL_TURN = Turn(model="m", history=(USER,), mode="model", tools=(TOOL,))
ASK = ToolCallRequested("ask1", "call1", "desk__find", '{"x": 1}')
APPROVED_TURN = msgspec.structs.replace(
    TOOL_TURN,
    history=(
        USER,
        HistoryCall("call1", "desk__find", '{"x": 1}'),
        HistoryOutput("call1", (), approved_by="mcpr_1"),
    ),
)


class Hands:
    """Runs every tool when it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, str]] = []
        self.go = asyncio.Event()
        self.cancelled = 0
        self.breaks = False

    async def run(self, tool: Tool, arguments: str) -> ToolOutput:
        self.calls.append((tool.name, arguments))
        if self.breaks:
            raise ZeroDivisionError("a fault of ours")
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return TOOL_OUTPUT


def scheduler_with_clock(**deadlines: float) -> tuple[RunScheduler, WordAgent, Hands]:
    agent = WordAgent()
    return RunScheduler(agent, RunLimits(), Deadlines(**deadlines)), agent, Hands()


async def run_with_call(scheduler: RunScheduler, agent: WordAgent, hands: Hands) -> Run:
    """A run whose model has called the tool."""
    run = await scheduler.start(TOOL_TURN, runner=hands)
    agent.transports[0].say(ASK, StepCompleted())
    await settle()
    return run


@virtual
async def test_an_output_is_given_to_the_agent_and_its_turn_goes_on() -> None:
    scheduler, agent, hands = scheduler_with_clock()
    run = await run_with_call(scheduler, agent, hands)
    assert hands.calls == [("desk__find", '{"x": 1}')]
    assert "answer ask1" not in agent.dialects[0].calls
    hands.go.set()
    await settle()
    assert "answer ask1" in agent.dialects[0].calls
    agent.transports[0].say(*deltas("Found."), DONE)
    await settle()
    assert end_of(run).stop == Stop.STOP
    assert scheduler.running == 0


@virtual
async def test_an_agent_that_waits_for_a_call_is_not_late() -> None:
    scheduler, agent, hands = scheduler_with_clock(idle=10.0, first=5.0)
    run = await run_with_call(scheduler, agent, hands)
    await asyncio.sleep(60)
    assert not run.ended
    hands.go.set()
    await settle()
    await asyncio.sleep(11)
    late = end_of(run).failure
    assert late is not None, "and then it is as late as ever"
    assert not late.repeatable, "the call was made"


@virtual
async def test_a_client_that_leaves_ends_the_call() -> None:
    scheduler, agent, hands = scheduler_with_clock()
    run = await run_with_call(scheduler, agent, hands)
    run.interrupt()
    await settle()
    assert hands.cancelled == 1
    assert [event.status for event in all_events(run) if isinstance(event, ItemEnded)] == ["incomplete"]
    assert (scheduler.running, agent.held) == (0, 0)


@virtual
async def test_an_internal_error_in_a_call_is_a_failed_call() -> None:
    scheduler, agent, hands = scheduler_with_clock()
    hands.breaks = True
    run = await run_with_call(scheduler, agent, hands)
    assert [event.text for event in all_events(run) if isinstance(event, OutputDelta)] == [TOOL_BROKEN.text]
    assert "answer ask1" in agent.dialects[0].calls


@virtual
async def test_an_approved_call_runs_before_the_agent_is_asked_and_is_in_its_history() -> None:
    scheduler, agent, hands = scheduler_with_clock()
    run = await scheduler.start(APPROVED_TURN, runner=hands)
    await settle()
    assert agent.transports == []
    [started] = [event.item for event in all_events(run) if isinstance(event, ItemStarted)]
    assert isinstance(started, McpCall)
    assert started.approval_request_id == "mcpr_1"
    hands.go.set()
    await settle()
    assert run.turn.history[-1] == HistoryOutput("call1", TOOL_OUTPUT.parts)
    agent.transports[0].say(*deltas("Found."), DONE)
    await settle()
    assert [event.text for event in all_events(run) if isinstance(event, TextDelta)] == ["Found."]
    assert end_of(run).stop == Stop.STOP


@virtual
async def test_a_client_that_leaves_before_its_approved_call_has_run_never_reaches_the_agent() -> None:
    scheduler, agent, hands = scheduler_with_clock()
    run = await scheduler.start(APPROVED_TURN, runner=hands)
    await settle()
    run.interrupt()
    await settle()
    assert hands.cancelled == 1
    assert agent.transports == []
    assert end_of(run).stop == Stop.INTERRUPTED
    assert scheduler.running == 0


@virtual
async def test_an_agent_that_takes_no_turn_behind_an_approved_call_fails_the_run() -> None:
    scheduler, agent, hands = scheduler_with_clock()
    failure = Failure(kind=FaultKind.SPAWN_FAILED, message="no")
    run = await scheduler.start(APPROVED_TURN, runner=hands)
    agent.fault = Fault(failure)
    hands.go.set()
    await settle()
    assert end_of(run).failure == msgspec.structs.replace(failure, repeatable=False)
    assert scheduler.running == 0


@virtual
async def test_a_server_that_stops_ends_calls_that_run() -> None:
    scheduler, agent, hands = scheduler_with_clock()
    run = await run_with_call(scheduler, agent, hands)
    await scheduler.close()
    assert hands.cancelled == 1
    assert end_of(run).failure is not None


@virtual
async def test_an_agent_is_as_late_behind_a_list_of_tools_as_without_one() -> None:
    scheduler, _, hands = scheduler_with_clock(idle=100.0, first=5.0)
    listed: list[Event] = [ItemStarted(McpTools("mcpl_1", "desk")), ItemEnded("mcpl_1")]
    run = await scheduler.start(TOOL_TURN, runner=hands, first=listed)
    await asyncio.sleep(6)
    failure = end_of(run).failure
    assert failure is not None
    assert failure.repeatable


@virtual
async def test_an_internal_error_behind_an_approved_call_fails_the_run_instead_of_leaving_it_open() -> None:
    scheduler, agent, hands = scheduler_with_clock()
    run = await scheduler.start(APPROVED_TURN, runner=hands)
    agent.fault = ZeroDivisionError("a fault of ours")
    hands.go.set()
    await settle()
    assert end_of(run).failure == msgspec.structs.replace(UNFORESEEN, repeatable=False)
    assert scheduler.running == 0


@virtual
async def test_an_approved_call_that_says_all_that_a_turn_may_ends_it_and_the_calls_beside_it() -> None:
    agent, slow = WordAgent(), Hands()
    more = (HistoryCall("call2", "desk__find", "{}"), HistoryOutput("call2", (), approved_by="mcpr_2"))
    turn = msgspec.structs.replace(APPROVED_TURN, history=(*APPROVED_TURN.history, *more))

    class Mixed(Hands):
        async def run(self, tool: Tool, arguments: str) -> ToolOutput:
            if arguments == "{}":
                return await slow.run(tool, arguments)
            await asyncio.sleep(1)
            return ToolOutput(TOOL_OUTPUT.parts, "x" * 1000)

    scheduler = RunScheduler(agent, RunLimits(max_chars=1000), Deadlines())
    run = await scheduler.start(turn, runner=Mixed())
    await asyncio.sleep(2)
    assert end_of(run).stop == Stop.LENGTH
    assert (slow.cancelled, agent.transports, scheduler.running) == (1, [], 0)


@virtual
async def test_a_call_is_made_in_the_context_of_its_own_request() -> None:
    """Else the log tells of it under the request that has started the agent's process."""
    of: ContextVar[str] = ContextVar("of")
    heard: list[str] = []

    class Listening(Hands):
        async def run(self, tool: Tool, arguments: str) -> ToolOutput:
            heard.append(of.get())
            return TOOL_OUTPUT

    scheduler, agent, _ = scheduler_with_clock()
    for number in range(2):
        of.set(f"request {number}")
        await scheduler.start(TOOL_TURN, runner=Listening())
    of.set("the process")
    for lane in agent.transports:
        lane.say(ASK, StepCompleted())
    await settle()
    assert heard == ["request 0", "request 1"]


TOO_MUCH: list[Event] = [
    event for id in ("mcpl_1", "mcpl_2") for event in (ItemStarted(McpTools(id, "desk")), ItemEnded(id))
]
"""For a turn that may say no more than one item."""


@virtual
async def test_an_idle_session_is_not_asked_for_a_turn_that_its_first_events_have_ended() -> None:
    agent = WordAgent()
    scheduler = RunScheduler(agent, RunLimits(max_chars=ITEM_SIZE + 100), Deadlines())
    await scheduler.start(Turn(model="m", history=(USER,), mode="model"))
    agent.dialects[0].can_resume = True
    agent.transports[0].say(DONE)
    await settle()
    assert len(scheduler.services.idle_sessions) == 1
    run = await scheduler.start(Turn(model="m", history=(USER, USER), mode="model"), first=TOO_MUCH)
    await settle()
    assert end_of(run).stop == Stop.LENGTH
    assert "resume" not in agent.dialects[0].calls
    assert (scheduler.running, agent.held) == (0, 0)


@virtual
async def test_nothing_that_was_approved_is_run_for_a_turn_that_its_first_events_have_ended() -> None:
    agent, hands = WordAgent(), Hands()
    scheduler = RunScheduler(agent, RunLimits(max_chars=ITEM_SIZE + 100), Deadlines())
    run = await scheduler.start(APPROVED_TURN, runner=hands, first=TOO_MUCH)
    await settle()
    assert end_of(run).stop == Stop.LENGTH
    assert hands.calls == []
    assert (scheduler.running, agent.opening, agent.held) == (0, 0, 0)


# --- where the client is asked before --------------------------------------------------------------

ASKS = Toolset(mcp=(McpPermissions("desk", "always_ask", ("list",)),))
ASKED_TURN = msgspec.structs.replace(TOOL_TURN, toolset=ASKS, approvals="ask")


async def asked_run(turn: Turn = ASKED_TURN) -> tuple[RunScheduler, Run, WordAgent, Hands, ApprovalRequested]:
    """A run whose model has called the tool, and the question about that."""
    scheduler, agent, hands = scheduler_with_clock()
    run = await scheduler.start(turn, runner=hands)
    agent.transports[0].say(ASK, StepCompleted())
    await settle()
    hands.go.set()
    (question,) = [event for event in all_events(run) if isinstance(event, ApprovalRequested)]
    return scheduler, run, agent, hands, question


@virtual
async def test_a_call_that_is_asked_about_runs_once_when_it_is_allowed() -> None:
    scheduler, run, agent, hands, question = await asked_run()
    assert (question.asked, question.kind, question.item_id) == (True, "mcp", "call1")
    assert question.details == ActionDetails(server="desk", tool="find", arguments='{"x": 1}')
    assert (hands.calls, scheduler.running) == ([], 0)
    for _ in range(2):
        run.decide(question.request_id, Decision(approve=True, by_client=True))
    await settle()
    assert hands.calls == [("desk__find", '{"x": 1}')]
    assert agent.dialects[0].calls.count("answer ask1") == 1
    agent.transports[0].say(*deltas("Found."), DONE)
    await settle()
    assert end_of(run).stop == Stop.STOP


@virtual
@pytest.mark.parametrize(("words", "told"), [("Not now.", "Not now."), ("", NOT_APPROVED)])
async def test_a_denied_call_does_not_run_and_the_agent_gets_the_words(words: str, told: str) -> None:
    _, run, agent, hands, question = await asked_run()
    run.decide(question.request_id, Decision(by_client=True, message=words))
    await settle()
    assert hands.calls == []
    assert agent.dialects[0].answers == {"ask1": ToolReply((TextPart(told),))}
    (ended,) = [event for event in all_events(run) if isinstance(event, ItemEnded)]
    assert ended.status == "failed"


@virtual
async def test_where_nobody_may_answer_the_call_is_denied_at_once() -> None:
    _, _, agent, hands, question = await asked_run(msgspec.structs.replace(ASKED_TURN, approvals="decline"))
    assert (question.asked, hands.calls) == (False, [])
    assert agent.dialects[0].answers == {"ask1": ToolReply((TextPart(NOT_APPROVED),))}


@virtual
async def test_a_run_that_ends_with_its_question_open_calls_nothing() -> None:
    scheduler, run, _, hands, question = await asked_run()
    run.interrupt()
    run.decide(question.request_id, Decision(approve=True, by_client=True))
    await settle()
    assert (hands.calls, scheduler.running) == ([], 0)


@pytest.mark.parametrize(
    ("permissions", "asks"),
    [
        (McpPermissions("desk", "always_ask"), True),
        (McpPermissions("desk", "always_ask", ("find",)), False),
        (McpPermissions("desk", "always_allow", ("find",)), True),
        (McpPermissions("desk", "always_allow"), False),
        (McpPermissions("shelf", "always_ask"), False),
    ],
)
def test_only_the_named_servers_tools_are_asked_about(permissions: McpPermissions, asks: bool) -> None:
    question = question_about(ServerCall(ASK, TOOL), Toolset(mcp=(permissions,)))
    assert (question is not None) is asks
    assert question_about(ServerCall(ASK, TOOL), None) is None
