"""Rows of events: what was written is read again, on any release that has the same version."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core import events as ev
from codex_proxy.core.event_rows import VERSION, decode_row, encode_row
from codex_proxy.core.events import Event
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import (
    Activity,
    Item,
    McpApproval,
    McpCall,
    McpTools,
    Message,
    Reasoning,
    ToolCall,
)
from codex_proxy.core.json_values import encode_json
from tests.core.strategies import EVENT_LISTS

FAILURE = Failure(
    FaultKind.RATE_LIMITED,
    "wait",
    code="slow_down",
    param="model",
    retry_after=2.5,
    repeatable=False,
    quoted="w",
)
ITEMS: list[Item] = [
    Message("a", 1, "commentary"),
    Reasoning("b", 0),
    ToolCall("c", "call", "tool", "legacy", 0, old_form=True, provider_fields='{"a":1}'),
    McpCall("d", "call", "server", "tool", "apr", 0, old_form=True),
    McpApproval("e", "call", "server", "tool", 0),
    McpTools("f", "server", b'[{"name":"x"}]', "an error", 0),
    Activity("g", "command", "ls", 0, hosted="file_search_call"),
]
EVENTS: list[Event] = [
    ev.TurnStarted("thread", "gpt"),
    *map(ev.ItemStarted, ITEMS),
    ev.ItemEnded("a", "incomplete"),
    ev.TextDelta("a", "one"),
    ev.TextDelta("a", "two"),
    ev.TextDelta("b", "other"),
    ev.RefusalDelta("b", "no"),
    ev.AnnotationAdded("a", b'{"type":"url_citation"}'),
    ev.HostedEvent("g", "response.file_search_call.searching", b'{"queries":["who?"]}'),
    ev.ReasoningDelta("r", "x"),
    ev.ReasoningDelta("r", "y"),
    ev.ReasoningDelta("r", "z", 1),
    ev.ReasoningDelta("r", "raw", 1, "raw"),
    ev.ArgumentsDelta("c", "{}"),
    ev.OutputDelta("g", "out"),
    ev.OutputDelta("g", "put"),
    ev.FullText("a", "onetwo"),
    ev.FullReasoning("r", "xy", 1, "raw"),
    ev.FullArguments("c", "{}"),
    ev.StepCompleted(),
    ev.StepCompleted(ev.Usage(1, 2, 3, 4, 5)),
    ev.UsageReported(ev.Usage(1), "task_complete", partial=True),
    ev.Retrying("again", 500, FAILURE),
    ev.ToolCallRequested("1", "call", "tool", "{}", "c", "custom", old_form=True, item_reported=True),
    ev.ApprovalRequested("2", "command", "ls"),
    ev.InputRequested("3", "which?"),
    ev.RequestClosed("3"),
    ev.InputTaken("turn_1"),
    ev.HistoryCompacted(),
    ev.ContextReported(10, 100, 0.5, "USD"),
    ev.SubagentOpened("sub", "parent", "Ada", "Say hello."),
    ev.SubagentClosed("sub"),
    ev.TaskGiven("Say hello."),
    ev.OfSubagent("sub", ev.RawItem("reasoning", b'{"type":"reasoning"}')),
    ev.RawItem("reasoning", b'{"type":"reasoning"}'),
    ev.AccountLimitsReported(b'{"used":1}'),
    ev.AnswerDetails(
        {"service_tier": msgspec.Raw(b'"flex"')}, b"[]", {"prompt_tokens_details": {"audio": 1}}
    ),
    ev.ServedBy("second", 2, ("tools",)),
    ev.Notice("code", "text"),
    ev.TurnEnded(
        "stop", "provider", FAILURE, {1: "length"}, cut=True, stop_sequence="END", empty="cancelled"
    ),
]
KINDS = sorted(kind.__name__ for kind in get_args(Event) if kind is not ev.ForwardedBytes)


def _readable(value: Any) -> Any:
    """Returns what JSON makes of a value: half a surrogate pair is U+FFFD, a text that is an enumeration's is plain."""
    if isinstance(value, msgspec.Struct):
        return {"kind": type(value).__name__} | {
            name: _readable(getattr(value, name)) for name in value.__struct_fields__
        }
    return msgspec.json.decode(encode_json(value)) if isinstance(value, str) else value


def test_every_kind_of_event_is_tried() -> None:
    assert sorted({type(event).__name__ for event in EVENTS}) == KINDS
    assert {type(item) for item in ITEMS} == set(get_args(Item))


