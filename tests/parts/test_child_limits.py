"""What a child says and this server has to keep is bounded, and the error says that it is the agent's fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from codex_proxy.agents import dialect
from codex_proxy.core import repair
from codex_proxy.core.events import ItemEnded, ItemStarted, TurnEnded
from codex_proxy.core.faults import FaultKind
from codex_proxy.parts.acp.reported_calls import MAX_OPEN_CALLS
from tests.parts import child_shapes as shapes
from tests.parts.child_readers import READERS, SESSION, THREAD, ChildReader

HELD: dict[str, tuple[str, shapes.Shape, str]] = {
    "items of the model": ("app-server", shapes.APP_SERVER["raw items"], "items of the model"),
    "arguments that are checked": ("claude-code", shapes.CLAUDE_CODE["arguments in pieces"], "arguments"),
    "signatures": ("claude-code", shapes.CLAUDE_CODE["signatures"], "signatures"),
    "redacted thinking": ("claude-code", shapes.CLAUDE_CODE["redacted thinking"], "signatures"),
}


@pytest.mark.parametrize("held", HELD)
def test_what_a_dialect_keeps_until_more_follows_is_bounded(
    held: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dialect, "MAX_HELD", 10_000)
    child, shape, named = HELD[held]
    reader = READERS[child]()
    reader.say(*shape(10_000))
    assert named in reader.fault
    assert "without ending them" in reader.fault


WAITING: dict[str, tuple[str, shapes.Shape]] = {
    "outputs that are requested": ("app-server", shapes.APP_SERVER["requests for outputs alone"]),
    "calls of one response": ("app-server", shapes.APP_SERVER["calls"]),
    "outputs of one call": ("claude-code", shapes.CLAUDE_CODE["requests for one output"]),
    "calls of one message": ("claude-code", shapes.CLAUDE_CODE["calls"]),
}


@pytest.mark.parametrize("waiting", WAITING)
def test_the_calls_that_wait_at_once_are_bounded(waiting: str) -> None:
    child, shape = WAITING[waiting]
    fine, many = READERS[child](), READERS[child]()
    fine.say(*shape(dialect.MAX_UNANSWERED))
    many.say(*shape(dialect.MAX_UNANSWERED + 1))
    assert not fine.fault
    assert f"more than {dialect.MAX_UNANSWERED}" in many.fault


def end_of(reader: ChildReader) -> TurnEnded:
    last = reader.log[-1]
    assert isinstance(last, TurnEnded)
    return last


def test_the_calls_of_an_acp_agent_that_are_open_at_once_are_bounded() -> None:
    reader = READERS["acp"]()
    reader.say(*shapes.ACP["calls left open"](MAX_OPEN_CALLS))
    assert not reader.fault
    reader = READERS["acp"]()
    reader.say(*shapes.ACP["calls left open"](MAX_OPEN_CALLS + 1))
    assert f"more than {MAX_OPEN_CALLS} calls of tools" in reader.fault


@pytest.mark.parametrize(
    ("child", "shape"),
    [
        ("app-server", "items left open"),
        ("codex-proto", "choices left open"),
    ],
)
def test_items_that_are_left_open_end_the_turn(child: str, shape: str) -> None:
    reader = READERS[child](keeps_log=True)
    reader.say(*shapes.SHAPES[child][shape](2 * repair.MAX_OPEN_ITEMS))
    failure = end_of(reader).failure
    assert failure is not None
    assert failure.kind is FaultKind.AGENT_PROTOCOL
    assert failure.message.startswith(f"The agent began more than {repair.MAX_OPEN_ITEMS} items")
    begun = [event.item.id for event in reader.log if isinstance(event, ItemStarted)]
    assert sorted(begun) == sorted(event.id for event in reader.log if isinstance(event, ItemEnded))


@pytest.mark.parametrize(("child", "shape"), [("codex-proto", "many messages"), ("acp", "many messages")])
def test_a_turn_has_no_more_items_than_a_final_object_may_have(child: str, shape: str) -> None:
    reader = READERS[child](keeps_log=True)
    reader.say(*shapes.SHAPES[child][shape](repair.MAX_ITEMS + 1))
    failure = end_of(reader).failure
    assert failure is not None
    assert failure.kind is FaultKind.AGENT_PROTOCOL
    assert failure.message.startswith(f"The agent began more than {repair.MAX_ITEMS} items")


@pytest.mark.parametrize("child", ["codex-proto", "app-server", "acp"])
def test_a_call_of_the_model_is_not_repeated_for_ever(child: str) -> None:
    reader = READERS[child](keeps_log=True)
    reader.say(*shapes.SHAPES[child]["retries"](2 * repair.MAX_RETRIES))
    failure = end_of(reader).failure
    assert failure is not None
    assert failure.kind is FaultKind.UPSTREAM_DISCONNECTED
    assert f"more than {repair.MAX_RETRIES} times" in failure.message


LONG: dict[str, Callable[[Any], Any]] = {
    "app-server": lambda values: {"method": "x", "id": 7, "params": {"threadId": THREAD, "x": values}},
    "acp": lambda values: {"method": "x", "id": 7, "params": {"sessionId": SESSION, "x": values}},
}


@pytest.mark.parametrize("child", LONG)
def test_a_request_in_a_line_that_is_not_decoded_is_refused(child: str) -> None:
    """Without an answer the agent would wait for ever."""
    reader = READERS[child]()
    reader.say(LONG[child]([[1]] * 400_000))
    assert b'"id":7' in reader.written
    assert b'"error"' in reader.written


def test_a_control_request_of_claude_code_that_is_not_decoded_is_refused() -> None:
    reader = READERS["claude-code"]()
    request = {"subtype": "mcp_message", "server_name": "client", "x": [[1]] * 400_000}
    reader.say({"type": "control_request", "request_id": "r7", "request": request})
    assert b'"request_id":"r7"' in reader.written
    assert b'"subtype":"error"' in reader.written
