"""Counting and compacting: what is counted, and a context that goes on from its summary."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.core.events import Usage
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.items import HistoryMessage, TextPart
from codex_proxy.core.tokens import estimate_tokens
from codex_proxy.core.turn import Turn
from codex_proxy.surfaces.answers.usage import tokens_in
from codex_proxy.surfaces.models import DEFAULT_NAME
from codex_proxy.surfaces.responses import response_object
from codex_proxy.surfaces.responses.compaction import (
    COMPACTION_WORDS,
    NO_SUMMARY,
    CompactionRenderer,
    compaction_turn,
    lacks_summary,
    summary_in,
)
from codex_proxy.surfaces.responses.context import (
    InputEstimate,
    ParsedContext,
    context_history,
    parse_context,
)
from codex_proxy.surfaces.responses.parse import with_earlier_updates
from codex_proxy.surfaces.responses.response_object import status_of
from tests.surfaces.chat.turns import text_item, tool_call, turn
from tests.surfaces.responses.answering import CountedIds, Stopped, whole
from tests.surfaces.responses.asking import CATALOG, function_tool, history


def context(**fields: Any) -> ParsedContext:
    return parse_context(json.dumps({"model": "codex-5", **fields}).encode(), catalog=CATALOG)


def tokens(**fields: Any) -> int:
    parsed = context(**fields)
    return InputEstimate().tokens_with(parsed, parsed.input_items)


def test_everything_that_the_model_sees_counts() -> None:
    assert tokens(input="one two") == 2
    assert tokens(input="one two", instructions="three four") == 4
    assert tokens(input="one", tools=[function_tool()]) > 10
    schema = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    assert tokens(input="one", text={"format": schema}) == 1 + estimate_tokens(
        '{"title":"a","type":"object"}'
    )


def test_a_context_without_a_model_is_counted() -> None:
    body = b'{"input": "one two", "model": null}'
    assert parse_context(body, catalog=CATALOG, counting=True).model_asked == DEFAULT_NAME
    with pytest.raises(Fault) as caught:
        parse_context(body, catalog=CATALOG)
    assert caught.value.failure.param == "model"


PAST: list[dict[str, Any]] = [
    {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is it?"}]},
    {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x" * 50},
    {"type": "function_call", "call_id": "1", "name": "look", "arguments": '{"at":"a"}'},
    {"type": "function_call", "call_id": "2", "name": "look", "arguments": '{"at":"b"}'},
    {
        "type": "function_call_output",
        "call_id": "2",
        "output": [
            {"type": "input_text", "text": "a cat"},
            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"},
        ],
    },
    {"type": "function_call_output", "call_id": "1", "output": "a dog"},
    {"type": "function_call_output", "call_id": "1", "output": "the same again, which does not count"},
    {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Two animals."}]},
]


@pytest.mark.parametrize("earlier", range(len(PAST) + 1))
def test_items_measured_one_by_one_are_as_long_as_the_whole_history(earlier: int) -> None:
    parsed = context(input="And now?", instructions="Be brief.")
    measure = InputEstimate()
    for item in PAST[:earlier]:
        measure.add(item)
    items = [*PAST, *parsed.input_items]
    assert measure.tokens_with(parsed, items[earlier:]) == tokens_in(context_history(parsed, items))


def test_a_call_without_its_output_is_refused_in_what_is_measured_too() -> None:
    parsed, measure = context(input="x"), InputEstimate()
    measure.add(PAST[2])
    with pytest.raises(Fault, match="No tool output found"):
        measure.tokens_with(parsed, parsed.input_items)


def test_a_context_may_be_all_in_the_past() -> None:
    assert context(previous_response_id="resp_1").input_items == ()
    assert context(conversation="conv_1").conversation == "conv_1"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": "x", "conversation": "x"}, "conversation"),
        ({"input": "x", "tools": [{"type": "computer"}]}, "tools[0]"),
        ({"input": "x", "model": None}, "model"),
    ],
)
def test_a_wrong_field_of_a_count_or_compaction_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Fault) as raised:
        context(**fields)
    assert (raised.value.failure.kind, raised.value.failure.param) == (FaultKind.INVALID_REQUEST, param)


def test_the_plain_model_sums_up_what_it_has_seen() -> None:
    parsed = context(input="Owls fly.", instructions="Be brief.")
    asked = compaction_turn(Turn(model="", history=()), context_history(parsed, parsed.input_items))
    texts = [item.parts for item in asked.history if isinstance(item, HistoryMessage)]
    assert texts == [(TextPart("Be brief."),), (TextPart("Owls fly."),), (TextPart(COMPACTION_WORDS),)]
    assert (asked.mode, asked.tools) == ("model", ())


def test_the_summary_is_what_the_assistant_said_and_a_new_chain_begins_with_it() -> None:
    summary = summary_in(
        whole(turn(text_item("Owls", " fly.", id="a"), text_item("By night.", id="b"), tool_call("{}")))
    )
    assert summary == "Owls fly.\n\nBy night."
    compacted = response_object.compaction_object(
        id="resp_1", created_at=1, item_id="cmp_1", summary=summary, usage=Usage(5, 0, 2, 0)
    )
    (told,) = history(*compacted["output"])
    assert isinstance(told, HistoryMessage)
    assert "Owls fly." in told.parts[0].text  # type: ignore[union-attr]


@pytest.mark.parametrize("said", [[], ["  \n"]])
def test_a_model_that_sums_up_nothing_fails_so_that_nothing_is_lost(said: list[str]) -> None:
    rendered = CompactionRenderer(id="resp_1", created_at=1, echo={}, ids=CountedIds(), clock=Stopped())
    rendered.feed(turn(*(text_item(each, id="a") for each in said)))
    assert rendered.failure is NO_SUMMARY
    assert rendered.response()["status"] == "failed"


@pytest.mark.parametrize(
    ("stop", "status"),
    [("length", "failed"), ("content_filter", "failed"), ("interrupted", "cancelled")],
)
def test_half_a_summary_takes_no_conversations_place(stop: str, status: str) -> None:
    rendered = CompactionRenderer(id="resp_1", created_at=1, echo={}, ids=CountedIds(), clock=Stopped())
    rendered.feed(turn(text_item("Owls f", id="a"), stop=stop))
    assert (rendered.response()["status"], rendered.response()["output"]) == (status, [])
    assert lacks_summary(status_of(stop), "Owls f") is not None


def test_the_effort_and_format_of_earlier_items_are_those_of_the_turn() -> None:
    schema = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    items: Any = [
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
        {"type": "configuration_update", "text": {"format": schema}, "reasoning": {}},
    ]
    changed = with_earlier_updates(Turn(model="", history=(), effort="high"), items)
    assert changed.effort == "low"
    assert json.loads(bytes(changed.output_schema or b"")) == {"title": "a", "type": "object"}
    plain: Any = {"type": "configuration_update", "text": {"format": {"type": "text"}}}
    assert with_earlier_updates(changed, [plain]).output_schema is None
