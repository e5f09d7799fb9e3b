"""A client's turn with tools: steps, hidden calls, second tries, and the thread for the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.dialect import Reply, Step, ToolReply
from codex_proxy.agents.sessions.session import AgentSession
from codex_proxy.core.events import (
    Event,
    ItemEnded,
    ItemStarted,
    Notice,
    RawItem,
    StepCompleted,
    Stop,
    TextDelta,
    ToolCallRequested,
    TurnEnded,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    Message,
    RawHistoryItem,
    TextPart,
    Tool,
    ToolCall,
)
from codex_proxy.core.turn import Turn
from codex_proxy.runs.event_log import HIGH_WATER
from codex_proxy.runs.idle_sessions import IdleLimits
from codex_proxy.runs.run import Run
from codex_proxy.runs.scheduler import RunLimits, RunScheduler
from codex_proxy.runs.time_and_tokens import Deadlines
from codex_proxy.tools.schemas import TextCheck, Verdict
from codex_proxy.tools.strict_schemas import StrictForm
from codex_proxy.workers.schema_checks import STOPPING, SchemaChecks
from tests.runs.actors import WordAgent, WordDialect, WordTransport, all_events, end_of, text_of
from tests.runs.virtual import close_after_test, settle, virtual

SCHEMA = msgspec.Raw(b'{"type":"object","properties":{"x":{"type":"string"}},"required":["x"]}')
TOOL = Tool("f", parameters=SCHEMA, strict=True)
USER = HistoryMessage("user", (TextPart("hi"),))
TOOL_TURN = Turn(model="m", history=(USER,), mode="model", tools=(TOOL,))
GOOD, BAD = '{"x": "1"}', "{}"


class ToolDialect(WordDialect):
    """Rests on calls and after a good end, as app-server does; remembers what it was told."""

    def __init__(self) -> None:
        super().__init__()
        self.replies: dict[str, str] = {}
        self.began: Turn | None = None
        self.fresh: list[HistoryItem] = []

    def begin(self, turn: Turn) -> Step:
        self.began = turn
        return super().begin(turn)

    def resume(self, turn: Turn, fresh: Sequence[HistoryItem]) -> Step:
        self.fresh += fresh
        self.over = self.finished = self.can_resume = False
        return super().resume(turn, fresh)

    def receive(self, lines: Sequence[Any]) -> Step:
        self.can_resume = any(
            isinstance(line, ToolCallRequested) or (isinstance(line, TurnEnded) and line.stop == Stop.STOP)
            for line in lines
        )
        return super().receive(lines)

    def answer(self, request_id: str, reply: Reply) -> Step:
        assert isinstance(reply, ToolReply)
        self.replies[request_id] = "".join(part.text for part in reply.parts if isinstance(part, TextPart))
        return super().answer(request_id, reply)


class ToolAgent(WordAgent):
    """Its places speak `ToolDialect`, and it takes output schemas."""

    capabilities = frozenset({"structured_output"})

    async def open(self, turn: Turn) -> AgentSession:
        opened = await super().open(turn)
        dialect, transport = ToolDialect(), opened.transport
        self.dialects[-1] = dialect
        assert isinstance(transport, WordTransport)
        return AgentSession(turn, dialect, transport)

    @property
    def last(self) -> ToolDialect:
        dialect = self.dialects[-1]
        assert isinstance(dialect, ToolDialect)
        return dialect


def scheduler_of_tool_agent(kept: int = 8) -> tuple[RunScheduler, ToolAgent]:
    agent = ToolAgent()
    limits = RunLimits(max_running=4, max_waiting=4, max_wait_seconds=30.0)
    scheduler = RunScheduler(agent, limits, Deadlines(), idle_limits=IdleLimits(kept))
    close_after_test(scheduler.close)
    return scheduler, agent


def raw_call(id: str, arguments: str) -> RawItem:
    item = {"type": "function_call", "call_id": id, "name": "f", "arguments": arguments}
    return RawItem("function_call", msgspec.json.encode(item))


def step(*calls: tuple[str, str], spent: int = 10) -> list[Event]:
    """A step of the model that makes these calls, and has cost so much since the turn began."""
    raws = [raw_call(id, arguments) for id, arguments in calls]
    asks = [ToolCallRequested(id, id, "f", arguments) for id, arguments in calls]
    return [*raws, UsageReported(Usage(input=spent)), *asks, StepCompleted()]


def words(text: str, spent: int = 10) -> list[Event]:
    message: list[Event] = [ItemStarted(Message("m")), TextDelta("m", text), ItemEnded("m")]
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    raw = RawItem("message", msgspec.json.encode(item))
    return [*message, raw, UsageReported(Usage(input=spent)), StepCompleted(), TurnEnded(Stop.STOP)]


def calls_in(run: Run) -> list[str]:
    """Ids of the calls that the client is told of."""
    items = [event.item for event in all_events(run) if isinstance(event, ItemStarted)]
    return [item.call_id for item in items if isinstance(item, ToolCall)]


def spent(run: Run) -> int:
    return [event.usage.input for event in all_events(run) if isinstance(event, UsageReported)][-1]


def output(id: str) -> HistoryOutput:
    return HistoryOutput(id, (TextPart(f"output {id}"),))


def go_on(*ids: str, arguments: str = GOOD) -> Turn:
    """The client's next request, with the outputs of these calls."""
    calls = [HistoryCall(id, "f", arguments) for id in ids]
    return msgspec.structs.replace(TOOL_TURN, history=(USER, *calls, *(output(id) for id in ids)))


