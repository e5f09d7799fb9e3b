"""What the contract says of the golden transcripts of `test-results/chat-completions/`, which `test_transcripts`
compares with live answers.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from scripts.golden import DYNAMIC_ID, PROFILE, TIMESTAMP, manifest_of, transcript

NAMES = (
    *("nonstream-minimal", "nonstream-truncation", "nonstream-tool-calls", "nonstream-function-call"),
    *("nonstream-content-filter", "nonstream-invalid-request", "streaming-usage", "streaming-usage-length"),
    *("streaming-tool-calls", "streaming-tool-calls-sequential", "streaming-function-call"),
    *("streaming-content-filter", "streaming-multi-choice", "streaming-error", "streaming-minimal"),
    *("gt-3-nonstream-tool-call", "gt-4-streaming-text"),
    f"{PROFILE}/streaming-minimal",
    f"{PROFILE}/streaming-usage",
    f"{PROFILE}/streaming-multi-choice",
    f"{PROFILE}/streaming-tool-calls",
    f"{PROFILE}/streaming-tool-calls-sequential",
    f"{PROFILE}/streaming-error",
)
EACH = pytest.mark.parametrize("name", NAMES)


def committed_transcript(name: str) -> dict[str, Any]:
    return transcript("chat-completions", f"{name}.json")


def chunks_of(name: str) -> list[Any]:
    """The frames of a committed stream before `[DONE]`."""
    chunks: list[Any]
    *chunks, done = committed_transcript(name)["stream"]
    assert done == "[DONE]"
    return chunks


def deltas_of(name: str, index: int = 0) -> list[dict[str, Any]]:
    choices = [choice for chunk in chunks_of(name) for choice in chunk.get("choices", ())]
    return [choice["delta"] for choice in choices if choice["index"] == index]


@EACH
def test_ids_and_times_are_replaced_and_the_rest_are_the_sdks_own_types(name: str) -> None:
    transcript = committed_transcript(name)
    frames = transcript.get("stream") or [transcript["response"]]
    for frame in frames:
        if frame == "[DONE]" or "error" in frame:
            continue
        assert (frame["id"], frame["created"]) == (DYNAMIC_ID, TIMESTAMP)
        kind = ChatCompletionChunk if "stream" in transcript else ChatCompletion
        kind.model_validate({**frame, "created": 1})
    assert "chatcmpl-" not in json.dumps(transcript)


def test_the_transcripts_that_the_contract_names_are_all_there_and_no_others() -> None:
    assert {entry["file"] for entry in manifest_of("chat-completions")} == {f"{name}.json" for name in NAMES}


# --- what the contract says of the single transcripts ---------------------------------------------


def test_streaming_usage_has_the_required_order_role_content_finalizer_usage_done() -> None:
    first, *middle, final, usage = chunks_of("streaming-usage")
    assert first["choices"] == [{"index": 0, "delta": {"role": "assistant"}, "finish_reason": None}]
    assert all(set(chunk["choices"][0]["delta"]) == {"content"} for chunk in middle)
    assert final["choices"] == [{"index": 0, "delta": {}, "finish_reason": "stop"}]
    assert [chunk["usage"] for chunk in (first, *middle, final)] == [None] * (len(middle) + 2)
    assert usage["choices"] == []
    assert (usage["usage"]["prompt_tokens"], usage["usage"]["completion_tokens"]) == (11, 7)
    assert usage["usage"]["time_to_first_token"] is None
    assert usage["usage"]["throughput_after_first_token"] is None
    assert usage["usage"]["emission_trigger"] in ("token_count", "task_complete", "provider")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("streaming-usage-length", "length"),
        ("streaming-tool-calls", "tool_calls"),
        ("streaming-tool-calls-sequential", "tool_calls"),
        ("streaming-function-call", "function_call"),
        ("streaming-content-filter", "content_filter"),
    ],
)
def test_the_usage_chunk_trails_the_finish_chunk_whatever_the_finish_reason(name: str, reason: str) -> None:
    final, usage = chunks_of(name)[-2:]
    assert final["choices"][0]["finish_reason"] == reason
    assert usage["choices"] == []
    assert usage["usage"]["total_tokens"] > 0


def test_streaming_tool_calls_exercises_incremental_argument_deltas() -> None:
    calls = [delta["tool_calls"][0] for delta in deltas_of("streaming-tool-calls") if "tool_calls" in delta]
    arguments = ["", ""]
    for call in calls:
        arguments[call["index"]] += call["function"]["arguments"]
    assert len(calls) > 4
    assert [json.loads(each) for each in arguments] == [{"city": "Paris"}, {"city": "Rome"}]
    assert [call["index"] for call in calls] == sorted(call["index"] for call in calls)


def test_streaming_tool_calls_sequential_is_a_single_consolidated_delta() -> None:
    role, call, end = deltas_of("streaming-tool-calls-sequential")
    assert (role, end) == ({"role": "assistant"}, {})
    assert json.loads(call["tool_calls"][0]["function"]["arguments"]) == {"city": "Paris"}


def test_streaming_multi_choice_broadcasts_to_each_index_and_sums_the_completion_tokens() -> None:
    assert deltas_of("streaming-multi-choice", 0) == deltas_of("streaming-multi-choice", 1)
    usage = chunks_of("streaming-multi-choice")[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (11, 14, 25)


def test_the_other_profile_has_usage_null_and_every_choice_in_each_chunk() -> None:
    assert all(chunk["usage"] is None for chunk in chunks_of(f"{PROFILE}/streaming-minimal"))
    *chunks, usage = chunks_of(f"{PROFILE}/streaming-multi-choice")
    assert all([choice["index"] for choice in chunk["choices"]] == [0, 1] for chunk in chunks)
    assert usage["choices"] == []
    assert all("usage" not in chunk for chunk in chunks_of("streaming-minimal"))


def test_streaming_error_ends_with_one_error_frame_that_is_no_chunk() -> None:
    *chunks, failed = chunks_of("streaming-error")
    assert list(failed) == ["error"]
    assert not any("error" in chunk for chunk in chunks)


def test_gt_3_is_the_example_of_the_contract() -> None:
    response = committed_transcript("gt-3-nonstream-tool-call")["response"]
    [choice] = response["choices"]
    [call] = choice["message"]["tool_calls"]
    assert (choice["finish_reason"], choice["message"]["role"]) == ("tool_calls", "assistant")
    assert call["function"] == {
        "name": "get_weather",
        "arguments": '{"city":"Nashville","unit":"F"}',
    }
    counts = ("prompt_tokens", "completion_tokens", "total_tokens")
    assert [response["usage"][name] for name in counts] == [37, 12, 49]


def test_gt_4_is_the_example_of_the_contract_with_a_role_and_a_finalizer_of_their_own() -> None:
    role, first, second, end = deltas_of("gt-4-streaming-text")
    assert (role, first, second, end) == (
        {"role": "assistant"},
        {"content": "Thi"},
        {"content": "s is a test."},
        {},
    )


def test_no_transcript_has_more_cached_or_reasoning_tokens_than_there_are() -> None:
    for name in NAMES:
        transcript = committed_transcript(name)
        for frame in transcript.get("stream") or [transcript["response"]]:
            if frame != "[DONE]" and frame.get("usage"):
                usage = frame["usage"]
                assert usage["prompt_tokens_details"]["cached_tokens"] <= usage["prompt_tokens"], name
                details = usage["completion_tokens_details"]
                assert details["reasoning_tokens"] <= usage["completion_tokens"], name


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("nonstream-minimal", "stop"),
        ("nonstream-truncation", "length"),
        ("nonstream-tool-calls", "tool_calls"),
        ("nonstream-function-call", "function_call"),
        ("nonstream-content-filter", "content_filter"),
    ],
)
def test_a_whole_answer_has_its_finish_reason_and_no_streaming_only_usage(name: str, reason: str) -> None:
    response = committed_transcript(name)["response"]
    assert response["choices"][0]["finish_reason"] == reason
    assert not {"time_to_first_token", "throughput_after_first_token", "emission_trigger"} & set(
        response["usage"]
    )


def test_the_minimal_answer_is_the_contracts_example() -> None:
    response = committed_transcript("nonstream-minimal")["response"]
    assert response["choices"][0]["message"]["content"] == "Hello!"
    assert {
        key: response["usage"][key] for key in ("prompt_tokens", "completion_tokens", "total_tokens")
    } == {
        "prompt_tokens": 6,
        "completion_tokens": 2,
        "total_tokens": 8,
    }
