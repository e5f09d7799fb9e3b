"""The streamed answer, put together by a client, is the whole answer: for every turn there can be."""

from __future__ import annotations

import json
from typing import Any

from anthropic.types import Message, RawMessageStreamEvent
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from codex_proxy.core.events import Event, RawItem
from codex_proxy.surfaces.messages.answer import BLOCK_TYPES, EVENT_TYPES, STOP_REASONS
from tests.sdk_fields import unknown_fields
from tests.surfaces.batches import feed_in_batches
from tests.surfaces.chat.strategies import TURNS
from tests.surfaces.messages.answering import IDENTITY, fold, frames, renderer, stream_events, whole

RAW = st.sampled_from(
    [
        RawItem("reasoning", b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA"}'),
        RawItem("message", b'{"type":"message","role":"assistant","content":[]}'),
        RawItem("function_call", b'{"type":"function_call","call_id":"call_1","name":"x","arguments":"{}"}'),
    ]
)
OPTIONS = st.fixed_dictionaries(
    {
        "thinking": st.booleans(),
        "state_identity": st.sampled_from([None, IDENTITY]),
        "web_search": st.booleans(),
        "show_activity": st.booleans(),
        "client_names": st.sampled_from([{}, {"get_weather": "get.weather"}]),
    }
)


@st.composite
def turns(draw: st.DrawFn) -> list[Event]:
    """A turn with raw items among its events."""
    events = draw(TURNS)
    for raw in draw(st.lists(RAW, max_size=3)):
        events.insert(draw(st.integers(1, len(events) - 1)), raw)
    return events


@settings(deadline=None)
@given(turns(), OPTIONS)
def test_a_stream_put_together_by_a_client_is_the_whole_answer(
    events: list[Event], options: dict[str, Any]
) -> None:
    assert fold(stream_events(events, **options)) == whole(events, **options)


@settings(deadline=None)
@given(turns(), OPTIONS, st.lists(st.integers(0, 30)))
def test_it_does_not_matter_how_the_events_are_cut_into_batches(
    events: list[Event], options: dict[str, Any], cuts: list[int]
) -> None:
    answer = renderer(stream=True, **options)
    cut = fold(frames(feed_in_batches(answer.feed, events, cuts)))
    assert cut == fold(stream_events(events, **options))


@settings(deadline=None)
@given(turns(), OPTIONS)
def test_a_streaming_renderer_gives_the_same_whole_answer_too(
    events: list[Event], options: dict[str, Any]
) -> None:
    answer = renderer(stream=True, **options)
    answer.feed(events)
    assert json.loads(answer.result()) == whole(events, **options)


@settings(deadline=None)
@given(turns(), OPTIONS)
def test_the_sdk_knows_every_event_and_every_answer_with_all_fields(
    events: list[Event], options: dict[str, Any]
) -> None:
    known: TypeAdapter[Any] = TypeAdapter(RawMessageStreamEvent)
    for frame in stream_events(events, **options):
        assert frame["type"] in EVENT_TYPES
        assert not unknown_fields(known.validate_python(frame))
        if frame["type"] == "content_block_start":
            assert frame["content_block"]["type"] in BLOCK_TYPES
    answer = whole(events, **options)
    assert not unknown_fields(Message.model_validate(answer))
    assert answer["stop_reason"] in STOP_REASONS


@settings(deadline=None)
@given(turns(), OPTIONS)
def test_calls_stand_at_the_end_and_the_models_state_before_them_or_a_text(
    events: list[Event], options: dict[str, Any]
) -> None:
    kinds = [block["type"] for block in whole(events, **options)["content"]]
    if "tool_use" in kinds:
        assert set(kinds[kinds.index("tool_use") :]) == {"tool_use"}
    for index, kind in enumerate(kinds):
        if kind == "redacted_thinking":
            assert set(kinds[index + 1 : index + 2]) <= {"text", "tool_use"}