@virtual
@pytest.mark.parametrize("kept", [8, 0])
async def test_a_turn_that_ends_with_calls_is_gone_on_with_by_their_outputs(kept: int) -> None:
    scheduler, agent = scheduler_of_tool_agent(kept)
    first = await scheduler.start(TOOL_TURN)
    agent.transports[0].say(*step(("a", GOOD), ("b", GOOD)))
    await settle()
    assert end_of(first).stop == Stop.TOOL_CALLS
    assert calls_in(first) == ["a", "b"]
    assert scheduler.running == 0
    second = await scheduler.start(go_on("a", "b"))
    assert len(agent.transports) == (1 if kept else 2)
    if kept:
        assert agent.last.fresh == [output("a"), output("b")]
    else:
        assert agent.last.began is not None
        assert agent.last.began.history[-2:] == (output("a"), output("b"))
    agent.transports[-1].say(*words("Done."))
    await settle()
    assert text_of(all_events(second)) == "Done."
    assert end_of(second).stop == Stop.STOP
    await scheduler.close()
    assert agent.held == 0


@virtual
async def test_a_violation_is_answered_at_once_and_the_same_turn_goes_on() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(TOOL_TURN)
    agent.transports[0].say(*step(("a", BAD)))
    assert "break the tool's schema" in agent.last.replies["a"]
    agent.transports[0].say(*step(("b", GOOD), spent=25))
    await settle()
    assert calls_in(run) == ["b"]
    assert spent(run) == 25


@virtual
async def test_outputs_of_hidden_calls_go_to_a_waiting_turn_with_those_of_the_client() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    await scheduler.start(TOOL_TURN)
    agent.transports[0].say(*step(("a", BAD), ("b", GOOD)))
    await settle()
    assert agent.last.replies == {}
    await scheduler.start(go_on("b"))
    assert agent.last.fresh == [output("b")]
    assert list(agent.last.replies) == ["a"]


@virtual
async def test_a_model_that_never_learns_fails_the_turn_and_its_thread_is_not_kept() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(TOOL_TURN)
    for _ in range(3):
        agent.transports[0].say(Notice("unoffered_call", "g"), StepCompleted())
    await settle()
    failure = end_of(run).failure
    assert failure is not None
    assert failure.code == "invalid_tool_calls"
    assert len(scheduler.services.idle_sessions) == 0
    assert agent.held == 0


REQUIRED_TOOL_TURN = msgspec.structs.replace(TOOL_TURN, tool_choice="required")


@virtual
async def test_words_instead_of_a_required_call_are_tried_again_on_a_new_thread() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(REQUIRED_TOOL_TURN)
    agent.transports[0].say(*words("No.", spent=7))
    await settle()
    assert len(agent.transports) == 2
    assert agent.transports[0].released == [True]
    agent.transports[1].say(*step(("a", GOOD), spent=5))
    await settle()
    assert text_of(all_events(run)) == ""
    assert calls_in(run) == ["a"]
    assert spent(run) == 12
    assert len(scheduler.services.idle_sessions) == 0, "it was told more than the client said"


