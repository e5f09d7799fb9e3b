from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    ReasoningDelta,
    Stop,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import Activity, Message, Reasoning, ToolCall
from codex_proxy.surfaces.ollama.embeddings import EmbeddingsRequest, embed_body, embeddings_body
from codex_proxy.surfaces.ollama.render import TurnTimes, fill_in_body
from tests.surfaces.ollama.asking import HEAD, lines, renderer, stream_events, whole

TEXT_EVENTS: list[Event] = [
    TurnStarted(),
    ItemStarted(Reasoning("r")),
    ReasoningDelta("r", "Hm."),
    ItemEnded("r"),
    ItemStarted(Message("m")),
    TextDelta("m", "Hel"),
    TextDelta("m", "lo"),
    ItemEnded("m"),
    UsageReported(Usage(input=11, output=7)),
    TurnEnded(Stop.STOP),
]
CALL_EVENTS: list[Event] = [
    TurnStarted(),
    ItemStarted(ToolCall("c", "call_1", "get_weather")),
    ArgumentsDelta("c", '{"city": '),
    ArgumentsDelta("c", '"Bern"}'),
    ItemEnded("c"),
    TurnEnded(Stop.TOOL_CALLS),
]
FAILED = Failure(kind=FaultKind.AGENT_CRASHED, message="The agent has crashed.")


def test_each_delta_of_a_chat_is_a_line_and_the_last_line_has_counts_and_times() -> None:
    times = TurnTimes(total=100, load=10, prompt=20, answer=70)
    assert stream_events(TEXT_EVENTS, times=lambda: times) == [
        {**HEAD, "message": {"role": "assistant", "content": "", "thinking": "Hm."}, "done": False},
        {**HEAD, "message": {"role": "assistant", "content": "Hel"}, "done": False},
        {**HEAD, "message": {"role": "assistant", "content": "lo"}, "done": False},
        {
            **HEAD,
            "message": {"role": "assistant", "content": ""},
            "done": True,
            "done_reason": "stop",
            "total_duration": 100,
            "load_duration": 10,
            "prompt_eval_count": 11,
            "prompt_eval_duration": 20,
            "eval_count": 7,
            "eval_duration": 70,
        },
    ]


@pytest.mark.parametrize("thinking", [False, True])
def test_what_the_agent_does_is_a_thought_where_thoughts_are_wanted(thinking: bool) -> None:
    events = [TEXT_EVENTS[0], ItemStarted(Activity("a", "command", "ls -l")), *TEXT_EVENTS[1:]]
    thoughts = "".join(
        line["message"].get("thinking", "") for line in stream_events(events, thinking=thinking)
    )
    assert ("ls -l" in thoughts, "Hm." in thoughts) == (thinking, thinking)


def test_a_completion_has_its_text_in_response() -> None:
    lines = stream_events(TEXT_EVENTS, form="generate")
    assert [line["response"] for line in lines] == ["", "Hel", "lo", ""]
    assert lines[0]["thinking"] == "Hm."
    assert all("message" not in line for line in lines)


def test_a_client_that_wants_no_thinking_gets_none() -> None:
    assert "thinking" not in whole(TEXT_EVENTS, thinking=False)["message"]


def test_a_call_is_one_line_with_its_arguments_as_an_object() -> None:
    first, last = stream_events(CALL_EVENTS)
    function = {"index": 0, "name": "get_weather", "arguments": {"city": "Bern"}}
    assert first["message"]["tool_calls"] == [{"id": "call_1", "function": function}]
    assert (last["done"], last["done_reason"]) == (True, "stop")


def test_the_client_gets_its_own_name_of_a_tool() -> None:
    answer = whole(CALL_EVENTS, client_names={"get_weather": "get.weather"})
    assert answer["message"]["tool_calls"][0]["function"]["name"] == "get.weather"


def test_a_call_that_is_cut_in_its_arguments_is_left_out() -> None:
    cut = [*CALL_EVENTS[:3], ItemEnded("c", "incomplete"), TurnEnded(Stop.LENGTH)]
    answer = whole(cut)
    assert "tool_calls" not in answer["message"]
    assert answer["done_reason"] == "length"


