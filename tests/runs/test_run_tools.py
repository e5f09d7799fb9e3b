"""A client's turn with tools: steps, hidden calls, second tries, and the thread for the next request."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from codex_proxy.agents.base import Reply, Step, ToolReply
from codex_proxy.core.events import (
    Event,
    ItemEnded,
    ItemStarted,
    Noticed,
    RawItem,
    StepCompleted,
    Stop,
    TextDelta,
    ToolAsked,
    TurnEnded,
    Usage,
    UsageSeen,
)
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import (
    HistoryItem,
    Message,
    PastCall,
    PastOutput,
    PastRaw,
    SaidMessage,
    TextPart,
    Tool,
    ToolCall,
)
from codex_proxy.core.turn import Turn
from codex_proxy.runs.agent import Opened
from codex_proxy.runs.deadlines import Deadlines
from codex_proxy.runs.kept import KeptLimits
from codex_proxy.runs.manager import RunLimits, RunManager
from codex_proxy.runs.run import Run
from tests.runs.actors import WordAgent, WordDialect, WordLane, end_of, read, text_of
from tests.runs.virtual import settled, virtual

SCHEMA = msgspec.Raw(b'{"type":"object","properties":{"x":{"type":"string"}},"required":["x"]}')
TOOL = Tool("f", parameters=SCHEMA, strict=True)
USER = SaidMessage("user", (TextPart("hi"),))
ASKING = Turn(model="m", history=(USER,), mode="model", tools=(TOOL,))
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

    def proceed(self, turn: Turn, fresh: Sequence[HistoryItem]) -> Step:
        self.fresh += fresh
        self.over = self.settled = self.resting = False
        return super().proceed(turn, fresh)

    def receive(self, lines: Sequence[Any]) -> Step:
        self.resting = any(
            isinstance(line, ToolAsked) or (isinstance(line, TurnEnded) and line.stop == Stop.STOP)
            for line in lines
        )
        return super().receive(lines)

    def answer(self, ask_id: str, reply: Reply) -> Step:
        assert isinstance(reply, ToolReply)
        self.replies[ask_id] = "".join(part.text for part in reply.parts if isinstance(part, TextPart))
        return super().answer(ask_id, reply)


class ToolAgent(WordAgent):
    """Its places speak `ToolDialect`."""

    async def open(self, turn: Turn) -> Opened:
        opened = await super().open(turn)
        dialect, lane = ToolDialect(), opened.lane
        self.dialects[-1] = dialect
        assert isinstance(lane, WordLane)
        return Opened(turn, dialect, lane)

    @property
    def last(self) -> ToolDialect:
        dialect = self.dialects[-1]
        assert isinstance(dialect, ToolDialect)
        return dialect


def managed(kept: int = 8) -> tuple[RunManager, ToolAgent]:
    agent = ToolAgent()
    limits = RunLimits(running=4, waiting=4, wait=30.0)
    return RunManager(agent, limits, Deadlines(), kept=KeptLimits(kept)), agent


def raw_call(id: str, arguments: str) -> RawItem:
    item = {"type": "function_call", "call_id": id, "name": "f", "arguments": arguments}
    return RawItem("function_call", msgspec.json.encode(item))


def step(*calls: tuple[str, str], spent: int = 10) -> list[Event]:
    """A step of the model that makes these calls, and has cost so much since the turn began."""
    raws = [raw_call(id, arguments) for id, arguments in calls]
    asks = [ToolAsked(id, id, "f", arguments) for id, arguments in calls]
    return [*raws, UsageSeen(Usage(input=spent)), *asks, StepCompleted()]


def words(text: str, spent: int = 10) -> list[Event]:
    message: list[Event] = [ItemStarted(Message("m")), TextDelta("m", text), ItemEnded("m")]
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    raw = RawItem("message", msgspec.json.encode(item))
    return [*message, raw, UsageSeen(Usage(input=spent)), StepCompleted(), TurnEnded(Stop.STOP)]


def calls_in(run: Run) -> list[str]:
    """Ids of the calls that the client is told of."""
    items = [event.item for event in read(run) if isinstance(event, ItemStarted)]
    return [item.call_id for item in items if isinstance(item, ToolCall)]


def spent(run: Run) -> int:
    return [event.usage.input for event in read(run) if isinstance(event, UsageSeen)][-1]


def output(id: str) -> PastOutput:
    return PastOutput(id, (TextPart(f"output {id}"),))


def go_on(*ids: str, arguments: str = GOOD) -> Turn:
    """The client's next request, with the outputs of these calls."""
    calls = [PastCall(id, "f", arguments) for id in ids]
    return msgspec.structs.replace(ASKING, history=(USER, *calls, *(output(id) for id in ids)))


