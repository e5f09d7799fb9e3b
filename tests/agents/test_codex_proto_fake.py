"""The extensions of the fake agent to `codex proto`."""

from __future__ import annotations

from typing import Any

import pytest

from codex_proxy.core import events as ev
from codex_proxy.core.items import ToolCall
from codex_proxy.core.turn import Turn
from tests.agents.proto_child import (
    HISTORY,
    assert_well_formed,
    begin_turn,
    end_of,
    event_line,
    events_of,
    messages,
)


def call_piece(index: int, arguments: str = "", **fields: Any) -> dict[str, Any]:
    name = {"name": fields.pop("name")} if "name" in fields else {}
    return {"index": index, "type": "function", "function": {**name, "arguments": arguments}, **fields}


def calls_of(events: list[ev.Event]) -> list[tuple[str, str, str, int | None]]:
    """Call id, name, arguments and choice of each call."""
    calls = {
        e.item.id: e.item for e in events if isinstance(e, ev.ItemStarted) and isinstance(e.item, ToolCall)
    }
    texts = dict.fromkeys(calls, "")
    for event in events:
        if isinstance(event, ev.ArgumentsDelta):
            texts[event.id] += event.text
    full_texts = {e.id: e.text for e in events if isinstance(e, ev.FullArguments)}
    texts |= full_texts
    return [(call.call_id, call.name, texts[key], call.choice) for key, call in calls.items()]


def test_pieces_of_parallel_calls_find_their_call_by_choice_and_index() -> None:
    def pieces(*calls: dict[str, Any]) -> bytes:
        return event_line("tool_calls_delta", choice_index=0, tool_calls=list(calls))

    events = events_of(
        [
            pieces(call_piece(0, id="a", name="f"), call_piece(1, "[", name="g")),
            pieces(call_piece(1, "1"), call_piece(0, "{}", id="a")),
            pieces(call_piece(1, "]", id="late")),
            event_line("task_complete"),
        ]
    )
    assert_well_formed(events)
    assert calls_of(events) == [("a", "f", "{}", None), ("call_1", "g", "[1]", None)]
    assert end_of(events).stop == "tool_calls"


def test_a_piece_of_a_call_that_was_not_named_is_no_call() -> None:
    events = events_of([event_line("tool_calls_delta", tool_calls=[call_piece(0, "{", id="a")])])
    assert calls_of(events) == []
    assert ev.Notice("nameless_call") in events


def test_made_up_call_ids_do_not_repeat_those_of_earlier_steps() -> None:
    dialect = begin_turn(Turn(model="m", history=HISTORY))
    step = dialect.receive([event_line("tool_calls_delta", tool_calls=[call_piece(0, name="f")])])
    assert calls_of(step.events) == [("call_1", "f", "", None)]


def test_complete_calls_after_their_pieces_are_not_repeated() -> None:
    delta = event_line(
        "tool_calls_delta", choice_index=0, tool_calls=[call_piece(0, '{"a":1}', id="a", name="f")]
    )
    whole = {"id": "a", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    other = {**whole, "id": "b"}
    message = event_line("agent_message", message=None, choice_index=0, tool_calls=[whole, other])
    events = events_of([delta, message, message, event_line("task_complete")])
    assert_well_formed(events)
    assert calls_of(events) == [("a", "f", '{"a":1}', None), ("b", "f", '{"a":1}', None)]
    assert messages(events) == []


def test_the_legacy_function_call_comes_in_pieces_or_complete() -> None:
    pieces = [
        event_line("function_call_delta", function_call={"name": "f", "arguments": ""}),
        event_line("function_call_delta", function_call={"arguments": "{}"}),
    ]
    whole = event_line("agent_message", message=None, function_call={"name": "f", "arguments": "{}"})
    for lines in ([*pieces, whole, whole], [whole]):
        events = events_of([*lines, event_line("task_complete")])
        assert calls_of(events) == [("call_0", "f", "{}", None)]
        assert end_of(events).stop == "function_call"


def test_calls_belong_to_every_choice_unless_the_child_names_the_choice() -> None:
    def calls(choice: int) -> bytes:
        return event_line(
            "tool_calls_delta", choice_index=choice, tool_calls=[call_piece(0, id="a", name="f")]
        )

    said = event_line("agent_message", message="x", choice_index=0)
    assert calls_of(events_of([calls(0)])) == [("a", "f", "", None)]
    assert calls_of(events_of([said, calls(0), calls(1)])) == [("a", "f", "", 0), ("a", "f", "", 1)]


def test_texts_of_several_choices_are_messages_of_their_own() -> None:
    lines = [
        event_line("agent_message_delta", delta=text, choice_index=i)
        for i, text in ((0, "a"), (1, "b"), (0, "c"))
    ]
    full_texts = [
        event_line("agent_message", message=text, choice_index=i) for i, text in ((0, "ac"), (1, "b!"))
    ]
    end = event_line("task_complete", choice_finish_reasons={"0": "stop", "1": "length"})
    events = events_of([*lines, *full_texts, end])
    assert_well_formed(events)
    assert messages(events) == ["ac", "b!"]
    assert (end_of(events).stop, end_of(events).choice_stops) == ("stop", {1: "length"})


@pytest.mark.parametrize(
    ("count", "complete", "stop", "trigger"),
    [
        ({}, {"finish_reason": "length"}, "length", "task_complete"),
        ({"finish_reason": "length"}, {}, "length", "token_count"),
        ({"finish_reason": "length"}, {"finish_reason": "quantum_pause"}, "quantum_pause", "task_complete"),
        ({}, {}, "stop", "task_complete"),
    ],
)
def test_a_finish_reason_passes_through_with_the_event_that_reported_it(
    count: dict[str, str], complete: dict[str, str], stop: str, trigger: str
) -> None:
    end = end_of(events_of([event_line("token_count", **count), event_line("task_complete", **complete)]))
    assert (end.stop, end.trigger) == (stop, trigger)
