"""What a client says while its turn runs: the agent is given it once, and when it is taken all that follows has it."""

from __future__ import annotations

import json
from typing import Any

import msgspec

from codex_proxy.agents.dialect import Ended
from codex_proxy.core.events import (
    Event,
    InputTaken,
    ItemEnded,
    ItemStarted,
    RawItem,
    StepCompleted,
    TextDelta,
    ToolCallRequested,
)
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    Message,
    RawHistoryItem,
    TextPart,
    Tool,
)
from codex_proxy.runs.run import Run
from codex_proxy.runs.scheduler import RunLimits, RunScheduler
from codex_proxy.runs.steered_inputs import SteeredInputs, takes_input
from codex_proxy.runs.time_and_tokens import Deadlines
from codex_proxy.tools.replay import RememberedTurn, call_key
from tests.runs.actors import DONE, TURN, WordAgent, all_events, deltas, end_of
from tests.runs.virtual import settle, virtual


def said(text: str, role: Any = "user") -> HistoryMessage:
    return HistoryMessage(role, (TextPart(text),))


def answered(text: str) -> RawItem:
    """The model's item of a message."""
    content = [{"type": "output_text", "text": text}]
    item = {"type": "message", "role": "assistant", "content": content}
    return RawItem("message", json.dumps(item, separators=(",", ":")).encode())


class Steering:
    """A scheduler whose agent takes input while it works."""

    def __init__(self) -> None:
        self.agent = WordAgent()
        self.agent.capabilities = frozenset({"tool_replies"})
        self.scheduler = RunScheduler(self.agent, RunLimits(), Deadlines())

    async def begin(self, *history: HistoryItem, **turn: Any) -> Run:
        self.inputs = SteeredInputs()
        given = {"history": history or (said("Hello."),)} | turn
        return await self.scheduler.start(msgspec.structs.replace(TURN, **given), inputs=self.inputs)

    def steers(self, session: int = -1) -> list[str]:
        """The inputs that a session was given."""
        return [call for call in self.agent.dialects[session].calls if call.startswith("steer")]


@virtual
async def test_an_input_is_given_to_the_agent_once() -> None:
    steering = Steering()
    run = await steering.begin()
    steering.inputs.add("1", (said("Shorter."),))
    steering.inputs.add("2", (said("Please."),))
    steering.inputs.add("1", (said("Shorter."),))
    assert steering.steers() == ["steer 1", "steer 2"]
    assert "1" in steering.inputs
    steering.agent.transports[-1].say(*deltas("Hi."), InputTaken("1"), DONE)
    steering.inputs.add("1", (said("Shorter."),))
    assert steering.steers() == ["steer 1", "steer 2"]
    assert InputTaken("1") in all_events(run)
    end_of(run)


def test_a_turn_takes_input_where_its_agent_does_and_its_answer_is_not_held_to_a_schema() -> None:
    held = msgspec.structs.replace(TURN, output_schema=msgspec.Raw(b'{"type":"object"}'))
    assert takes_input(TURN, {"steering"})
    assert not takes_input(TURN, {"history"})
    assert not takes_input(held, {"steering"})


@virtual
async def test_an_input_after_the_turns_end_is_not_given() -> None:
    steering = Steering()
    await steering.begin()
    steering.agent.transports[-1].say(*deltas("Hi."), DONE)
    steering.inputs.add("1", (said("Shorter."),))
    assert steering.steers() == []


@virtual
async def test_a_session_whose_turn_took_input_is_kept_for_the_conversation_with_it() -> None:
    steering = Steering()
    await steering.begin()
    steering.inputs.add("1", (said("Shorter."),))
    lane, dialect = steering.agent.transports[-1], steering.agent.dialects[-1]
    second: list[Event] = [
        ItemStarted(Message("b")),
        TextDelta("b", "Yes."),
        ItemEnded("b"),
        answered("Yes."),
    ]
    dialect.can_resume = True
    lane.say(*deltas("Well,"), answered("Well,"), InputTaken("1"), *second, DONE)
    await settle()
    without = (said("Hello."), said("Well,", "assistant"), said("Yes.", "assistant"), said("More."))
    other = await steering.begin(*without)
    assert len(steering.agent.dialects) == 2, "it is another conversation"
    other.interrupt()
    whole = (*without[:2], said("Shorter."), *without[2:])
    again = await steering.begin(*whole)
    assert dialect.calls.count("resume") == 1
    again.interrupt()


