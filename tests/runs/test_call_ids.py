"""Calls that a client sends back without their ids get those that the agent gave them."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Sequence

import msgspec
import pytest

from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    TextPart,
)
from codex_proxy.core.step_memory import RamStepMemory, StepMemorySettings
from codex_proxy.core.turn import Turn
from codex_proxy.runs.services import call_id_entry, with_call_ids
from tests.growth import assert_linear


def said(text: str, role: str = "assistant") -> HistoryMessage:
    return HistoryMessage("user" if role == "user" else "assistant", (TextPart(text),))


def call(id: str, arguments: str = "{}") -> HistoryCall:
    return HistoryCall(id, "f", arguments)


def output(id: str, text: str = "done") -> HistoryOutput:
    return HistoryOutput(id, (TextPart(text),))


def turn_of(*history: HistoryItem) -> Turn:
    return Turn(model="m", history=history)


QUESTION = said("Well?", "user")
STEP = (call("a", '{"x":1}'), call("b"), call("c"))
"""The second and third are equal but for their ids."""
ANSWERED = (output("a"), output("b"), output("c"))
MADE = (call("1", '{"x": 1}'), call("2"), call("3"), output("1"), output("2"), output("3"))


async def sent_back(*history: HistoryItem, owner: str = "me") -> Sequence[HistoryItem]:
    """The history as it is read after two answers: `STEP`, and "Hm." with the call `d`."""
    memory = RamStepMemory(StepMemorySettings(), time.time)
    await memory.remember("me", call_id_entry(turn_of(QUESTION), (), STEP))
    second = turn_of(QUESTION, *STEP, *ANSWERED)
    await memory.remember("me", call_id_entry(second, (said("Hm."),), (call("d"),)))
    turn = msgspec.structs.replace(turn_of(*history), owner=owner)
    return (await with_call_ids(turn, memory)).history


async def test_each_call_and_its_output_get_the_id_of_the_call() -> None:
    history: list[HistoryItem] = [QUESTION, *MADE, said("Hm."), call("4"), output("4", "more")]
    expected = (QUESTION, *STEP, *ANSWERED, said("Hm."), call("d"), output("d", "more"))
    assert await sent_back(*history) == (
        QUESTION,
        msgspec.structs.replace(MADE[0], call_id="a"),
        *expected[2:],
    )


async def test_a_call_of_one_conversation_is_not_taken_for_that_of_another() -> None:
    changes: list[list[HistoryItem]] = [
        [said("And?", "user"), *MADE],
        [QUESTION, said("Hm."), *MADE],
        [QUESTION, *MADE[1:2], output("2")],
        [QUESTION, *MADE[:3], output("1", "other"), *MADE[4:], said("Hm."), call("4"), output("4")],
    ]
    for changed in changes:
        history = await sent_back(*changed)
        assert history[-1] == changed[-1]


async def test_ids_are_known_to_their_owner_only() -> None:
    assert await sent_back(QUESTION, *MADE, owner="you") == (QUESTION, *MADE)


@pytest.mark.parametrize("empty", [said(""), said("<think>So.</think>")])
async def test_an_empty_message_does_not_count(empty: HistoryMessage) -> None:
    history = await sent_back(QUESTION, empty, *MADE[:3], empty, *MADE[3:])
    assert [item.call_id for item in history if isinstance(item, HistoryOutput)] == ["a", "b", "c"]


def test_the_ids_of_a_step_are_one_entry() -> None:
    assert len(call_id_entry(turn_of(QUESTION), (), STEP)) == 1


def times(n: int, *items: HistoryItem) -> list[HistoryItem]:
    return [QUESTION, *items * n]


STEPS: dict[str, Callable[[int], list[HistoryItem]]] = {
    "of one call": lambda n: times(n, call("1"), output("1")),
    "of many calls": lambda n: [QUESTION, *[call(str(i)) for i in range(n)]],
    "with empty messages": lambda n: times(n, call("1"), said(""), output("1")),
}


@pytest.mark.parametrize("shape", STEPS)
def test_finding_ids_takes_time_proportional_to_the_history(
    shape: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = RamStepMemory(StepMemorySettings(), time.time)

    def find(turn: Turn) -> None:
        with contextlib.suppress(StopIteration):
            with_call_ids(turn, memory).send(None)

    # No thread, whose time is not measured.
    monkeypatch.setattr("codex_proxy.core.beside_the_loop.FEW_ITEMS", sys.maxsize)
    assert_linear(lambda n: turn_of(*STEPS[shape](n)), find, 400)
