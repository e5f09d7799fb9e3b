"""The contract (docs/contract.md#chat-completions), sentence by sentence. Each test is named as one."""

from __future__ import annotations

from typing import Any

import pytest

from codex_proxy.core.events import TurnEnded, Usage
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.surfaces.chat.render import StreamMetrics
from codex_proxy.surfaces.errors import status_of
from tests.surfaces.chat.answering import CREATED, ID, MODEL, deltas, message, renderer, stream_events, whole
from tests.surfaces.chat.asking import ask, refusal_of
from tests.surfaces.chat.turns import CRASH, failed_turn, reasoning_item, text_item, tool_call, turn, usage

HELLO = turn(text_item("Hel", "lo!"), usage())


def chunk(
    index: int, delta: dict[str, Any], finish_reason: str | None = None, **usage: None
) -> dict[str, Any]:
    """A chunk, to the last key."""
    return {
        "id": ID,
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": MODEL,
        "choices": [{"index": index, "delta": delta, "finish_reason": finish_reason}],
        **usage,
    }


# --- Non-stream response --------------------------------------------------------------------------


def test_a_whole_answer_has_the_shape_of_the_contract() -> None:
    assert whole(HELLO) == {
        "id": ID,
        "object": "chat.completion",
        "created": CREATED,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "Hello!", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 7,
            "total_tokens": 18,
            "prompt_tokens_details": {"cached_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 2},
        },
    }


def test_choices_are_indexed_from_0_to_n_minus_1() -> None:
    assert [choice["index"] for choice in whole(HELLO, choices=3)["choices"]] == [0, 1, 2]


@pytest.mark.parametrize("reason", ["stop", "length", "content_filter", "a_reason_of_tomorrow"])
def test_upstream_finish_reasons_are_propagated_streamed_and_whole(reason: str) -> None:
    events = turn(text_item("x"), stop=reason)
    assert whole(events)["choices"][0]["finish_reason"] == reason
    assert stream_events(events)[-2]["choices"][0]["finish_reason"] == reason


def test_completion_tokens_aggregate_over_all_choices_and_prompt_tokens_count_once() -> None:
    usage = whole(HELLO, choices=3)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (11, 21, 32)


def test_usage_of_choices_that_the_agent_itself_reported_is_not_multiplied() -> None:
    events = turn(text_item("a", id="a", choice=0), text_item("b", id="b", choice=1), usage())
    assert whole(events, choices=2)["usage"]["completion_tokens"] == 7


# --- Streaming contract ---------------------------------------------------------------------------


def test_a_stream_is_role_then_deltas_then_finalizer_then_done() -> None:
    assert stream_events(HELLO) == [
        chunk(0, {"role": "assistant"}),
        chunk(0, {"content": "Hel"}),
        chunk(0, {"content": "lo!"}),
        chunk(0, {}, "stop"),
        "[DONE]",
    ]


def test_with_include_usage_every_chunk_has_usage_null_and_a_usage_chunk_follows_the_finalizer() -> None:
    frames = stream_events(HELLO, include_usage=True)
    assert frames[:-2] == [
        chunk(0, {"role": "assistant"}, usage=None),
        chunk(0, {"content": "Hel"}, usage=None),
        chunk(0, {"content": "lo!"}, usage=None),
        chunk(0, {}, "stop", usage=None),
    ]
    assert frames[-2] == {
        "id": ID,
        "object": "chat.completion.chunk",
        "created": CREATED,
        "model": MODEL,
        "choices": [],
        "usage": {
            "prompt_tokens": 11,
            "completion_tokens": 7,
            "total_tokens": 18,
            "prompt_tokens_details": {"cached_tokens": 3},
            "completion_tokens_details": {"reasoning_tokens": 2},
            "time_to_first_token": None,
            "throughput_after_first_token": None,
            "emission_trigger": "token_count",
        },
    }
    assert frames[-1] == "[DONE]"


def test_provider_usage_without_include_usage_is_not_forwarded_but_can_be_logged() -> None:
    answer = renderer(stream=True)
    assert b"usage" not in answer.feed(HELLO)
    assert (answer.spent.reported, answer.spent.trigger) == (Usage(11, 3, 7, 2), "token_count")


