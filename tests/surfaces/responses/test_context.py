"""Counting and compacting: what is counted, and a context that goes on from its summary."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.core.events import Usage
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.core.items import SaidMessage, TextPart
from codex_proxy.surfaces.responses import objects
from codex_proxy.surfaces.responses.context import (
    COMPACTION_WORDS,
    ParsedContext,
    compaction_turn,
    context_history,
    letters_of,
    parse_context,
    summary_in,
)
from tests.surfaces.chat.turns import called, said, turn
from tests.surfaces.responses.answering import whole
from tests.surfaces.responses.asking import CATALOG, function_tool, history


def context(**fields: Any) -> ParsedContext:
    return parse_context(json.dumps({"model": "codex-5", **fields}).encode(), catalog=CATALOG)


def letters(**fields: Any) -> int:
    parsed = context(**fields)
    return letters_of(parsed, context_history(parsed, parsed.input_items))


def test_everything_that_the_model_sees_counts() -> None:
    assert letters(input="x" * 40) == 40
    assert letters(input="x" * 40, instructions="y" * 10) == 50
    assert letters(input="x", tools=[function_tool()]) > 50
    schema = {"type": "json_schema", "name": "a", "schema": {"type": "object"}}
    assert letters(input="x", text={"format": schema}) == 1 + len('{"type":"object"}')


def test_a_context_may_be_all_in_the_past() -> None:
    assert context(previous_response_id="resp_1").input_items == ()
    assert context(conversation="conv_1").conversation == "conv_1"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "input"),
        ({"input": []}, "input"),
        ({"input": "x", "conversation": "x"}, "conversation"),
        ({"input": "x", "tools": [{"type": "file_search"}]}, "tools[0]"),
        ({"input": "x", "model": None}, "model"),
    ],
)
def test_what_is_wrong_is_named(fields: dict[str, Any], param: str) -> None:
    with pytest.raises(Fault) as raised:
        context(**fields)
    assert (raised.value.failure.kind, raised.value.failure.param) == (FaultKind.INVALID_REQUEST, param)


def test_the_plain_model_sums_up_what_it_has_seen() -> None:
    parsed = context(input="Owls fly.", instructions="Be brief.")
    asked = compaction_turn(parsed, context_history(parsed, parsed.input_items))
    texts = [item.parts for item in asked.history if isinstance(item, SaidMessage)]
    assert texts == [(TextPart("Be brief."),), (TextPart("Owls fly."),), (TextPart(COMPACTION_WORDS),)]
    assert (asked.mode, asked.tools) == ("model", ())


def test_the_summary_is_what_the_assistant_said_and_a_new_chain_begins_with_it() -> None:
    summary = summary_in(whole(turn(said("Owls", " fly.", id="a"), said("By night.", id="b"), called("{}"))))
    assert summary == "Owls fly.\n\nBy night."
    compacted = objects.compacted(
        id="resp_1", created_at=1, item_id="cmp_1", summary=summary, usage=Usage(5, 0, 2, 0)
    )
    (told,) = history(*compacted["output"])
    assert isinstance(told, SaidMessage)
    assert "Owls fly." in told.parts[0].text  # type: ignore[union-attr]
