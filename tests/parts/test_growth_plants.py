"""The tests of cost become red where they should: a search of everything before, planted into one function that is
called for each element, is seen in a row of each of their tables.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any, Final

import pytest

from codex_proxy.parts.upstream.failures import Secrets
from codex_proxy.parts.upstream.openai_responses.responses_dialect import OpenAIResponses
from tests import growth
from tests.growth import assert_linear
from tests.parts.child_readers import READERS, as_lines
from tests.parts.child_shapes import SHAPES
from tests.parts.test_child_growth import SIZE
from tests.parts.upstream import test_upstream_cost as upstream
from tests.responses import test_cost as stored
from tests.store import test_cost as store
from tests.surfaces import test_cost as turns
from tests.surfaces import test_request_cost as requests

Row = tuple[int, Callable[[int], Any], Callable[[Any], object]]


def request(api: str, shape: str) -> Row:
    shapes, parse = requests.APIS[api]
    size, make = shapes[shape]
    return size, lambda count: requests.body_of(make(count), api), parse


def child(name: str, shape: str) -> Row:
    def read(data: bytes) -> object:
        reader = READERS[name]()
        reader.read(data)
        return reader

    return SIZE, lambda count: as_lines(SHAPES[name][shape](count)), read


def chat_upstream(reader: str, shape: str) -> Row:
    size, make = upstream.CHAT_SHAPES[shape]
    return size, make, lambda body: upstream.events_of(upstream.CHAT[reader](), body)


def responses_upstream(shape: str) -> Row:
    size, make = upstream.RESPONSES_SHAPES[shape]
    return size, make, lambda body: upstream.events_of(OpenAIResponses("m", upstream.context()), body)


def hidden(shape: str) -> Row:
    size, at_once, make = upstream.HIDDEN_SHAPES[shape]
    return size, make, lambda body: upstream.hide_secrets(Secrets([upstream.KEY]), body, at_once)


def turn(reader: str, shape: str) -> Row:
    size, make = turns.SHAPES[shape]
    return size, make, turns.READERS[reader]


def history(reader: str, shape: str) -> Row:
    return 800, stored.HISTORIES[shape], stored.READERS[reader]


def row_of(what: str) -> Row:
    size, write = store.WRITES[what]
    return size, lambda count: count, store.database_maker(write)


ROWS: Final[dict[str, Row]] = {
    "codex_proxy.surfaces.chat.messages:_History.read": request("chat", "messages"),
    "codex_proxy.surfaces.chat.messages:_History._add_output": request("chat", "calls of many messages"),
    "codex_proxy.surfaces.messages.history:_History._past_call": request("messages", "calls of one message"),
    "codex_proxy.surfaces.messages.history:_History.read": request("messages", "messages"),
    "codex_proxy.surfaces.responses.history:_Reader.read": request("responses", "calls, then outputs"),
    "codex_proxy.agents.codex_proto.proto_dialect:CodexProto._handle_line": child("codex-proto", "many messages"),
    "codex_proxy.agents.codex_app_server.app_server_dialect:AppServerTurn._handle_message": child(
        "app-server", "one id reused"
    ),
    "codex_proxy.parts.claude_code.claude_dialect:ClaudeCodeTurn._handle": child("claude-code", "whole messages"),
    "codex_proxy.parts.acp.acp_dialect:AcpTurn._read_update": child("acp", "many messages"),
    "codex_proxy.parts.upstream.openai_chat.calls:ToolCalls.feed": chat_upstream(
        "openai-chat", "arguments in many deltas"
    ),
    "codex_proxy.parts.upstream.openai_chat.pass_through:PassThrough._event": chat_upstream(
        "forwarded stream", "usage in each chunk"
    ),
    "codex_proxy.parts.upstream.openai_responses.answer:ResponsesAnswer.feed": responses_upstream("many searches"),
    "codex_proxy.parts.upstream.failures:Secrets.partial_length": hidden("backslashes, a byte at a time"),
    "codex_proxy.core.repair:TurnRepair._open": turn("repair", "messages"),
    "codex_proxy.surfaces.chat.choice:Choice.open_message": turn("chat", "messages"),
    "codex_proxy.surfaces.responses.output:Part.add": turn("responses", "deltas of reasoning"),
    "codex_proxy.surfaces.messages.answer:GrowingBlock.open": turn("messages", "messages"),
    "codex_proxy.runs.model_items:_kind_and_call_id": history(
        "calls with their outputs", "raw calls and outputs by turns"
    ),
    "codex_proxy.store.sqlite.responses:keep": row_of("items of a response"),
    "codex_proxy.store.sqlite.statements:remember": row_of("entries of the step memory"),
}  # fmt: skip
"""The function into which the fault is planted, and the row that has to see it."""
CLEARLY: Final = 1.3
"""How far beyond the limit a fault has to be: one that is just beyond it is seen by chance."""


@pytest.mark.sampled(every=22, first=5)
@pytest.mark.parametrize("place", ROWS)
def test_a_planted_search_of_all_earlier_elements_is_seen(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    size, make, read = ROWS[place]
    module, _, path = place.partition(":")
    *names, name = path.split(".")
    owner = import_module(module)
    for each in names:
        owner = getattr(owner, each)
    real: Callable[..., object] = getattr(owner, name)
    seen: list[dict[str, str]] = []

    def planted(*given: Any, **more: Any) -> object:
        id = f"item_{len(seen)}"
        if not [each for each in seen if each.get("id") == id]:
            seen.append({"id": id})
        return real(*given, **more)

    def read_anew(given: Any) -> object:
        seen.clear()
        return read(given)

    def measure() -> None:
        for _ in range(4):  # a busy machine may hide the fault once: it makes the small size dear
            assert_linear(make, read_anew, size, tries=3, memory=False)

    monkeypatch.setattr(owner, name, planted)
    monkeypatch.setattr(growth, "MAX_TIMES", CLEARLY * growth.MAX_TIMES)
    with pytest.raises(AssertionError, match="CPU seconds"):
        measure()
    assert len(seen) >= size // 2, "the row does not come past the fault"


def test_memory_that_grows_with_the_square_is_seen_where_its_time_is_not() -> None:
    def read(given: list[str]) -> list[bytes]:
        return [bytes(len(given)) for _ in range(len(given) // 8)]

    with pytest.raises(AssertionError, match="bytes"):
        assert_linear(lambda count: ["word"] * count, read, 2_000, tries=50)
