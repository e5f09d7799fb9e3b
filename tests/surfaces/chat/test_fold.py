"""The streamed answer, put together by a client, is the whole answer: for every turn there can be."""

from __future__ import annotations

import json
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from codex_proxy.core.events import (
    AnswerDetails,
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    TextDelta,
    TurnEnded,
)
from codex_proxy.core.items import Message, ToolCall
from tests.sdk_fields import unknown_fields
from tests.surfaces.batches import feed_in_batches
from tests.surfaces.chat.answering import fold, frames, renderer, stream_events, whole
from tests.surfaces.chat.strategies import TURNS

OPTIONS = st.fixed_dictionaries(
    {
        "profile": st.sampled_from(["openai", "codex-completions-api"]),
        "choices": st.integers(1, 3),
        "legacy_function_call": st.booleans(),
        "whole_calls": st.booleans(),
        "show_activity": st.booleans(),
    }
)
ONLY_IN_STREAMS = ("time_to_first_token", "throughput_after_first_token", "emission_trigger")
OWN_FIELDS = {
    "ChoiceDelta.reasoning_content",
    "ChatCompletionMessage.reasoning_content",
    "ChoiceDeltaToolCall.custom",  # the type of a whole message has it
    "CompletionUsage.estimated",
    *(f"CompletionUsage.{name}" for name in ONLY_IN_STREAMS),
}
KNOWN_REASONS = {"stop", "length", "tool_calls", "content_filter", "function_call"}


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_a_stream_put_together_by_a_client_is_the_whole_answer(
    events: list[Event], options: dict[str, Any]
) -> None:
    folded = fold(stream_events(events, include_usage=True, **options))
    answer = whole(events, **options)
    assert folded["choices"] == answer["choices"]
    assert {k: v for k, v in folded["usage"].items() if k not in ONLY_IN_STREAMS} == answer["usage"]
    assert folded["head"] == {key: answer[key] for key in ("id", "created", "model")}


FINGERPRINT = AnswerDetails({"system_fingerprint": msgspec.Raw(b'"fp_1"')})


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_an_upstreams_own_fields_are_in_every_chunk_and_in_the_whole_answer(
    events: list[Event], options: dict[str, Any]
) -> None:
    started, *others = events
    events = [started, FINGERPRINT, *others]
    *chunks, done = stream_events(events, include_usage=True, **options)
    assert done == "[DONE]"
    assert {chunk["system_fingerprint"] for chunk in chunks} == {"fp_1"}
    assert whole(events, **options)["system_fingerprint"] == "fp_1"


@settings(deadline=None)
@given(TURNS, OPTIONS, st.lists(st.integers(0, 30)))
def test_it_does_not_matter_how_the_events_are_cut_into_batches(
    events: list[Event], options: dict[str, Any], cuts: list[int]
) -> None:
    answer = renderer(stream=True, **options)
    assert feed_in_batches(answer.feed, events, cuts) == renderer(stream=True, **options).feed(events)


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_a_streaming_renderer_gives_the_same_whole_answer_too(
    events: list[Event], options: dict[str, Any]
) -> None:
    answer = renderer(stream=True, **options)
    answer.feed(events)
    assert json.loads(answer.result()) == whole(events, **options)


@settings(deadline=None)
@given(TURNS, OPTIONS, st.booleans())
def test_the_sdk_knows_every_chunk_with_all_fields_but_our_own(
    events: list[Event], options: dict[str, Any], include_usage: bool
) -> None:
    for frame in stream_events(events, include_usage=include_usage, **options)[:-1]:
        for choice in frame["choices"]:
            _spell_out_what_the_types_do_not_know(choice, choice["delta"])
        assert unknown_fields(ChatCompletionChunk.model_validate(frame, strict=True)) <= OWN_FIELDS


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_the_sdk_knows_every_whole_answer_with_all_fields_but_our_own(
    events: list[Event], options: dict[str, Any]
) -> None:
    answer = whole(events, **options)
    for choice in answer["choices"]:
        if choice["finish_reason"] not in KNOWN_REASONS:
            choice["finish_reason"] = "stop"
    assert unknown_fields(ChatCompletion.model_validate(answer, strict=True)) <= OWN_FIELDS


def _spell_out_what_the_types_do_not_know(choice: dict[str, Any], delta: dict[str, Any]) -> None:
    """Reasons of tomorrow, and custom tools, which only the SDK's type of a whole message knows."""
    if choice["finish_reason"] not in {None, *KNOWN_REASONS}:
        choice["finish_reason"] = "stop"
    for call in delta.get("tool_calls", ()):
        if call.get("type") == "custom":
            call["type"] = "function"


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_every_choice_has_one_role_first_and_one_finish_reason_last(
    events: list[Event], options: dict[str, Any]
) -> None:
    chunks = stream_events(events, **options)[:-1]
    for index in range(options["choices"]):
        own = [choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index]
        assert own[0]["delta"] == {"role": "assistant"}
        assert all("role" not in choice["delta"] for choice in own[1:])
        assert own[-1]["delta"] == {}
        assert own[-1]["finish_reason"] is not None
        assert all(choice["finish_reason"] is None and choice["delta"] for choice in own[:-1])


@settings(deadline=None)
@given(TURNS, OPTIONS)
def test_ids_and_names_of_a_call_come_once_and_calls_come_one_after_the_other(
    events: list[Event], options: dict[str, Any]
) -> None:
    for index in range(options["choices"]):
        seen: list[int] = []
        for chunk in stream_events(events, **options)[:-1]:
            for choice in chunk["choices"]:
                if choice["index"] != index or "tool_calls" not in choice["delta"]:
                    continue
                (call,) = choice["delta"]["tool_calls"]
                inner = call.get("function") or call["custom"]
                first = call["index"] not in seen
                assert ("id" in call) == ("type" in call) == ("name" in inner) == first
                seen.append(call["index"])
        assert seen == sorted(seen)
        assert sorted(set(seen)) == list(range(len(set(seen))))


def test_the_sdks_own_accumulator_comes_to_the_same_message() -> None:
    events: list[Event] = [
        ItemStarted(Message("m")),
        TextDelta("m", "Let me "),
        TextDelta("m", "look."),
        ItemEnded("m"),
        ItemStarted(ToolCall("t", "call_1", "get_weather")),
        ArgumentsDelta("t", '{"city":'),
        ArgumentsDelta("t", '"Nashville"}'),
        ItemEnded("t"),
        ItemStarted(ToolCall("u", "call_2", "get_time")),
        ArgumentsDelta("u", "{}"),
        ItemEnded("u"),
        TurnEnded("stop"),
    ]
    state = ChatCompletionStreamState()
    for frame in frames(renderer(stream=True, include_usage=True).feed(events))[:-1]:
        state.handle_chunk(ChatCompletionChunk.model_validate(frame))
    choice = state.get_final_completion().choices[0]
    expected = whole(events)["choices"][0]
    assert choice.finish_reason == expected["finish_reason"]
    assert choice.message.content == expected["message"]["content"]
    calls = choice.message.tool_calls or []
    found = [(call.id, call.function.name, call.function.arguments) for call in calls]
    assert found == [
        (call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in expected["message"]["tool_calls"]
    ]