@virtual
@pytest.mark.parametrize(
    ("first", "second", "total"),
    [(True, True, (12, False)), (True, False, (7, True)), (False, True, (5, True))],
)
async def test_tokens_are_reported_as_partial_where_those_of_one_of_two_attempts_are_not_known(
    first: bool, second: bool, total: tuple[int, bool]
) -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(REQUIRED_TOOL_TURN)
    for transport, known, events in (
        (0, first, words("No.", spent=7)),
        (1, second, step(("a", GOOD), spent=5)),
    ):
        agent.transports[transport].say(*(e for e in events if known or not isinstance(e, UsageReported)))
        await settle()
    last = [event for event in all_events(run) if isinstance(event, UsageReported)][-1]
    assert (last.usage.input, last.partial) == total


@virtual
async def test_tokens_that_the_agent_reports_as_partial_are_reported_so() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(REQUIRED_TOOL_TURN)
    for event in step(("a", GOOD), spent=5):
        if isinstance(event, UsageReported):
            event = msgspec.structs.replace(event, partial=True)
        agent.transports[0].say(event)
    await settle()
    assert [event.partial for event in all_events(run) if isinstance(event, UsageReported)] == [True]


@virtual
async def test_words_that_were_thrown_away_are_not_remembered() -> None:
    scheduler, agent = scheduler_of_tool_agent(kept=0)
    await scheduler.start(REQUIRED_TOOL_TURN)
    agent.transports[0].say(*words("No."))
    await settle()
    agent.transports[1].say(*step(("a", GOOD)))
    await settle()
    await scheduler.start(go_on("a"))
    assert agent.last.began is not None
    _, call, given = agent.last.began.history
    assert isinstance(call, RawHistoryItem)
    assert given == output("a")


@virtual
async def test_output_of_an_earlier_attempt_is_ignored() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(REQUIRED_TOOL_TURN)
    agent.slow_to_finish = True
    agent.transports[0].say(*words("No."))
    agent.transports[0].say(TextDelta("m", "Still no."))
    await settle()
    agent.transports[1].say(*step(("a", GOOD)))
    await settle()
    assert text_of(all_events(run)) == ""
    assert calls_in(run) == ["a"]


@virtual
async def test_the_child_of_a_second_attempt_waits_for_a_slow_reader_too() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    agent.exclusive = True
    run = await scheduler.start(REQUIRED_TOOL_TURN)
    cursor = run.log.cursor()
    agent.transports[0].say(*words("No."), size=HIGH_WATER + 1)
    await settle()
    second = agent.transports[1]
    second.say(UsageReported(Usage(input=1)))
    assert second.paused
    while cursor.take():
        pass
    assert not second.paused
    second.say(UsageReported(Usage(input=2)), size=HIGH_WATER + 1)
    assert second.paused
    cursor.detach()
    run.interrupt()


@virtual
async def test_a_second_attempt_that_gets_no_session_fails_the_turn() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(REQUIRED_TOOL_TURN)
    agent.fault = Fault(Failure(kind=FaultKind.SPAWN_FAILED, message="no"))
    agent.transports[0].say(*words("No."))
    await settle()
    failure = end_of(run).failure
    assert failure is not None
    assert failure.kind == FaultKind.SPAWN_FAILED
    assert (scheduler.running, agent.held) == (0, 0)


@virtual
async def test_a_client_that_leaves_between_two_attempts_gets_no_second_one() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(REQUIRED_TOOL_TURN)
    agent.transports[0].say(*words("No."))
    run.interrupt()
    await settle()
    assert end_of(run).stop == Stop.INTERRUPTED
    assert "begin" not in agent.last.calls[1:]
    assert (scheduler.running, agent.held) == (0, 0)


@virtual
async def test_a_second_attempt_sees_what_is_remembered_too() -> None:
    scheduler, agent = scheduler_of_tool_agent(kept=0)
    await scheduler.start(TOOL_TURN)
    agent.transports[0].say(RawItem("reasoning", b'{"type":"reasoning"}'), *step(("a", GOOD)))
    await settle()
    await scheduler.start(msgspec.structs.replace(go_on("a"), tool_choice="required"))
    agent.transports[1].say(*words("No."))
    await settle()
    for dialect in agent.dialects[1:]:
        assert isinstance(dialect, ToolDialect)
        assert dialect.began is not None
        assert len(dialect.began.history) == 5  # user, reasoning, call, output, and what it is told


