"""What is remembered of a turn that ended with calls, and how a later request gets it back."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from codex_proxy.core.events import StepCompleted, ToolCallRequested
from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    RawHistoryItem,
    TextPart,
    Tool,
)
from codex_proxy.core.step_memory import RamStepMemory, StepMemorySettings
from codex_proxy.core.turn import Turn
from codex_proxy.runs.model_items import ModelItem
from codex_proxy.runs.services import recalled_history
from codex_proxy.tools.policy import DEFERRED_CALL, ToolPolicy
from codex_proxy.tools.replay import (
    CUT_OFF,
    UNREADABLE_CALL,
    RememberedTurn,
    assistant_messages,
    clean_item,
    entries_of,
    remembered_turn,
    restore_items,
    visible_calls,
)
from tests.growth import assert_linear

LIMITS = StepMemorySettings()
TOOL = Tool("f")
REASONING = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "sealed"}
WORDS = {
    "type": "message",
    "id": "msg_1",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Hm."}],
}


def call_item(id: str, name: str = "f", arguments: str = "{}") -> dict[str, Any]:
    return {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": arguments}


def output_item(id: str, text: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": id, "output": text}


def raw(*items: dict[str, Any]) -> list[bytes]:
    return [json.dumps(item).encode() for item in items]


def broker_of(*ids: str, parallel: bool = True) -> ToolPolicy:
    """A policy that has handed these calls on."""
    policy = ToolPolicy(Turn(model="m", history=(), tools=(TOOL,), parallel_tool_calls=parallel))
    policy.feed([*(ToolCallRequested(id, id, "f", "{}") for id in ids), StepCompleted()])
    return policy


def echo(*ids: str, said: str = "Hm.") -> list[HistoryItem]:
    """The turn as its client sends it back, with outputs."""
    words = [HistoryMessage("assistant", (TextPart(said),))] if said else []
    return [*words, *(HistoryCall(id, "f", "{}") for id in ids), *(output(id) for id in ids)]


def output(id: str) -> HistoryOutput:
    return HistoryOutput(id, (TextPart(f"output {id}"),))


USER = HistoryMessage("user", (TextPart("hi"),))


def ram() -> RamStepMemory:
    return RamStepMemory(LIMITS, lambda: 0.0)


async def memory_with(items: list[bytes], policy: ToolPolicy, *, plain: bool = False) -> RamStepMemory:
    memory = ram()
    await memory.remember("me", entries_of(items, policy, "words/m", plain=plain))
    return memory


async def recall(
    memory: RamStepMemory, *history: HistoryItem, owner: str = "me", identity: str = "words/m"
) -> list[Any]:
    """The history as the agent would get it: raw items as they are, and the others."""
    turn = Turn(model="m", history=tuple(history), owner=owner)
    found = await recalled_history(turn, memory, identity)
    return [json.loads(item.json) if isinstance(item, RawHistoryItem) else item for item in found]


async def test_a_repeated_answer_becomes_what_the_model_said() -> None:
    memory = await memory_with(raw(REASONING, WORDS, call_item("a"), call_item("b")), broker_of("a", "b"))
    found = await recall(memory, USER, *echo("a", "b"))
    assert found == [USER, REASONING, WORDS, call_item("a"), call_item("b"), output("a"), output("b")]


async def test_text_that_the_client_left_out_comes_back_too() -> None:
    memory = await memory_with(raw(REASONING, WORDS, call_item("a")), broker_of("a"))
    assert await recall(memory, USER, *echo("a", said="")) == [
        USER,
        REASONING,
        WORDS,
        call_item("a"),
        output("a"),
    ]


@pytest.mark.parametrize(
    "history",
    [
        echo("a", said="I never said that."),
        [HistoryCall("a", "f", '{"x": 1}'), output("a")],
        [HistoryCall("a", "g", "{}"), output("a")],
        [HistoryCall("a", "f", "{}", "custom"), output("a")],
        [HistoryCall("z", "f", "{}"), output("z")],
    ],
    ids=["other words", "other arguments", "another tool", "another kind", "another id"],
)
async def test_a_repeated_answer_that_says_something_else_is_taken_as_it_is(
    history: list[HistoryItem],
) -> None:
    memory = await memory_with(raw(REASONING, WORDS, call_item("a")), broker_of("a"))
    assert await recall(memory, USER, *history) == [USER, *history]


async def test_another_owner_gets_none_of_the_remembered_items() -> None:
    memory = await memory_with(raw(REASONING, call_item("a")), broker_of("a"))
    history = echo("a", said="")
    assert await recall(memory, USER, *history, owner="you") == [USER, *history]


async def test_another_model_gets_everything_but_the_reasoning() -> None:
    memory = await memory_with(raw(REASONING, call_item("a")), broker_of("a"))
    found = await recall(memory, USER, *echo("a", said=""), identity="words/n")
    assert found == [USER, call_item("a"), output("a")]


async def test_hidden_calls_have_the_outputs_that_we_gave() -> None:
    memory = await memory_with(raw(call_item("a"), call_item("b")), broker_of("a", "b", parallel=False))
    found = await recall(memory, USER, *echo("a", said=""))
    deferred = HistoryOutput("b", (TextPart(DEFERRED_CALL),))
    assert found == [USER, call_item("a"), call_item("b"), output("a"), deferred]


async def test_calls_that_the_agent_answered_keep_their_outputs() -> None:
    items = raw(call_item("x", "exec_command"), output_item("x", "made"), REASONING, call_item("a"))
    memory = await memory_with(items, broker_of("a"))
    found = await recall(memory, USER, *echo("a", said=""))
    own = [call_item("x", "exec_command"), output_item("x", "made")]
    assert found == [USER, *own, REASONING, call_item("a"), output("a")]


@pytest.mark.parametrize(
    ("call", "plain", "words"),
    [
        (call_item("x", "exec_command", '{"cmd": "ls"}'), False, CUT_OFF),
        (call_item("x", "launch"), True, "unsupported call: launch"),
        (call_item("x", "launch", ""), True, "unsupported call: launch"),
        (call_item("x", "launch", "1" * 5000), True, "unsupported call: launch"),
        (call_item("x", "f", "{city"), True, UNREADABLE_CALL),
    ],
    ids=["a command", "not offered", "no arguments", "a large number", "no JSON"],
)
async def test_calls_that_the_agent_has_not_answered_have_an_output_all_the_same(
    call: dict[str, Any], plain: bool, words: str
) -> None:
    memory = await memory_with(raw(call, call_item("a")), broker_of("a"), plain=plain)
    found = await recall(memory, USER, *echo("a", said=""))
    assert found == [USER, call, call_item("a"), HistoryOutput("x", (TextPart(words),)), output("a")]


async def test_each_turn_of_a_conversation_gets_its_own() -> None:
    memory = await memory_with(raw(REASONING, call_item("a")), broker_of("a"))
    await memory.remember("me", entries_of(raw(call_item("b")), broker_of("b"), "words/m"))
    found = await recall(memory, USER, *echo("a", said=""), *echo("b", said=""))
    assert found == [USER, REASONING, call_item("a"), output("a"), call_item("b"), output("b")]


def test_what_the_agent_added_for_itself_is_not_remembered() -> None:
    own = {"internal_chat_message_metadata_passthrough": {"turn_id": "t"}}
    assert json.loads(clean_item(json.dumps(REASONING | own).encode())) == REASONING


def test_only_messages_of_the_assistant_are_returned() -> None:
    user = WORDS | {"role": "user"}
    assert assistant_messages(raw(REASONING, user, WORDS, call_item("a"))) == (
        HistoryMessage("assistant", (TextPart("Hm."),)),
    )


def test_a_field_that_is_null_is_as_if_it_were_missing() -> None:
    shell = {"type": "local_shell_call", "id": None, "call_id": None, "name": None, "arguments": None}
    empty = {**WORDS, "id": None, "content": [{"type": "output_text", "text": None}]}
    items = raw(shell, empty, {**WORDS, "content": None})
    assert (
        "".join(
            part.text
            for said in assistant_messages(items)
            for part in said.parts
            if isinstance(part, TextPart)
        )
        == ""
    )
    assert len(remembered_turn(items, broker_of("a"), "words/m").items) == 3
    assert [ModelItem("words/m", msgspec.Raw(item)).head.text for item in items] == ["", "", ""]


def test_visible_calls_are_as_the_client_echoes_them() -> None:
    assert visible_calls(broker_of("a", "b")) == (HistoryCall("a", "f", "{}"), HistoryCall("b", "f", "{}"))


# --- in RAM ---------------------------------------------------------------------------------------


async def test_ram_holds_what_was_remembered_last() -> None:
    memory = ram()
    for number in range(LIMITS.max_entries + 1):
        await memory.remember("me", {b"%d" % number: b"value"}, durable=False)
    assert await memory.recall("me", [b"0", b"1"]) == {b"1": b"value"}


async def test_ram_holds_only_so_many_bytes() -> None:
    memory, large = ram(), bytes(LIMITS.max_bytes // 2)
    for key in (b"a", b"b", b"c"):
        await memory.remember("me", {key: large}, durable=False)
    assert set(await memory.recall("me", [b"a", b"b", b"c"])) == {b"b", b"c"}


async def test_what_is_remembered_again_replaces_what_was_there() -> None:
    memory = ram()
    for value in (bytes(LIMITS.max_bytes), b"new"):
        await memory.remember("me", {b"a": value}, durable=False)
    await memory.remember("me", {b"b": bytes(LIMITS.max_bytes - 3)}, durable=False)
    assert await memory.recall("me", [b"a"]) == {b"a": b"new"}


async def test_a_history_without_calls_asks_for_nothing() -> None:
    class Deaf:
        async def remember(self, *given: Any, **more: Any) -> None: ...

        async def recall(self, owner: str, keys: Any) -> dict[bytes, bytes]:
            raise AssertionError("nobody should ask")

    turn = Turn(model="m", history=(USER,))
    assert await recalled_history(turn, Deaf(), "words/m") is turn.history


def test_entries_are_json_without_the_owner() -> None:
    (value,) = entries_of(raw(call_item("a")), broker_of("a"), "words/m").values()
    assert msgspec.json.decode(value)["visible"] == ["a"]


# --- what it costs --------------------------------------------------------------------------------

CALLS_COST: dict[str, Callable[[int], tuple[list[bytes], ToolPolicy]]] = {
    "calls": lambda n: (
        raw(*(call_item(f"c{i}") for i in range(n))),
        broker_of(*(f"c{i}" for i in range(n))),
    ),
    "calls that the client does not get": lambda n: (
        raw(*(call_item(f"c{i}") for i in range(n))),
        broker_of(*(f"c{i}" for i in range(n)), parallel=False),
    ),
    "items before a call": lambda n: (raw(*[REASONING] * n, call_item("a")), broker_of("a")),
}


@pytest.mark.parametrize("shape", CALLS_COST)
def test_a_step_is_remembered_once_whatever_the_number_of_its_calls(shape: str) -> None:
    make = CALLS_COST[shape]
    assert_linear(make, lambda step: entries_of(*step, "words/m"), 400)
    small, large = (sum(map(len, entries_of(*make(n), "words/m").values())) for n in (400, 1600))
    assert large < 4.5 * small  # it is written to the disk


async def test_a_step_of_many_calls_comes_back_with_its_reasoning() -> None:
    ids = [f"c{i}" for i in range(3000)]
    memory = await memory_with(raw(REASONING, *map(call_item, ids)), broker_of(*ids))
    assert len(memory) == 1
    found = await recall(memory, USER, *echo(*ids, said=""))
    assert found == [USER, REASONING, *map(call_item, ids), *map(output, ids)]


@pytest.mark.parametrize("outputs", [echo("a", said="")[1:], [output("z"), output("a"), output("a")]])
def test_putting_a_step_back_takes_time_proportional_to_the_history(outputs: list[HistoryItem]) -> None:
    def make(n: int) -> tuple[list[HistoryItem], dict[bytes, RememberedTurn]]:
        ids = [f"c{i}" for i in range(n)]
        entries = entries_of(raw(REASONING, *map(call_item, ids)), broker_of(*ids), "words/m")
        history = [RawHistoryItem(json.dumps(REASONING).encode())] * n + echo(*ids, said="") + outputs * n
        return history, {
            key: msgspec.json.decode(value, type=RememberedTurn) for key, value in entries.items()
        }

    assert_linear(make, lambda given: restore_items(*given, "words/m"), 150)