def test_the_placeholders_appear_only_on_the_streaming_usage_chunk() -> None:
    usage = whole(HELLO)["usage"]
    assert not {"time_to_first_token", "throughput_after_first_token", "emission_trigger"} & set(usage)


def test_measured_stream_metrics_take_the_placeholders_place() -> None:
    seen: list[int] = []

    def measure(completion_tokens: int) -> StreamMetrics:
        seen.append(completion_tokens)
        return StreamMetrics(48.5, 120.0)

    usage = stream_events(HELLO, include_usage=True, metrics=measure)[-2]["usage"]
    assert (usage["time_to_first_token"], usage["throughput_after_first_token"]) == (48.5, 120.0)
    assert seen == [7]


@pytest.mark.parametrize(
    ("told", "trigger"),
    [("token_count", "token_count"), ("task_complete", "task_complete"), ("turn/completed", "provider")],
)
def test_emission_trigger_names_the_event_that_prompted_the_usage(told: str, trigger: str) -> None:
    events = [*turn(text_item("x"))[:-1], TurnEnded("stop", told)]
    assert stream_events(events, include_usage=True)[-2]["usage"]["emission_trigger"] == trigger


def test_with_n_above_1_identical_deltas_are_broadcast_to_every_index() -> None:
    frames = stream_events(turn(text_item("Hi")), choices=2)
    assert frames == [
        chunk(0, {"role": "assistant"}),
        chunk(1, {"role": "assistant"}),
        chunk(0, {"content": "Hi"}),
        chunk(1, {"content": "Hi"}),
        chunk(0, {}, "stop"),
        chunk(1, {}, "stop"),
        "[DONE]",
    ]


def test_choices_that_the_agent_reports_itself_go_to_their_index_each_with_its_own_end() -> None:
    events = turn(
        text_item("one", id="a", choice=0),
        text_item("two", id="b", choice=1),
        text_item("nobody asked", id="c", choice=2),
        text_item("nobody can ask", id="d", choice=-2),
        choice_stops={1: "length"},
    )
    choices = whole(events, choices=2)["choices"]
    assert [(c["message"]["content"], c["finish_reason"]) for c in choices] == [
        ("one", "stop"),
        ("two", "length"),
    ]


def test_argument_fragments_are_forwarded_in_order_and_the_stream_ends_with_tool_calls() -> None:
    frames = stream_events(turn(tool_call('{"city":', '"Nashville"}')))
    assert frames[1:-1] == [
        chunk(
            0,
            {
                "tool_calls": [
                    {
                        "index": 0,
                        "id": "call_t",
                        "type": "function",
                        "function": {"name": "get_weather", "arguments": ""},
                    }
                ]
            },
        ),
        chunk(0, {"tool_calls": [{"index": 0, "function": {"arguments": '{"city":'}}]}),
        chunk(0, {"tool_calls": [{"index": 0, "function": {"arguments": '"Nashville"}'}}]}),
        chunk(0, {}, "tool_calls"),
    ]


def test_without_parallel_tool_calls_a_call_is_a_single_consolidated_delta() -> None:
    assert deltas(turn(tool_call('{"city":', '"Nashville"}')), whole_calls=True) == [
        {
            "tool_calls": [
                {
                    "index": 0,
                    "id": "call_t",
                    "type": "function",
                    "function": {"name": "get_weather", "arguments": '{"city":"Nashville"}'},
                }
            ]
        }
    ]


