"""Every stream is the SDK's, and the stream, put together by a client, is the whole answer: for every turn."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import omit
from openai.lib.streaming.responses._responses import ResponseStreamState
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from codex_proxy.core.events import Event, ItemEnded, ItemStarted, TextDelta, TurnEnded
from codex_proxy.core.faults import Fault
from codex_proxy.core.items import Message
from tests.sdk_fields import unknown_fields
from tests.surfaces.batches import feed_in_batches
from tests.surfaces.responses.answering import fold, payloads, renderer, stream_events, whole
from tests.surfaces.responses.asking import ask, function_tool
from tests.surfaces.responses.strategies import TURNS

ENDS = {"response.completed", "response.incomplete", "response.failed"}
STREAM_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
OWN_FIELDS = {
    "Response.store",  # docs/contract.md
    "Response.frequency_penalty",
    "Response.presence_penalty",
    "ResponseUsage.estimated",  # docs/agents.md
    "ResponseErrorEvent.error",  # Codex reads the error there
    "ResponseFunctionCallArgumentsDoneEvent.name",  # older SDKs require it
    "ResponseCustomToolCall.status",  # every item has one
    "McpApprovalRequest.status",
    "McpListTools.status",
}
ECHOES = st.sampled_from(
    [
        ask().echo,
        ask(
            tools=[function_tool(parameters={"type": "object", "minimum": 10**30}), {"type": "web_search"}],
            tool_choice={"type": "allowed_tools", "mode": "auto", "tools": [function_tool()]},
            reasoning={"effort": "low", "summary": "auto"},
            metadata={"a": "b"},
            conversation="conv_1",
            user="somebody",
            instructions="Be brief.",
        ).echo,
        ask(
            tools=[{"type": "mcp", "server_label": "a", "server_url": "http://localhost/mcp"}],
            text={"format": {"type": "json_schema", "name": "a", "schema": {}}, "verbosity": "low"},
            service_tier="fast",
            truncation="auto",
            max_output_tokens=5,
            max_tool_calls=2,
            background=True,
        ).echo,
    ]
)
OPTIONS = st.fixed_dictionaries(
    {
        "echo": ECHOES,
        "activity": st.sampled_from(["off", "summaries"]),
        "encrypted_reasoning": st.booleans(),
        "background": st.booleans(),
    }
)


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_the_sdk_knows_every_event_with_all_fields_but_our_own(
    events: list[Event], options: dict[str, Any]
) -> None:
    for payload in stream_events(events, **options):
        event = STREAM_EVENT.validate_python(payload, strict=True)
        assert event.type == payload["type"]
        assert unknown_fields(event) <= OWN_FIELDS


@settings(deadline=None)
@given(TURNS, OPTIONS | st.just({"activity": "items"}))
def test_a_stream_put_together_by_a_client_is_the_whole_answer(
    events: list[Event], options: dict[str, Any]
) -> None:
    stream = stream_events(events, **options)
    answer = renderer(**options)
    answer.feed(events)
    assert stream[-1]["type"] in ENDS
    assert stream[-1]["response"] == answer.response()
    assert fold(stream) == stream[-1]["response"]["output"]
    if answer.failure is None:
        assert json.loads(answer.result()) == answer.response()


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_the_sdks_own_accumulator_reads_every_stream(events: list[Event], options: dict[str, Any]) -> None:
    if len({payload["item"]["call_id"] for payload in _calls(events)}) < len(_calls(events)):
        return  # a model that gives one call id to two calls is refused by the SDK itself
    state: ResponseStreamState[Any] = ResponseStreamState(input_tools=omit, text_format=omit)
    stream = stream_events(events, **options)
    for payload in stream:
        state.handle_event(STREAM_EVENT.validate_python(payload))
    if stream[-1]["type"] == "response.completed":
        final = state._completed_response
        assert final is not None
        texts = [part["text"] for part in _content(stream[-1]["response"]) if part["type"] == "output_text"]
        assert final.output_text == "".join(texts)


def _calls(events: list[Event]) -> list[Any]:
    stream = stream_events(events)
    added = [payload for payload in stream if payload["type"] == "response.output_item.added"]
    return [payload for payload in added if "call_id" in payload["item"]]


def _content(response: Any) -> list[Any]:
    return [part for item in response["output"] if item["type"] == "message" for part in item["content"]]


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_sequence_numbers_have_no_gaps(events: list[Event], options: dict[str, Any]) -> None:
    stream = stream_events(events, **options)
    assert [payload["sequence_number"] for payload in stream] == list(range(len(stream)))


@settings(deadline=None)
@given(TURNS, OPTIONS, st.lists(st.integers(0, 30)))
def test_it_does_not_matter_how_the_events_are_cut_into_batches(
    events: list[Event], options: dict[str, Any], cuts: list[int]
) -> None:
    answer = renderer(stream=True, **options)
    assert feed_in_batches(answer.feed, events, cuts) == renderer(stream=True, **options).feed(events)


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_stored_frames_are_the_stream_each_with_its_number(
    events: list[Event], options: dict[str, Any]
) -> None:
    answer = renderer(stream=True, keep_frames=True, **options)
    sse = answer.feed(events)
    frames = answer.take_frames()
    assert answer.take_frames() == []
    assert b"".join(frame for _, frame in frames) + b"event: done\ndata: [DONE]\n\n" == sse
    for number, frame in frames:
        (payload,) = payloads(frame)
        assert payload["sequence_number"] == number


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_every_whole_answer_is_one_of_the_sdks_own(events: list[Event], options: dict[str, Any]) -> None:
    answer = renderer(**options)
    for event in events:
        Response.model_validate(answer.snapshot(), strict=True)
        answer.feed([event])
    response = answer.response()
    Response.model_validate(response, strict=True)
    assert all({"id", "type", "status"} <= set(item) for item in response["output"])


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_only_the_last_item_of_a_response_that_was_cut_is_incomplete(
    events: list[Event], options: dict[str, Any]
) -> None:
    answer = renderer(**options)
    answer.feed(events)
    response = answer.response()
    before, last = response["output"][:-1], response["output"][-1:]
    assert {item["status"] for item in before if not _ours(item)} <= {"completed"}
    assert {item["status"] for item in before if _ours(item)} <= {"completed", "failed"}
    if response["status"] == "incomplete":
        assert {item["status"] for item in last if not _ours(item)} <= {"incomplete"}
    if response["status"] == "completed":
        assert "incomplete" not in {item["status"] for item in last}


def _ours(item: Any) -> bool:
    """Of this server's doing: that is over as it ended, whatever becomes of the response."""
    return str(item["type"]).startswith("mcp_")


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_ids_never_change_and_are_never_used_twice(events: list[Event], options: dict[str, Any]) -> None:
    stream = stream_events(events, **options)
    added = [payload["item"]["id"] for payload in stream if payload["type"] == "response.output_item.added"]
    assert len(added) == len(set(added))
    assert {payload["response"]["id"] for payload in stream if "response" in payload} == {"resp_1"}


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_a_failed_turn_has_a_failure_and_no_other_has(events: list[Event], options: dict[str, Any]) -> None:
    answer = renderer(**options)
    answer.feed(events)
    response = answer.response()
    failed = response["status"] == "failed"
    assert (answer.failure is not None) == failed == (response["error"] is not None)
    if failed:
        with pytest.raises(Fault) as raised:
            answer.result()
        assert raised.value.failure == answer.failure


def test_half_a_character_at_a_deltas_end_does_not_break_the_fold() -> None:
    events: list[Event] = [
        ItemStarted(Message("m")),
        TextDelta("m", "a\ud83d"),
        TextDelta("m", "\ude00b"),
        ItemEnded("m"),
        TurnEnded("stop"),
    ]
    assert fold(stream_events(events)) == whole(events)["output"]
    assert whole(events)["output"][0]["content"][0]["text"] == "a\ufffd\ufffdb"