@virtual
async def test_a_second_try_begins_with_the_history_that_is_stored() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    thought = RawHistoryItem(b'{"type":"reasoning"}')
    await scheduler.start(REQUIRED_TOOL_TURN, replay=(thought, USER))
    agent.transports[0].say(*words("No."))
    await settle()
    for dialect in agent.dialects:
        assert isinstance(dialect, ToolDialect)
        assert dialect.began is not None
        assert dialect.began.history[:2] == (thought, USER)


@virtual
async def test_nobody_else_gets_a_waiting_turn() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    await scheduler.start(TOOL_TURN, "ada")
    agent.transports[0].say(*step(("a", GOOD)))
    await settle()
    await scheduler.start(go_on("a"), "bob")
    assert len(agent.transports) == 2
    await scheduler.start(go_on("a"), "ada")
    assert len(agent.transports) == 2


@virtual
async def test_a_memory_that_fails_costs_nothing_but_itself() -> None:
    class Broken:
        async def remember(self, *given: Any, **more: Any) -> None:
            raise OSError("the disk is full")

        async def recall(self, *given: Any) -> dict[bytes, bytes]:
            raise OSError("the database is away")

    scheduler, agent = scheduler_of_tool_agent(kept=0)
    scheduler.services.memory = Broken()
    run = await scheduler.start(TOOL_TURN)
    agent.transports[0].say(*step(("a", GOOD)))
    await settle()
    assert end_of(run).stop == Stop.TOOL_CALLS
    again = await scheduler.start(go_on("a"))
    assert agent.last.began is not None
    assert agent.last.began.history == go_on("a").history
    agent.transports[1].say(*words("Fine."))
    await settle()
    assert end_of(again).stop == Stop.STOP


@virtual
async def test_a_server_that_drains_keeps_no_more_threads() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    await scheduler.start(TOOL_TURN)
    draining = asyncio.create_task(scheduler.drain(1))
    await settle()
    agent.transports[0].say(*step(("a", GOOD)))
    await draining
    await settle()
    assert (len(scheduler.services.idle_sessions), agent.held) == (0, 0)


# --- checks that may take long --------------------------------------------------------------------


class HeldChecks(SchemaChecks):
    """Whose verdicts come when the test lets them."""

    def __init__(self) -> None:
        super().__init__()
        self.verdicts: list[asyncio.Future[Verdict]] = []

    async def check_texts(self, checks: Sequence[TextCheck]) -> list[Verdict]:
        new = [asyncio.get_running_loop().create_future() for _ in checks]
        self.verdicts += new
        return list(await asyncio.gather(*new))

    async def strict_form(self, schema: bytes) -> StrictForm | None:
        return None

    async def close(self) -> None:
        for each in self.verdicts:
            if not each.done():
                each.set_result(STOPPING)


LARGE = msgspec.Raw(msgspec.json.encode({**msgspec.json.decode(SCHEMA), "description": "x" * 20_000}))
SLOW_TOOL = msgspec.structs.replace(TOOL_TURN, tools=(Tool("f", parameters=LARGE, strict=True),))
SLOW_ANSWER = msgspec.structs.replace(TOOL_TURN, tools=(), output_schema=LARGE)


def scheduler_with_checks() -> tuple[RunScheduler, ToolAgent, HeldChecks]:
    scheduler, agent = scheduler_of_tool_agent()
    scheduler.services.checks = checks = HeldChecks()
    return scheduler, agent, checks


@virtual
async def test_a_step_waits_for_the_check_of_its_calls_and_what_comes_meanwhile_waits_behind_it() -> None:
    scheduler, agent, checks = scheduler_with_checks()
    run = await scheduler.start(SLOW_TOOL)
    agent.transports[0].say(*step(("a", GOOD)))
    agent.transports[0].say(ItemStarted(Message("m")), TextDelta("m", "More."), ItemEnded("m"))
    await settle()
    assert calls_in(run) == []
    assert text_of(all_events(run)) == ""
    checks.verdicts[0].set_result(Verdict(wrong="at $: no"))
    await settle()
    assert "break the tool's schema: at $: no" in agent.last.replies["a"]
    assert text_of(all_events(run)) == "More."
    agent.transports[0].say(*step(("b", GOOD)))
    await settle()
    checks.verdicts[1].set_result(Verdict())
    await settle()
    assert calls_in(run) == ["b"]
    assert end_of(run).stop == Stop.TOOL_CALLS