def test_a_whole_answer_with_calls_has_null_content_and_its_tool_calls() -> None:
    assert message(turn(tool_call("{}"))) == {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "tool_calls": [
            {"id": "call_t", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
        ],
    }


# --- Streaming errors -----------------------------------------------------------------------------


def test_a_failure_in_the_middle_is_one_error_frame_and_done_and_nothing_else() -> None:
    frames = stream_events(failed_turn(text_item("Hel"), usage()), include_usage=True)
    assert frames[2:] == [
        {
            "error": {
                "message": CRASH.message,
                "type": "timeout_error",
                "param": None,
                "code": "request_timeout",
            }
        },
        "[DONE]",
    ]


def test_a_failure_before_the_first_token_can_still_be_a_plain_status() -> None:
    answer = renderer(stream=True)
    answer.feed(failed_turn())
    assert answer.ended
    assert not answer.visible
    assert answer.failure == CRASH


def test_a_failed_turn_has_no_whole_answer() -> None:
    answer = renderer()
    answer.feed(failed_turn(text_item("Hel")))
    with pytest.raises(Fault, match="too long"):
        answer.result()
    assert answer.finish_reasons == ()


def test_after_the_end_nothing_is_rendered() -> None:
    answer = renderer(stream=True)
    answer.feed(HELLO)
    assert answer.feed(HELLO) == b""
    assert answer.finish_reasons == ("stop",)


# --- Error envelope and parameters ----------------------------------------------------------------


@pytest.mark.parametrize("absent", [None, []])
def test_missing_messages_are_400_with_param_messages(absent: Any) -> None:
    fault = refusal_of(messages=absent)
    assert (status_of(fault, "chat"), fault.param) == (400, "messages")


@pytest.mark.parametrize("n", [0, -1, 6, 10**30, True, 1.5, "2"])
def test_n_outside_1_to_the_maximum_is_400_with_param_n(n: Any) -> None:
    fault = refusal_of(n=n)
    assert (fault.kind, fault.param) == (FaultKind.INVALID_REQUEST, "n")


def test_n_defaults_to_1_and_goes_up_to_5() -> None:
    assert ask().choices == 1
    assert ask(n=5).choices == ask(n=5).turn.choices == 5


def test_a_model_that_is_not_accepted_is_404() -> None:
    assert status_of(refusal_of(model="gpt-3"), "chat") == 404


@pytest.mark.parametrize("name", ["codex-5", "codev-5-low", "gpt-4o", "GPT-5.5", "codex-5-high:model"])
def test_the_name_asked_for_is_the_name_answered(name: str) -> None:
    assert ask(model=name).model_asked == name


@pytest.mark.parametrize("effort", ["minimal", "low", "medium", "high"])
def test_reasoning_effort_is_taken_from_both_fields(effort: str) -> None:
    assert ask(reasoning={"effort": effort}).turn.effort == effort
    assert ask(reasoning_effort=effort).turn.effort == effort


def test_the_default_effort_is_implied_by_the_model() -> None:
    assert ask(model="codex-5-minimal").turn.effort == "minimal"
    assert ask(model="codex-5").turn.effort is None


@pytest.mark.parametrize(
    "field", [{"logprobs": True}, {"logprobs": 1}, {"top_logprobs": 0}, {"top_logprobs": 2}]
)
def test_positive_logprobs_and_any_top_logprobs_are_refused_by_name(field: dict[str, Any]) -> None:
    assert refusal_of(**field).param == next(iter(field))


@pytest.mark.parametrize("kind", ["json_object", "json_schema"])
def test_response_formats_other_than_text_are_refused_by_name(kind: str) -> None:
    schema = {"name": "x", "schema": {"type": "object"}}
    assert refusal_of(response_format={"type": kind, "json_schema": schema}).param == "response_format"


def test_the_response_format_text_is_accepted() -> None:
    assert ask(response_format={"type": "text"}).turn.output_schema is None


def test_seed_is_validated_and_sampling_for_agents_that_take_it() -> None:
    assert ask(seed=7).turn.sampling == {"seed": 7}
    assert refusal_of(seed="7").param == "seed"


def test_include_usage_is_asked_for_in_stream_options() -> None:
    parsed = ask(stream=True, stream_options={"include_usage": True})
    assert (parsed.stream, parsed.include_usage) == (True, True)
    assert ask(stream=True).include_usage is False


def test_reasoning_is_beside_the_content_not_in_it() -> None:
    told = message(turn(reasoning_item("Weather, then."), text_item("Sunny.")))
    assert (told["content"], told["reasoning_content"]) == ("Sunny.", "Weather, then.")
