"""What the items of a turn cost to be stored, and to be read back as history: no more than they weigh."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
import pytest

from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    RawHistoryItem,
    TextPart,
)
from codex_proxy.responses.context import read_context
from codex_proxy.responses.saving import stored_output
from codex_proxy.runs.idle_sessions import item_digests
from codex_proxy.runs.model_items import ModelItem, with_whole_calls
from tests.growth import assert_linear
from tests.surfaces.responses.asking import HELLO, ask


class Ids:
    def __init__(self) -> None:
        self._numbers = itertools.count()

    def new(self, prefix: str) -> str:
        return f"{prefix}{next(self._numbers)}"


def searches(count: int) -> list[dict[str, Any]]:
    return [{"type": "web_search_call", "id": f"ws_{i}"} for i in range(count)]


def calls(count: int) -> list[dict[str, Any]]:
    return [{"type": "function_call", "id": f"fc_{i}", "call_id": f"c{i}"} for i in range(count)]


def reasoning_items(count: int) -> list[dict[str, Any]]:
    return [{"type": "reasoning", "id": f"rs_{i}"} for i in range(count)]


def messages(count: int) -> list[dict[str, Any]]:
    return [{"type": "message", "id": f"m{i}", "content": [{"text": "a"}]} for i in range(count)]


def mcp_calls(count: int) -> list[dict[str, Any]]:
    return [{"type": "mcp_call", "id": f"mcp_{i}"} for i in range(count)]


def with_other_ids(items: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The items with other ids, as those of a model that the client does not get."""
    return [{name: f"x{value}" if "id" in name else value for name, value in item.items()} for item in items]


STORED: Final[dict[str, Callable[[int], tuple[list[dict[str, Any]], list[dict[str, Any]]]]]] = {
    "searches, which have no form of the model's": lambda n: (searches(n), searches(n)),
    "calls": lambda n: (calls(n), calls(n)),
    "calls that the model did not make": lambda n: (calls(n), with_other_ids(calls(n))),
    "calls in another order": lambda n: (calls(n), calls(n)[::-1]),
    "calls of one id": lambda n: (calls(1) * n, calls(1) * n),
    "calls of tools of MCP": lambda n: (mcp_calls(n), calls(n)),
    "reasoning": lambda n: (reasoning_items(n), reasoning_items(n)),
    "reasoning with other ids": lambda n: (reasoning_items(n), with_other_ids(reasoning_items(n))),
    "messages": lambda n: (messages(n), messages(n)),
    "more messages than the model's": lambda n: (messages(n), searches(n)),
    "messages behind searches": lambda n: (messages(n), [*searches(n), *messages(n)]),
}  # fmt: skip


@pytest.mark.sampled(every=11)
@pytest.mark.parametrize("shape", STORED)
def test_items_of_a_response_take_time_proportional_to_their_size_to_be_stored(shape: str) -> None:
    def made(count: int) -> tuple[list[dict[str, Any]], list[ModelItem]]:
        output, of_model = STORED[shape](count)
        return output, [ModelItem("m", msgspec.Raw(msgspec.json.encode(item))) for item in of_model]

    assert_linear(made, lambda given: stored_output(*given, Ids(), 0.0), 3_000)


def call(i: int) -> HistoryCall:
    return HistoryCall(f"c{i}", "f", "{}")


def output(i: int) -> HistoryOutput:
    return HistoryOutput(f"c{i}", (TextPart("sunny"),))


def raw(i: int, kind: str = "function_call") -> RawHistoryItem:
    return RawHistoryItem(msgspec.json.encode({"type": kind, "call_id": f"c{i}"}))


def message(role: Any) -> HistoryMessage:
    return HistoryMessage(role, (TextPart("word"),))


def each(count: int, *make: Callable[[int], HistoryItem]) -> list[HistoryItem]:
    return [one(i) for i in range(count) for one in make]


HISTORIES: Final[dict[str, Callable[[int], list[HistoryItem]]]] = {
    "calls and outputs by turns": lambda n: each(n, call, output),
    "calls, then outputs": lambda n: each(n, call) + each(n, output),
    "calls, then outputs, backwards": lambda n: each(n, call) + each(n, output)[::-1],
    "raw calls and outputs by turns": lambda n: each(n, raw, output),
    "raw outputs without calls": lambda n: each(n, call) + each(n, lambda i: raw(-1 - i, "function_call_output")),
    "raw calls without outputs": lambda n: each(n, raw) + each(n, lambda i: output(-1 - i)),
    "calls of one id": lambda n: each(n, lambda _: call(0), lambda _: output(0)),
    "messages of the user": lambda n: each(n, lambda _: message("user")),
    "messages of the assistant": lambda n: each(n, lambda _: message("assistant")),
    "messages by turns": lambda n: each(n, lambda _: message("user"), lambda _: message("assistant")),
    "raw items between messages": lambda n: each(n, lambda _: message("assistant"), lambda i: raw(i, "reasoning")),
}  # fmt: skip
READERS: Final[dict[str, Callable[[list[HistoryItem]], object]]] = {
    "calls with their outputs": with_whole_calls,
    "digests": item_digests,
}


@pytest.mark.sampled(every=17)
@pytest.mark.parametrize("shape", HISTORIES)
@pytest.mark.parametrize("reader", READERS)
def test_a_history_takes_time_proportional_to_its_size(reader: str, shape: str) -> None:
    assert_linear(HISTORIES[shape], READERS[reader], 800)


class EmptyStore:
    async def scan_conversation(self, owner: str, id: str, visit: Callable[..., object]) -> None:
        """The conversation has no items."""


@pytest.mark.parametrize(
    ("fields", "kept"),
    [
        ({"store": False}, 0),
        ({"store": True}, 1),
        ({}, 1),
        ({"store": False, "conversation": "conv_1"}, 1),
    ],
)
async def test_the_input_of_a_response_is_encoded_only_to_be_stored(
    fields: dict[str, Any], kept: int
) -> None:
    store: Any = EmptyStore()
    context = await read_context(ask(input=[HELLO], **fields), store, "", Ids(), 0.0)
    assert (len(context.fresh), len(context.input)) == (1, kept)