def test_arguments_that_are_no_object_are_sent_as_the_text_that_they_are() -> None:
    events = [*CALL_EVENTS[:2], ArgumentsDelta("c", "[1]"), ItemEnded("c"), TurnEnded(Stop.TOOL_CALLS)]
    assert whole(events)["message"]["tool_calls"][0]["function"]["arguments"] == {"input": "[1]"}


def test_a_failure_in_the_middle_of_a_stream_is_its_last_line() -> None:
    last = stream_events([*TEXT_EVENTS[:6], TurnEnded(Stop.FAILED, failure=FAILED)])[-1]
    assert last == {"error": "The agent has crashed."}


def test_a_failed_turn_has_no_whole_answer() -> None:
    answer = renderer()
    answer.feed([TurnStarted(), TurnEnded(Stop.FAILED, failure=FAILED)])
    assert not answer.visible
    with pytest.raises(Fault):
        answer.result()


def test_an_interrupted_answer_keeps_what_was_written() -> None:
    last = stream_events([*TEXT_EVENTS[:6], TurnEnded(Stop.INTERRUPTED, empty="cancelled")])[-1]
    assert (last["done"], last["done_reason"], last["x-codex-empty"]) == (True, "stop", "cancelled")


@pytest.mark.parametrize("form", ["chat", "generate"])
def test_the_last_line_says_why_an_answer_is_empty(form: str) -> None:
    events: list[Event] = [TurnStarted(), TurnEnded(Stop.STOP, empty="reasoning-only")]
    assert stream_events(events, form=form)[-1]["x-codex-empty"] == "reasoning-only"
    assert "x-codex-empty" not in stream_events(TEXT_EVENTS, form=form)[-1]


def test_characters_that_end_a_line_elsewhere_are_escaped() -> None:
    text = "a\u2028b\u2029c\x85d"
    events: list[Event] = [
        ItemStarted(Message("m")),
        TextDelta("m", text),
        ItemEnded("m"),
        TurnEnded(Stop.STOP),
    ]
    assert stream_events(events)[0]["message"]["content"] == text
    long_answer = b"".join(renderer(stream=True).pieces(events))  # as a long one is sent
    assert lines(long_answer)[0]["message"]["content"] == text


def test_tokens_that_nobody_reported_are_estimated() -> None:
    events = [each for each in TEXT_EVENTS if not isinstance(each, UsageReported)]
    answer = whole(events, prompt_tokens=lambda: 42)
    assert answer["prompt_eval_count"] == 42
    assert answer["eval_count"] >= 1


def test_silence_is_a_line_without_text() -> None:
    assert renderer(stream=True).empty_line().endswith(b'"content":""},"done":false}\n')


OF_TWO = EmbeddingsRequest(b"", 2, "m", "m", ())
CONVERTERS: list[Callable[[bytes], bytes]] = [
    lambda answer: fill_in_body(answer, "m", "", TurnTimes()),
    lambda answer: embed_body(answer, OF_TWO, TurnTimes()),
    embeddings_body,
]


@pytest.mark.parametrize("indexes", [[0], [0, 1, 2], [0, 0], [1, 2], []])
def test_an_answer_without_one_embedding_for_each_text_is_the_model_servers_fault(indexes: list[int]) -> None:
    data = [{"index": index, "embedding": [0.5]} for index in indexes]
    with pytest.raises(Fault, match="one embedding for each text"):
        embed_body(json.dumps({"data": data}).encode(), OF_TWO, TurnTimes())


@pytest.mark.parametrize("answer", [b"", b"[]", b'{"data":1,"choices":[]}', b"[" * 2000 + b"]" * 2000])
@pytest.mark.parametrize("convert", CONVERTERS, ids=["fill-in", "embed", "embeddings"])
def test_an_answer_of_a_model_server_that_is_none_is_its_fault(
    convert: Callable[[bytes], bytes], answer: bytes
) -> None:
    with pytest.raises(Fault) as fault:
        convert(answer)
    assert fault.value.failure.kind == FaultKind.UPSTREAM_ERROR