@virtual
async def test_an_agent_that_dies_while_its_call_is_checked_has_made_the_call() -> None:
    scheduler, agent, checks = scheduler_with_checks()
    run = await scheduler.start(SLOW_TOOL)
    agent.transports[0].say(*step(("a", GOOD)))
    failed = Failure(kind=FaultKind.UPSTREAM_DISCONNECTED, message="gone")
    agent.transports[0].say(TurnEnded(Stop.FAILED, "provider", failed))
    await settle()
    checks.verdicts[0].set_result(Verdict())
    await settle()
    assert calls_in(run) == ["a"]
    assert end_of(run).stop == Stop.TOOL_CALLS


@virtual
async def test_an_answer_that_is_held_for_its_check_has_begun_for_the_deadlines() -> None:
    scheduler, agent, checks = scheduler_with_checks()
    run = await scheduler.start(SLOW_ANSWER)
    begin, delta, *rest = words(GOOD)
    agent.transports[0].say(begin, delta)
    await asyncio.sleep(200)
    assert text_of(all_events(run)) == ""
    agent.transports[0].say(*rest)
    await asyncio.sleep(15)
    checks.verdicts[0].set_result(Verdict())
    await settle()
    assert text_of(all_events(run)) == GOOD
    assert end_of(run).stop == Stop.STOP


@virtual
@pytest.mark.parametrize(
    ("turn", "said"), [(SLOW_TOOL, step(("a", GOOD))), (SLOW_ANSWER, words(GOOD))], ids=["call", "answer"]
)
async def test_an_answer_that_cannot_be_checked_fails_the_turn_by_name(turn: Turn, said: list[Event]) -> None:
    scheduler, agent, checks = scheduler_with_checks()
    run = await scheduler.start(turn)
    agent.transports[0].say(*said)
    await settle()
    checks.verdicts[0].set_result(Verdict(unchecked="checking it would take too long"))
    await settle()
    failure = end_of(run).failure
    assert failure is not None
    assert failure.code == "schema_check_failed"
    assert "would take too long" in failure.message
    assert calls_in(run) == []
    assert text_of(all_events(run)) == ""
    assert (scheduler.running, len(agent.transports)) == (0, 1)
    await scheduler.close()
    assert agent.held == 0


@virtual
async def test_an_answer_waits_for_its_check_and_is_asked_for_again_where_it_is_wrong() -> None:
    scheduler, agent, checks = scheduler_with_checks()
    run = await scheduler.start(SLOW_ANSWER)
    agent.transports[0].say(*words(BAD))
    await settle()
    assert text_of(all_events(run)) == ""
    checks.verdicts[0].set_result(Verdict(wrong="at $: no"))
    await settle()
    agent.transports[1].say(*words(GOOD))
    await settle()
    checks.verdicts[1].set_result(Verdict())
    await settle()
    assert text_of(all_events(run)) == GOOD
    assert end_of(run).stop == Stop.STOP


@virtual
@pytest.mark.parametrize(
    ("turn", "said"), [(SLOW_TOOL, step(("a", GOOD))), (SLOW_ANSWER, words(GOOD))], ids=["call", "answer"]
)
async def test_a_client_that_leaves_during_a_check_ends_the_turn_at_once(
    turn: Turn, said: list[Event]
) -> None:
    scheduler, agent, checks = scheduler_with_checks()
    run = await scheduler.start(turn)
    agent.transports[0].say(*said)
    await settle()
    run.interrupt()
    await settle()
    assert checks.verdicts[0].cancelled()
    assert end_of(run).stop == Stop.INTERRUPTED
    assert scheduler.running == 0
    await scheduler.close()
    assert agent.held == 0


@virtual
async def test_a_server_that_stops_waits_for_turns_and_for_no_check() -> None:
    scheduler, agent, _ = scheduler_with_checks()
    run = await scheduler.start(SLOW_TOOL)
    agent.transports[0].say(*step(("a", GOOD)))
    await settle()
    began = asyncio.get_running_loop().time()
    await scheduler.drain(10)
    assert asyncio.get_running_loop().time() - began < 1
    failure = end_of(run).failure
    assert failure is not None
    assert "the server is stopping" in failure.message