def test_events_are_read_as_they_were_written() -> None:
    assert decode_row(encode_row(EVENTS)) == EVENTS


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_is_read_alone(event: Event) -> None:
    assert decode_row(encode_row([event])) == [event]


@given(EVENT_LISTS)
def test_any_events_are_read_as_they_were_written(events: list[Event]) -> None:
    assert [*map(_readable, decode_row(encode_row(events)))] == [*map(_readable, events)]


def test_deltas_of_one_item_are_joined_in_the_row_alone() -> None:
    deltas: list[Event] = [ev.TextDelta("a", text) for text in ("one", "two", "three")]
    row = encode_row(deltas)
    deltas_joined = {
        "event": "deltas",
        "first": {"event": "text_delta", "id": "a", "text": "one"},
        "more": ["two", "three"],
    }
    assert msgspec.json.decode(row) == [VERSION, [deltas_joined]]
    assert decode_row(row) == deltas


def test_forwarded_bytes_have_no_row() -> None:
    assert decode_row(encode_row([ev.ForwardedBytes(b"data: {}\n\n", 1), ev.TextDelta("a", "x")])) == [
        ev.TextDelta("a", "x")
    ]


def test_half_a_surrogate_pair_in_json_of_an_agent_is_replaced() -> None:
    half = ev.RawItem("message", b'{"text":"\\ud83d"}')
    assert decode_row(encode_row([half])) == [ev.RawItem("message", b'{"text":"\\ufffd"}')]


def test_the_stored_names_of_events_and_items_stay() -> None:
    """A name that changes here makes rows of the release before unreadable."""
    assert {type(event).__name__: _tag_of(event) for event in EVENTS} == {
        "TurnStarted": "turn_started",
        "TurnEnded": "turn_ended",
        "ItemStarted": "item_started",
        "ItemEnded": "item_ended",
        "TextDelta": "text_delta",
        "RefusalDelta": "refusal_delta",
        "AnnotationAdded": "annotation_added",
        "ReasoningDelta": "reasoning_delta",
        "ArgumentsDelta": "arguments_delta",
        "OutputDelta": "output_delta",
        "FullText": "full_text",
        "FullReasoning": "full_reasoning",
        "FullArguments": "full_arguments",
        "HostedEvent": "hosted_event",
        "StepCompleted": "step_completed",
        "UsageReported": "usage_reported",
        "Retrying": "retrying",
        "ToolCallRequested": "tool_call_requested",
        "ApprovalRequested": "approval_requested",
        "InputRequested": "input_requested",
        "RequestClosed": "request_closed",
        "InputTaken": "input_taken",
        "HistoryCompacted": "history_compacted",
        "ContextReported": "context_reported",
        "SubagentOpened": "subagent_opened",
        "SubagentClosed": "subagent_closed",
        "TaskGiven": "task_given",
        "OfSubagent": "of_subagent",
        "RawItem": "raw_item",
        "AccountLimitsReported": "account_limits_reported",
        "AnswerDetails": "answer_details",
        "ServedBy": "served_by",
        "Notice": "notice",
    } | {"ItemStarted": _tag_of(ev.ItemStarted(Message("a")))}
    assert [_item_tag(item) for item in ITEMS if not isinstance(item, McpTools)] == [
        *("message", "reasoning", "tool_call", "mcp_call", "mcp_approval", "activity")
    ]


def _tag_of(event: Event) -> Any:
    return msgspec.json.decode(encode_row([event]))[1][0]["event"]


def _item_tag(item: Item) -> Any:
    return msgspec.json.decode(encode_row([ev.ItemStarted(item)]))[1][0]["item"]["item"]


@pytest.mark.parametrize(
    "row",
    [
        b"",
        b"[]",
        b"[1]",
        b'[1,[{"event":"of_tomorrow"}]]',
        b'[2,[{"event":"text_delta","id":"a","text":"x"}]]',
        b"[0,[]]",
        b'[1,[{"event":"text_delta","id":1,"text":"x"}]]',
        b'[1,[{"event":"deltas","first":{"event":"turn_ended","stop":"stop"},"more":[]}]]',
        b"event: response.created\n",
        b"[" * 5000,
    ],
)
def test_a_row_that_cannot_be_read_is_a_value_error(row: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_row(row)


@given(st.binary(max_size=50))
def test_bytes_that_are_no_row_are_a_value_error(row: bytes) -> None:
    with pytest.raises(ValueError, match=r"."):
        decode_row(row)