@virtual
@pytest.mark.parametrize("kept", [8, 0])
async def test_a_turn_that_ends_with_calls_is_gone_on_with_by_their_outputs(kept: int) -> None:
    manager, agent = managed(kept)
    first = await manager.start(ASKING)
    agent.lanes[0].say(*step(("a", GOOD), ("b", GOOD)))
    await settled()
    assert end_of(first).stop == Stop.TOOL_CALLS
    assert calls_in(first) == ["a", "b"]
    assert manager.running == 0
    second = await manager.start(go_on("a", "b"))
    assert len(agent.lanes) == (1 if kept else 2)
    if kept:
        assert agent.last.fresh == [output("a"), output("b")]
    else:
        assert agent.last.began is not None
        assert agent.last.began.history[-2:] == (output("a"), output("b"))
    agent.lanes[-1].say(*words("Done."))
    await settled()
    assert text_of(read(second)) == "Done."
    assert end_of(second).stop == Stop.STOP
    await manager.close()
    assert agent.held == 0


@virtual
async def test_a_violation_is_answered_at_once_and_the_same_turn_goes_on() -> None:
    manager, agent = managed()
    run = await manager.start(ASKING)
    agent.lanes[0].say(*step(("a", BAD)))
    assert "break the tool's schema" in agent.last.replies["a"]
    agent.lanes[0].say(*step(("b", GOOD), spent=25))
    await settled()
    assert calls_in(run) == ["b"]
    assert spent(run) == 25
    await manager.close()


@virtual
async def test_what_we_answered_to_hidden_calls_goes_to_a_parked_turn_with_the_client_s_outputs() -> None:
    manager, agent = managed()
    await manager.start(ASKING)
    agent.lanes[0].say(*step(("a", BAD), ("b", GOOD)))
    await settled()
    assert agent.last.replies == {}
    await manager.start(go_on("b"))
    assert agent.last.fresh == [output("b")]
    assert list(agent.last.replies) == ["a"]
    await manager.close()


@virtual
async def test_a_model_that_never_learns_fails_the_turn_and_its_thread_is_not_kept() -> None:
    manager, agent = managed()
    run = await manager.start(ASKING)
    for _ in range(3):
        agent.lanes[0].say(Noticed("unoffered_call", "g"), StepCompleted())
    await settled()
    failure = end_of(run).failure
    assert failure is not None
    assert failure.code == "invalid_tool_calls"
    assert len(manager.kept) == 0
    assert agent.held == 0


REQUIRED = msgspec.structs.replace(ASKING, tool_choice="required")


@virtual
async def test_words_instead_of_a_required_call_are_tried_again_on_a_new_thread() -> None:
    manager, agent = managed()
    run = await manager.start(REQUIRED)
    agent.lanes[0].say(*words("No.", spent=7))
    await settled()
    assert len(agent.lanes) == 2
    assert agent.lanes[0].released == [True]
    agent.lanes[1].say(*step(("a", GOOD), spent=5))
    await settled()
    assert text_of(read(run)) == ""
    assert calls_in(run) == ["a"]
    assert spent(run) == 12
    assert len(manager.kept) == 0, "it was told more than the client said"
    await manager.close()