@virtual
async def test_an_agent_is_not_late_while_its_call_is_checked() -> None:
    agent, checks = ToolAgent(), HeldChecks()
    scheduler = RunScheduler(agent, RunLimits(), Deadlines(first=1000, idle=5, total=1000))
    scheduler.services.checks = checks
    run = await scheduler.start(SLOW_TOOL)
    agent.transports[0].say(*step(("a", GOOD)))
    await asyncio.sleep(50)
    assert not run.ended
    checks.verdicts[0].set_result(Verdict())
    await settle()
    assert end_of(run).stop == Stop.TOOL_CALLS


# --- a schema that the provider was given ----------------------------------------------------------

CLOSED_SCHEMA = msgspec.Raw(
    b'{"type":"object","properties":{"x":{"type":"string"}},"required":["x"],"additionalProperties":false}'
)
CLOSED_ANSWER = msgspec.structs.replace(TOOL_TURN, tools=(), output_schema=CLOSED_SCHEMA)


@virtual
async def test_prose_under_a_schema_that_the_provider_ignored_is_asked_for_again() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(CLOSED_ANSWER)
    assert agent.last.began is not None
    assert agent.last.began.output_schema == CLOSED_SCHEMA
    assert agent.last.began.history == (USER,)
    agent.transports[0].say(*words("It is one."))
    await settle()
    assert agent.last.began.output_schema == CLOSED_SCHEMA
    assert len(agent.last.began.history) == 2
    agent.transports[1].say(*words(GOOD))
    await settle()
    assert text_of(all_events(run)) == GOOD
    assert end_of(run).stop == Stop.STOP


@virtual
async def test_a_schema_that_only_has_to_be_closed_is_given_to_the_agent_closed() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    await scheduler.start(msgspec.structs.replace(CLOSED_ANSWER, output_schema=SCHEMA))
    assert agent.last.began is not None
    assert agent.last.began.output_schema == CLOSED_SCHEMA


@virtual
async def test_prose_that_comes_again_fails_the_turn() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(CLOSED_ANSWER)
    for lane in range(2):
        agent.transports[lane].say(*words("It is one."))
        await settle()
    failure = end_of(run).failure
    assert failure is not None
    assert failure.code == "invalid_structured_output"
    assert text_of(all_events(run)) == ""


# --- a schema that is made to fit ------------------------------------------------------------------

OPTIONAL = msgspec.Raw(b'{"type":"object","properties":{"x":{"type":"string"},"y":{"type":"string"}}}')
OPTIONAL_FITTED = msgspec.Raw(
    b'{"type":"object","properties":{"x":{"type":["string","null"]},"y":{"type":["string","null"]}},'
    b'"additionalProperties":false,"required":["x","y"]}'
)
OPTIONAL_ANSWER = msgspec.structs.replace(TOOL_TURN, tools=(), output_schema=OPTIONAL)


@virtual
async def test_an_answer_under_a_schema_that_was_made_to_fit_comes_without_its_nulls() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(OPTIONAL_ANSWER)
    assert agent.last.began is not None
    assert agent.last.began.output_schema == OPTIONAL_FITTED
    assert agent.last.began.history == (USER,)
    agent.transports[0].say(*words('{"x": "1", "y": null}'))
    await settle()
    assert text_of(all_events(run)) == '{"x":"1"}'
    assert end_of(run).stop == Stop.STOP


@virtual
async def test_a_thread_whose_answer_was_rewritten_goes_on_with_what_the_client_echoes() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    await scheduler.start(OPTIONAL_ANSWER)
    agent.transports[0].say(*words('{"x": "1", "y": null}'))
    await settle()
    echo = HistoryMessage("assistant", (TextPart('{"x":"1"}'),))
    again = msgspec.structs.replace(OPTIONAL_ANSWER, history=(USER, echo, USER))
    await scheduler.start(again)
    assert len(agent.transports) == 1
    assert agent.last.fresh == [USER]


@virtual
async def test_a_second_attempt_has_the_schema_that_the_provider_has() -> None:
    scheduler, agent = scheduler_of_tool_agent()
    run = await scheduler.start(OPTIONAL_ANSWER)
    agent.transports[0].say(*words("It is one."))
    await settle()
    assert agent.last.began is not None
    assert agent.last.began.output_schema == OPTIONAL_FITTED
    told = agent.last.began.history[-1]
    assert isinstance(told, HistoryMessage)
    assert bytes(OPTIONAL_FITTED).decode() in str(told.parts[0])
    agent.transports[1].say(*words('{"y":null,"x":"1"}'))
    await settle()
    assert text_of(all_events(run)) == '{"x":"1"}'
