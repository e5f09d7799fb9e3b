"""The sequences of a Responses stream, kind by kind, and what each end looks like."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    RawItem,
    ReasoningDelta,
    RefusalDelta,
    StepCompleted,
    TextDelta,
    TurnEnded,
    TurnStarted,
)
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.core.items import Activity, ClientName, Message, Reasoning, ToolCall
from codex_proxy.surfaces.responses.events import payload_of
from tests.surfaces.chat.turns import (
    activity,
    failed_turn,
    reasoning_item,
    step,
    text_item,
    tool_call,
    turn,
    usage,
)
from tests.surfaces.responses.answering import (
    CREATED,
    ENDED,
    ID,
    fold,
    output,
    payloads,
    renderer,
    stream_events,
    types,
    whole,
)
from tests.surfaces.responses.asking import ask, function_tool

BEGIN = ["response.created", "response.in_progress"]
EVERY_KEY = {
    "id", "object", "created_at", "completed_at", "status", "incomplete_details", "model",
    "previous_response_id", "instructions", "output", "error", "tools", "tool_choice", "truncation",
    "parallel_tool_calls", "text", "top_p", "presence_penalty", "frequency_penalty", "top_logprobs",
    "temperature", "reasoning", "usage", "max_output_tokens", "max_tool_calls", "store", "background",
    "service_tier", "metadata", "safety_identifier", "prompt_cache_key",
}  # fmt: skip


def custom(*texts: str) -> list[Event]:
    return [
        ItemStarted(ToolCall("c", "call_c", "shell", "custom")),
        *[ArgumentsDelta("c", text) for text in texts],
        ItemEnded("c"),
    ]


def refusal_events(*texts: str) -> list[Event]:
    return [ItemStarted(Message("m")), *[RefusalDelta("m", text) for text in texts], ItemEnded("m")]


def raw_reasoning(id: str = "r", content: str | None = "gAAAA") -> list[Event]:
    raw: dict[str, Any] = {"type": "reasoning", "id": id, "summary": [], "encrypted_content": content}
    return [RawItem("reasoning", json.dumps(raw).encode())]


# --- sequences ------------------------------------------------------------------------------------


def test_a_text_is_item_part_deltas_text_part_item() -> None:
    assert types(turn(text_item("Hel", "lo!"))) == [
        *BEGIN,
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_a_text_delta_says_to_the_last_key_where_it_belongs() -> None:
    delta = stream_events(turn(text_item("Hel", "lo!")))[4]
    assert delta == {
        "type": "response.output_text.delta",
        "item_id": "msg_1",
        "output_index": 0,
        "content_index": 0,
        "delta": "Hel",
        "logprobs": [],
        "sequence_number": 4,
    }


def test_a_message_begins_empty_and_ends_whole() -> None:
    stream = stream_events(turn(text_item("Hello!")))
    assert stream[2]["item"] == {
        "type": "message",
        "id": "msg_1",
        "status": "in_progress",
        "role": "assistant",
        "content": [],
    }
    part = {"type": "output_text", "text": "Hello!", "annotations": [], "logprobs": []}
    assert stream[-2]["item"] == {**stream[2]["item"], "status": "completed", "content": [part]}


def test_a_refusal_has_events_of_its_own() -> None:
    stream = stream_events(turn(refusal_events("I ", "won't.")))
    assert [payload["type"] for payload in stream[2:-1]] == [
        "response.output_item.added",
        "response.content_part.added",
        "response.refusal.delta",
        "response.refusal.delta",
        "response.refusal.done",
        "response.content_part.done",
        "response.output_item.done",
    ]
    assert stream[-1]["response"]["output"][0]["content"] == [{"type": "refusal", "refusal": "I won't."}]


def test_reasoning_is_a_summary_of_parts() -> None:
    stream = stream_events(turn(reasoning_item("First", "Second"), text_item("x")))
    assert [payload["type"] for payload in stream[2:11]] == [
        "response.output_item.added",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
        "response.reasoning_summary_part.added",
        "response.reasoning_summary_text.delta",
        "response.reasoning_summary_text.done",
        "response.reasoning_summary_part.done",
    ]
    assert [payload.get("summary_index") for payload in stream[3:11]] == [0, 0, 0, 0, 1, 1, 1, 1]
    reasoning = stream[-1]["response"]["output"][0]
    assert [part["text"] for part in reasoning["summary"]] == ["First", "Second"]
    assert not {"content", "encrypted_content"} & set(reasoning)


def test_raw_reasoning_is_not_for_clients() -> None:
    events: list[Event] = [
        ItemStarted(Reasoning("r")),
        ReasoningDelta("r", "secret", 0, "raw"),
        ItemEnded("r"),
    ]
    assert "secret" not in json.dumps(stream_events(turn(events, text_item("x"))))


def test_a_call_has_the_name_and_namespace_by_which_the_client_knows_the_tool() -> None:
    called = output(turn(tool_call("{}")), client_names={"get_weather": ClientName("weather", "here")})[0]
    assert (called["name"], called["namespace"]) == ("weather", "here")


def test_a_function_call_streams_its_arguments_as_they_come() -> None:
    stream = stream_events(turn(tool_call('{"city":', '"Nashville"}'), stop="tool_calls"))
    assert [payload["type"] for payload in stream[2:]] == [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert stream[2]["item"] == {
        "type": "function_call",
        "id": "fc_1",
        "status": "in_progress",
        "call_id": "call_t",
        "name": "get_weather",
        "arguments": "",
    }
    done = stream[5]
    assert (done["name"], done["arguments"]) == ("get_weather", '{"city":"Nashville"}')
    assert stream[-2]["item"]["arguments"] == '{"city":"Nashville"}'


def test_a_custom_call_streams_its_input() -> None:
    stream = stream_events(turn(custom("ls ", "-l"), stop="tool_calls"))
    assert [payload["type"] for payload in stream[2:-1]] == [
        "response.output_item.added",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.delta",
        "response.custom_tool_call_input.done",
        "response.output_item.done",
    ]
    assert stream[-2]["item"]["input"] == "ls -l"


def test_parallel_calls_go_out_one_after_the_other() -> None:
    events: list[Event] = [
        ItemStarted(ToolCall("a", "call_a", "one")),
        ItemStarted(ToolCall("b", "call_b", "two")),
        ArgumentsDelta("b", "{"),
        ArgumentsDelta("a", "[1"),
        ArgumentsDelta("b", "}"),
        ItemEnded("b"),
        ArgumentsDelta("a", "]"),
        ItemEnded("a"),
    ]
    stream = stream_events(turn(events, stop="tool_calls"))
    indexes = [payload["output_index"] for payload in stream if "arguments.delta" in payload["type"]]
    assert indexes == [0, 0, 1, 1]
    assert [call["arguments"] for call in fold(stream)] == ["[1]", "{}"]


def test_several_messages_are_several_items_and_keep_their_phase() -> None:
    first: list[Event] = [
        ItemStarted(Message("a", phase="commentary")),
        TextDelta("a", "Hm."),
        ItemEnded("a"),
    ]
    items = output(turn(first, text_item("So.")))
    assert [item["content"][0]["text"] for item in items] == ["Hm.", "So."]
    assert [item.get("phase", "absent") for item in items] == ["commentary", "absent"]


def test_text_that_follows_a_refusal_is_another_part() -> None:
    events: list[Event] = [
        ItemStarted(Message("m")), TextDelta("m", "a"), RefusalDelta("m", "b"), TextDelta("m", "c"), ItemEnded("m"),
    ]  # fmt: skip
    assert [part["type"] for part in output(turn(events))[0]["content"]] == [
        "output_text",
        "refusal",
        "output_text",
    ]


def test_a_message_that_says_nothing_is_not_shown_beside_calls() -> None:
    empty: list[Event] = [ItemStarted(Message("m")), ItemEnded("m")]
    assert [item["type"] for item in output(turn(empty, tool_call("{}")))] == ["function_call"]


def test_an_answer_without_any_word_is_one_empty_message() -> None:
    (message,) = output(turn())
    assert message["content"] == [{"type": "output_text", "text": "", "annotations": [], "logprobs": []}]


def test_long_ids_of_a_provider_are_kept_and_short_or_repeated_ones_are_not() -> None:
    own = "msg_" + "0" * 48
    ids = [
        item["id"]
        for item in output(
            turn(text_item("a", id=own), text_item("b", id="msg_1"), text_item("c", id=own + "~2"))
        )
    ]
    assert ids == [own, "msg_1", "msg_2"]
    assert output(turn(tool_call("{}", id=own)))[0]["id"] == "fc_1"


# --- activity -------------------------------------------------------------------------------------


def test_activity_is_a_line_of_reasoning_each() -> None:
    items = output(turn(activity("ls  -l\n", id="a"), activity("pwd", id="b"), text_item("Done.")))
    assert [item["type"] for item in items] == ["reasoning", "reasoning", "message"]
    assert items[0]["summary"] == [{"type": "summary_text", "text": "[command] ls -l"}]


def test_activity_goes_out_when_it_begins() -> None:
    answer = renderer(stream=True)
    sent = payloads(answer.feed([TurnStarted(), ItemStarted(Activity("a", "command", "sleep 60"))]))
    assert sent[-1]["delta"] == "[command] sleep 60"


def test_activity_can_be_switched_off() -> None:
    assert [item["type"] for item in output(turn(activity("ls"), text_item("x")), activity="off")] == [
        "message"
    ]


def test_activity_has_items_of_a_type_of_this_server_only_where_they_were_asked_for() -> None:
    events: list[Event] = [
        ItemStarted(Activity("a", "command", "ls")), OutputDelta("a", "one\n"), OutputDelta("a", "two"),
        ItemEnded("a", "failed"),
    ]  # fmt: skip
    stream = stream_events(turn(events, text_item("x")), activity="items")
    assert [payload["type"] for payload in stream[2:5]] == [
        "response.output_item.added",
        "codex:activity.output.delta",
        "codex:activity.output.delta",
    ]
    assert stream[-1]["response"]["output"][0] == {
        "type": "codex:activity",
        "id": "act_1",
        "status": "failed",
        "kind": "command",
        "text": "ls",
        "output": "one\ntwo",
    }
    assert "codex:" not in json.dumps(stream_events(turn(events, text_item("x"))))


# --- encrypted reasoning --------------------------------------------------------------------------


def test_encrypted_reasoning_is_in_its_item_where_the_client_asked_for_it() -> None:
    events = turn(reasoning_item("Hm."), text_item("x"), raw_reasoning(), [StepCompleted()])
    assert output(events, encrypted_reasoning=True)[0]["encrypted_content"] == "gAAAA"
    assert "encrypted_content" not in json.dumps(output(events))


def test_reasoning_that_waits_for_its_content_does_not_hold_text_back() -> None:
    answer = renderer(stream=True, encrypted_reasoning=True)
    early = payloads(answer.feed(turn(reasoning_item("Hm."), text_item("x"))[:-1]))
    assert "response.output_text.delta" in [payload["type"] for payload in early]
    assert "response.output_item.done" not in [payload["type"] for payload in early]
    late = payloads(answer.feed([*raw_reasoning(), *tool_call("{}")]))
    done = [payload["item"]["type"] for payload in late if payload["type"] == "response.output_item.done"]
    assert done == ["reasoning", "message"]


def test_each_reasoning_gets_its_own_content() -> None:
    events = turn(
        reasoning_item("a", id="one"),
        reasoning_item("b", id="two"),
        raw_reasoning("two", "2"),
        raw_reasoning("one", "1"),
    )
    assert [item["encrypted_content"] for item in output(events, encrypted_reasoning=True)] == ["1", "2"]


def test_reasoning_without_a_word_has_an_item_for_its_content() -> None:
    silent: list[Event] = [ItemStarted(Reasoning("r")), ItemEnded("r")]
    items = output(turn(silent, tool_call("{}"), raw_reasoning()), encrypted_reasoning=True)
    assert [item["type"] for item in items] == ["reasoning", "function_call"]
    assert items[0]["encrypted_content"] == "gAAAA"


def test_reasoning_that_the_agent_did_not_show_becomes_an_item_only_where_it_comes_first() -> None:
    first = output(turn(raw_reasoning(), tool_call("{}")), encrypted_reasoning=True)
    assert [item["type"] for item in first] == ["reasoning", "function_call"]
    late = output(turn(text_item("x"), raw_reasoning()), encrypted_reasoning=True)
    assert [item["type"] for item in late] == ["message"]


def test_content_that_never_came_holds_nothing_back_after_its_step() -> None:
    answer = renderer(stream=True, encrypted_reasoning=True)
    answer.feed(turn(reasoning_item("Hm."), text_item("x"), step(None))[:-1])
    late = payloads(answer.feed(tool_call("{}")))
    assert [payload["type"] for payload in late][:2] == ["response.output_item.done"] * 2


def test_in_its_own_step_reasoning_comes_first_again() -> None:
    events = turn(text_item("x"), step(None), raw_reasoning(), tool_call("{}"))
    assert [item["type"] for item in output(events, encrypted_reasoning=True)] == [
        "message",
        "reasoning",
        "function_call",
    ]


# --- the beginning --------------------------------------------------------------------------------


def test_no_event_is_visible_before_the_first_output() -> None:
    answer = renderer(stream=True)
    assert answer.feed([TurnStarted(), ItemStarted(Message("m"))]) == b""
    assert not answer.visible
    assert payloads(answer.feed([TextDelta("m", "x")]))[0]["type"] == "response.created"
    assert answer.visible


def test_a_keepalive_brings_the_beginning_along_once() -> None:
    answer = renderer(stream=True)
    assert [payload["type"] for payload in payloads(answer.open())] == BEGIN
    assert answer.visible
    assert answer.open() == b""
    assert payloads(answer.feed(turn(text_item("x"))[:3]))[0]["type"] == "response.output_item.added"


def test_nothing_comes_after_the_end() -> None:
    answer = renderer(stream=True)
    assert answer.feed(turn(text_item("x")))
    assert answer.ended
    assert answer.feed(turn(text_item("y"))) == b""
    assert answer.open() == b""


def test_created_has_no_output_and_the_two_first_events_are_in_progress() -> None:
    created, in_progress = stream_events(turn(text_item("x")))[:2]
    assert created["response"] == in_progress["response"]
    assert (created["response"]["status"], created["response"]["output"]) == ("in_progress", [])


def test_a_background_response_is_queued_until_its_turn_begins() -> None:
    answer = renderer(stream=True, background=True, keep_frames=True)
    created, in_progress = payloads(answer.open())
    assert (created["response"]["status"], in_progress["response"]["status"]) == ("queued", "in_progress")
    assert answer.snapshot()["status"] == "queued"
    answer.feed([TurnStarted()])
    assert answer.snapshot()["status"] == "in_progress"


def test_polling_shows_the_output_so_far() -> None:
    answer = renderer(background=True)
    answer.feed(turn(text_item("Hel", "lo"))[:3])
    (item,) = answer.snapshot()["output"]
    assert (item["status"], item["content"][0]["text"]) == ("in_progress", "Hel")


# --- ends -----------------------------------------------------------------------------------------


def test_every_key_is_there_always() -> None:
    for events in (turn(text_item("x")), turn(text_item("x"), stop="length"), turn(stop="interrupted")):
        assert set(whole(events)) == EVERY_KEY
    for payload in stream_events(failed_turn(text_item("x"))):
        if "response" in payload:
            assert set(payload["response"]) == EVERY_KEY


def test_a_completed_response_says_when() -> None:
    response = whole(turn(text_item("x"), usage()))
    assert (response["id"], response["object"]) == (ID, "response")
    assert (response["status"], response["created_at"], response["completed_at"]) == (
        "completed",
        CREATED,
        ENDED,
    )


@pytest.mark.parametrize("stop", ["stop", "tool_calls", "function_call", "a_stop_of_tomorrow"])
def test_ordinary_ends_are_completed(stop: str) -> None:
    assert stream_events(turn(text_item("x"), stop=stop))[-1]["response"]["status"] == "completed"


@pytest.mark.parametrize(
    ("stop", "reason"), [("length", "max_output_tokens"), ("content_filter", "content_filter")]
)
def test_a_cut_response_is_incomplete_and_so_is_its_last_item(stop: str, reason: str) -> None:
    last = stream_events(turn(text_item("a", id="a"), text_item("b", id="b"), stop=stop))[-1]
    assert last["type"] == "response.incomplete"
    response = last["response"]
    assert (response["status"], response["incomplete_details"]) == ("incomplete", {"reason": reason})
    assert [item["status"] for item in response["output"]] == ["completed", "incomplete"]
    assert response["completed_at"] is None


def test_a_failure_after_the_first_byte_is_an_error_and_then_a_failed_response() -> None:
    stream = stream_events(failed_turn(text_item("x")))
    assert [payload["type"] for payload in stream[-2:]] == ["error", "response.failed"]
    error = {"code": "request_timeout", "message": "The agent took too long.", "param": None}
    assert stream[-2] == {
        "type": "error",
        **error,
        "error": {"type": "timeout_error", **error},
        "sequence_number": stream[-2]["sequence_number"],
    }
    response = stream[-1]["response"]
    assert (response["status"], response["error"]) == (
        "failed",
        {"code": "server_error", "message": "The agent took too long."},
    )
    assert response["usage"] is None


def test_a_failure_before_the_first_word_can_still_be_a_plain_status() -> None:
    answer = renderer(stream=True)
    answer.feed(failed_turn())
    assert not answer.visible
    assert answer.failure is not None


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (Failure(kind=FaultKind.USAGE_LIMIT_REACHED, message="m"), "rate_limit_exceeded"),
        (Failure(kind=FaultKind.REJECTED_BY_PROVIDER, message="m", code="invalid_prompt"), "invalid_prompt"),
        (Failure(kind=FaultKind.UPSTREAM_ERROR, message="m", code="of_tomorrow"), "server_error"),
    ],
)
def test_the_error_code_of_a_response_is_one_that_openai_knows(failure: Failure, code: str) -> None:
    answer = renderer()
    answer.feed([TurnStarted(), TurnEnded("failed", failure=failure)])
    assert answer.response()["error"]["code"] == code
    with pytest.raises(Fault):
        answer.result()


@pytest.mark.parametrize("taken", [True, False, None])
def test_an_end_that_could_not_be_saved_is_a_failure_in_its_place(taken: bool | None) -> None:
    """`taken`: whether the frames before the end were taken; None: all events come at once."""
    answer = renderer(keep_frames=True)
    *said, ended = turn(text_item("x"))
    failed = TurnEnded.with_failure(Failure(kind=FaultKind.UNAVAILABLE, message="It is not stored."))
    answer.feed([*said, ended, failed] if taken is None else said)
    frames = answer.take_frames() if taken else []
    answer.feed([ended])
    answer.feed([failed])
    frames += answer.take_frames()
    assert [number for number, _ in frames] == [*range(len(frames))]
    kinds = [json.loads(payload_of(frame))["type"] for _, frame in frames]
    assert kinds[-3:] == ["response.output_item.done", "error", "response.failed"]
    assert "response.completed" not in kinds
    final = answer.response()
    assert (final["status"], final["completed_at"]) == ("failed", None)
    assert final["output"][0]["content"][0]["text"] == "x"


def test_a_cancelled_response_never_completes() -> None:
    last = stream_events(turn(text_item("x"), stop="interrupted"))[-1]
    assert (last["type"], last["response"]["status"]) == ("response.incomplete", "cancelled")
    assert (last["response"]["completed_at"], last["response"]["incomplete_details"]) == (None, None)


def test_of_items_that_a_failure_cut_only_the_last_is_incomplete() -> None:
    cut: list[Event] = [
        TurnStarted(), ItemStarted(Message("a")), TextDelta("a", "x"), ItemStarted(Message("b")),
        TextDelta("b", "y"), ItemEnded("a", "incomplete"), ItemEnded("b", "incomplete"), failed_turn()[-1],
    ]  # fmt: skip
    assert [item["status"] for item in stream_events(cut)[-1]["response"]["output"]] == [
        "completed",
        "incomplete",
    ]


def test_a_response_has_one_answer_and_ends_as_that_one_did() -> None:
    events = turn(
        text_item("a", id="a", choice=0),
        text_item("b", id="b", choice=1),
        choice_stops={0: "length", 1: "stop"},
    )
    response = whole(events)
    assert [item["content"][0]["text"] for item in response["output"]] == ["a"]
    assert response["status"] == "incomplete"


# --- usage ----------------------------------------------------------------------------------------


def test_usage_has_its_details() -> None:
    assert whole(turn(text_item("x"), usage()))["usage"] == {
        "input_tokens": 11,
        "input_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
        "output_tokens": 7,
        "output_tokens_details": {"reasoning_tokens": 2},
        "total_tokens": 18,
    }


def test_usage_that_is_not_reported_is_an_estimate_and_says_so() -> None:
    usage = whole(turn(text_item("1" * 30)), prompt_tokens=lambda: 25)["usage"]
    assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (25, 10, 35)
    assert usage["estimated"] is True


def test_an_answer_cut_by_max_tokens_reports_its_limit_and_is_marked() -> None:
    events = turn(text_item("one two"), stop="length", cut=True)
    usage = whole(events, max_tokens=2)["usage"]
    assert (usage["output_tokens"], usage["estimated"]) == (2, True)
    assert whole(turn(text_item("one two three")), max_tokens=2)["usage"]["output_tokens"] == 2


def test_an_estimate_does_not_count_what_is_only_reasoning() -> None:
    assert whole(turn(reasoning_item("y " * 400), text_item("1" * 30)))["usage"]["output_tokens"] == 10


# --- frames ---------------------------------------------------------------------------------------


def test_frames_are_numbered_from_zero_without_gaps() -> None:
    answer = renderer(keep_frames=True)
    answer.feed(turn(text_item("Hel", "lo")))
    frames = answer.take_frames()
    assert [number for number, _ in frames] == list(range(len(frames)))


def test_a_frame_without_its_framing_is_the_event() -> None:
    answer = renderer(keep_frames=True)
    answer.feed(turn(text_item('data: "x"\n\n')))
    kinds = [json.loads(payload_of(frame))["type"] for _, frame in answer.take_frames()]
    assert kinds == types(turn(text_item('data: "x"\n\n')))


# --- what was asked -------------------------------------------------------------------------------


def test_fields_of_the_request_are_in_every_object() -> None:
    echo = ask(
        tools=[function_tool(parameters={"minimum": 10**30})], metadata={"a": "b"}, temperature=0.5
    ).echo
    for payload in stream_events(turn(text_item("x")), echo=echo):
        if "response" in payload:
            assert payload["response"]["tools"][0]["parameters"] == {"minimum": 10**30}
            assert (payload["response"]["metadata"], payload["response"]["temperature"]) == ({"a": "b"}, 0.5)