@virtual
async def test_a_session_that_takes_the_place_of_a_lost_one_is_given_what_that_has_not_taken() -> None:
    steering = Steering()
    run = await steering.begin()
    steering.inputs.add("1", (said("One."),))
    steering.inputs.add("2", (said("Two."),))
    lane = steering.agent.transports[-1]
    lane.say(answered("Well,"), InputTaken("1"), size=0)
    assert lane.reader is not None
    lane.reader.on_end(Ended(1))
    await settle()
    assert steering.steers() == ["steer 2"]
    well = RawHistoryItem(answered("Well,").json)
    assert steering.agent.turns[-1].history == (said("Hello."), well, said("One."))
    steering.agent.transports[-1].say(*deltas("Yes."), InputTaken("2"), DONE)
    end_of(run)


@virtual
async def test_a_second_attempt_has_the_input_that_the_first_one_took() -> None:
    steering = Steering()
    tool = Tool("f", "", msgspec.Raw(b'{"type":"object"}'))
    run = await steering.begin(tools=(tool,), tool_choice="required")
    steering.inputs.add("1", (said("Shorter."),))
    steering.agent.transports[-1].say(*deltas("Well,"), InputTaken("1"), DONE)
    await settle()
    assert len(steering.agent.turns) == 2
    assert steering.agent.turns[-1].history[:2] == (said("Hello."), said("Shorter."))
    run.interrupt()


@virtual
async def test_calls_behind_an_input_are_remembered_without_what_came_before_it() -> None:
    steering = Steering()
    await steering.begin(tools=(Tool("f", "", msgspec.Raw(b'{"type":"object"}')),))
    steering.inputs.add("1", (said("Shorter."),))
    call = RawItem("function_call", b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}')
    request = ToolCallRequested("c", "c", "f", "{}")
    steering.agent.transports[-1].say(answered("Well,"), InputTaken("1"), call, request, StepCompleted())
    await settle()
    key = call_key(HistoryCall("c", "f", "{}"))
    found = await steering.scheduler.services.memory.recall("", [key])
    remembered = msgspec.json.decode(found[key], type=RememberedTurn)
    assert ([bytes(item) for item in remembered.items], remembered.said) == ([call.json], "")


@virtual
async def test_an_input_that_a_session_was_given_in_an_earlier_run_is_known_when_it_is_taken() -> None:
    steering = Steering()
    tools = (Tool("f", "", msgspec.Raw(b'{"type":"object"}')),)
    await steering.begin(tools=tools)
    steering.inputs.add("1", (said("Shorter."),))
    lane, dialect = steering.agent.transports[-1], steering.agent.dialects[-1]
    dialect.can_resume = True
    call = RawItem("function_call", b'{"type":"function_call","call_id":"c","name":"f","arguments":"{}"}')
    lane.say(call, ToolCallRequested("c", "c", "f", "{}"), StepCompleted())
    await settle()
    dialect.over = dialect.finished = False
    output = HistoryOutput("c", (TextPart("out"),))
    run = await steering.begin(said("Hello."), HistoryCall("c", "f", "{}"), output, tools=tools)
    steering.inputs.add("1", (said("Shorter."),))
    assert steering.steers() == ["steer 1"]
    lane.say(InputTaken("1"), *deltas("Yes."), DONE)
    assert run.turn.history[-1] == said("Shorter.")


@virtual
async def test_a_session_that_waits_for_an_output_is_given_the_input_before_it() -> None:
    steering = Steering()
    tools = (Tool("f", "", msgspec.Raw(b'{"type":"object"}')),)
    await steering.begin(tools=tools)
    lane, dialect = steering.agent.transports[-1], steering.agent.dialects[-1]
    dialect.can_resume = True
    lane.say(ToolCallRequested("c", "c", "f", "{}"), StepCompleted())
    await settle()
    dialect.over = dialect.finished = False
    inputs = SteeredInputs()
    inputs.add("1", (said("Shorter."),))
    output = HistoryOutput("c", (TextPart("out"),))
    history = (said("Hello."), HistoryCall("c", "f", "{}"), output)
    turn = msgspec.structs.replace(TURN, history=history, tools=tools)
    run = await steering.scheduler.start(turn, inputs=inputs)
    assert dialect.calls[-2:] == ["steer 1", "resume"]
    run.interrupt()


@virtual
async def test_an_input_that_one_turn_of_a_session_did_not_take_is_given_to_its_next_turn() -> None:
    steering = Steering()
    await steering.begin()
    steering.inputs.add("1", (said("More."),))
    lane, dialect = steering.agent.transports[-1], steering.agent.dialects[-1]
    dialect.can_resume = True
    lane.say(*deltas("Hi."), answered("Hi."), DONE)
    await settle()
    dialect.over = dialect.finished = False
    run = await steering.begin(said("Hello."), said("Hi.", "assistant"), said("Again."))
    steering.inputs.add("1", (said("More."),))
    assert dialect.calls.count("resume") == 1
    assert steering.steers() == ["steer 1", "steer 1"]
    run.interrupt()