@virtual
async def test_words_that_were_thrown_away_are_not_remembered() -> None:
    manager, agent = managed(kept=0)
    await manager.start(REQUIRED)
    agent.lanes[0].say(*words("No."))
    await settled()
    agent.lanes[1].say(*step(("a", GOOD)))
    await settled()
    await manager.start(go_on("a"))
    assert agent.last.began is not None
    _, call, given = agent.last.began.history
    assert isinstance(call, PastRaw)
    assert given == output("a")
    await manager.close()


@virtual
async def test_what_an_earlier_try_still_says_is_not_heard() -> None:
    manager, agent = managed()
    run = await manager.start(REQUIRED)
    agent.slow_to_settle = True
    agent.lanes[0].say(*words("No."))
    agent.lanes[0].say(TextDelta("m", "Still no."))
    await settled()
    agent.lanes[1].say(*step(("a", GOOD)))
    await settled()
    assert text_of(read(run)) == ""
    assert calls_in(run) == ["a"]
    await manager.close()


@virtual
async def test_a_second_try_that_finds_no_place_fails_the_turn() -> None:
    manager, agent = managed()
    run = await manager.start(REQUIRED)
    agent.fault = Fault(Failure(kind=FaultKind.SPAWN_FAILED, message="no"))
    agent.lanes[0].say(*words("No."))
    await settled()
    failure = end_of(run).failure
    assert failure is not None
    assert failure.kind == FaultKind.SPAWN_FAILED
    assert (manager.running, agent.held) == (0, 0)


@virtual
async def test_a_client_that_leaves_between_two_tries_gets_no_second_one() -> None:
    manager, agent = managed()
    run = await manager.start(REQUIRED)
    agent.lanes[0].say(*words("No."))
    run.interrupt()
    await settled()
    assert end_of(run).stop == Stop.INTERRUPTED
    assert "begin" not in agent.last.calls[1:]
    assert (manager.running, agent.held) == (0, 0)


@virtual
async def test_a_second_try_sees_what_is_remembered_too() -> None:
    manager, agent = managed(kept=0)
    await manager.start(ASKING)
    agent.lanes[0].say(RawItem("reasoning", b'{"type":"reasoning"}'), *step(("a", GOOD)))
    await settled()
    await manager.start(msgspec.structs.replace(go_on("a"), tool_choice="required"))
    agent.lanes[1].say(*words("No."))
    await settled()
    for dialect in agent.dialects[1:]:
        assert isinstance(dialect, ToolDialect)
        assert dialect.began is not None
        assert len(dialect.began.history) == 5  # user, reasoning, call, output, and what it is told
    await manager.close()


@virtual
async def test_nobody_else_gets_a_parked_turn() -> None:
    manager, agent = managed()
    await manager.start(ASKING, "ada")
    agent.lanes[0].say(*step(("a", GOOD)))
    await settled()
    await manager.start(go_on("a"), "bob")
    assert len(agent.lanes) == 2
    await manager.start(go_on("a"), "ada")
    assert len(agent.lanes) == 2
    await manager.close()


@virtual
async def test_a_memory_that_fails_costs_nothing_but_itself() -> None:
    class Broken:
        async def remember(self, *given: Any, **more: Any) -> None:
            raise OSError("the disk is full")

        async def recall(self, *given: Any) -> dict[bytes, bytes]:
            return {}

    manager, agent = managed()
    manager.memory = Broken()
    run = await manager.start(ASKING)
    agent.lanes[0].say(*step(("a", GOOD)))
    await settled()
    assert end_of(run).stop == Stop.TOOL_CALLS
    await manager.close()


@virtual
async def test_a_server_that_drains_keeps_no_more_threads() -> None:
    manager, agent = managed()
    await manager.start(ASKING)
    draining = asyncio.create_task(manager.drain(1))
    await settled()
    agent.lanes[0].say(*step(("a", GOOD)))
    await draining
    await settled()
    assert (len(manager.kept), agent.held) == (0, 0)
