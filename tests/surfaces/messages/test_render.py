"""What each event becomes in an answer of Anthropic's."""

from __future__ import annotations

import base64
import json
import zlib
from typing import Any

import msgspec
import pytest

from codex_proxy.core.events import (
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    RawItem,
    ReasoningDelta,
    RefusalDelta,
    StepCompleted,
    Stop,
    TextDelta,
    TurnEnded,
    TurnStarted,
    Usage,
    UsageReported,
)
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import Activity, McpCall, Message, Reasoning, ToolCall
from codex_proxy.surfaces.messages.state import pack_items, unpack_items
from codex_proxy.surfaces.requests.options import input_of
from tests.surfaces.chat.turns import activity, reasoning_item, text_item, tool_call
from tests.surfaces.messages.answering import (
    IDENTITY,
    REQUEST,
    content,
    frames,
    renderer,
    stream_events,
    types,
    whole,
)

THOUGHT = b'{"type":"reasoning","id":"rs_1","summary":[],"encrypted_content":"gAAA"}'
DOWN = Failure(kind=FaultKind.UPSTREAM_DISCONNECTED, message="The model's answer broke off.")


def turn(*parts: list[Event] | Event, stop: str = Stop.STOP, **more: Any) -> list[Event]:
    events: list[Event] = [TurnStarted()]
    for part in parts:
        events += part if isinstance(part, list) else [part]
    return [*events, TurnEnded(stop, **more)]


def raw(item: bytes = THOUGHT) -> RawItem:
    return RawItem("reasoning", item)


# --- text, thinking, calls ------------------------------------------------------------------------


def test_a_text_is_reported_in_the_order_that_sdks_want() -> None:
    assert types(turn(text_item("Hel", "lo"))) == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]


def test_the_first_event_names_the_model_as_it_was_asked_for_and_has_no_usage_of_zero() -> None:
    message = stream_events(turn(text_item("x")))[0]["message"]
    assert (message["id"], message["model"], message["content"]) == ("msg_1", "codex-5", [])
    assert message["usage"]["input_tokens"] == 1
    assert (
        stream_events(turn(text_item("x")), prompt_tokens=lambda: 77)[0]["message"]["usage"]["input_tokens"]
        == 77
    )


def test_several_messages_are_blocks_of_their_own() -> None:
    assert content(turn(text_item("One."), text_item("Two.", id="n"))) == [
        {"type": "text", "text": "One."},
        {"type": "text", "text": "Two."},
    ]


def test_a_refusal_is_text_that_the_user_reads() -> None:
    answer = whole(turn(ItemStarted(Message("m")), RefusalDelta("m", "No."), ItemEnded("m")))
    assert answer["content"] == [{"type": "text", "text": "No."}]
    assert answer["stop_reason"] == "end_turn"


def test_a_message_without_a_word_is_no_block() -> None:
    assert content(turn(ItemStarted(Message("m")), ItemEnded("m"))) == []


def test_parts_of_a_summary_are_one_thinking_block_with_one_signature() -> None:
    events = turn(reasoning_item("I look.", "I see."), text_item("So."))
    assert content(events, thinking=True) == [
        {"type": "thinking", "thinking": "I look.\n\nI see.", "signature": "cxp1"},
        {"type": "text", "text": "So."},
    ]
    signed = [
        frame for frame in stream_events(events, thinking=True) if "signature" in str(frame.get("delta"))
    ]
    assert len(signed) == 1


def test_who_does_not_want_thinking_gets_none() -> None:
    assert content(turn(reasoning_item("Hm."), text_item("So."))) == [{"type": "text", "text": "So."}]


def test_raw_reasoning_is_not_for_clients() -> None:
    events = turn(ItemStarted(Reasoning("r")), ReasoningDelta("r", "secret", 0, "raw"), ItemEnded("r"))
    assert content(events, thinking=True) == []


def test_what_comes_while_a_block_is_open_waits_until_it_is_closed() -> None:
    events = turn(
        [ItemStarted(Message("a")), TextDelta("a", "1"), ItemStarted(Message("b")), TextDelta("b", "3")],
        [ItemStarted(Message("c")), TextDelta("c", "5"), ItemEnded("c")],
        [TextDelta("a", "2"), ItemEnded("a"), TextDelta("b", "4"), ItemEnded("b")],
    )
    assert [block["text"] for block in content(events)] == ["12", "34", "5"]


def test_calls_come_behind_all_else_each_in_one_piece() -> None:
    events = turn(
        tool_call('{"city":', ' "Rome"}'), text_item("I look."), tool_call("", id="u"), stop=Stop.TOOL_CALLS
    )
    answer = whole(events)
    assert [block["type"] for block in answer["content"]] == ["text", "tool_use", "tool_use"]
    assert answer["content"][1] == {
        "type": "tool_use",
        "id": "call_t",
        "name": "get_weather",
        "input": {"city": "Rome"},
    }
    assert answer["content"][2]["input"] == {}
    assert answer["stop_reason"] == "tool_use"


def test_a_call_has_the_name_that_the_client_gave_its_tool() -> None:
    (block,) = content(
        turn(tool_call("{}"), stop=Stop.TOOL_CALLS), client_names={"get_weather": "get.weather"}
    )
    assert block["name"] == "get.weather"


@pytest.mark.parametrize("arguments", ["{", "[1]", '"x"', "NaN", '{"a":NaN}', "{}{}", '{"a":"\ud800"'])
def test_arguments_that_are_no_object_are_reported_in_one_so_that_the_tool_says_what_is_wrong(
    arguments: str,
) -> None:
    (block,) = content(turn(tool_call(arguments), stop=Stop.TOOL_CALLS))
    assert list(block["input"]) == ["input"]
    assert input_of(arguments) is None


@pytest.mark.parametrize("half", ["\\ud83d", "\\uDE00", "\ud83d"])
def test_half_of_a_pair_in_arguments_becomes_the_replacement_character(half: str) -> None:
    (block,) = content(turn(tool_call(f'{{"a":"{half}."}}'), stop=Stop.TOOL_CALLS))
    assert block["input"] == {"a": "\ufffd."}


def test_numbers_of_any_size_are_arguments() -> None:
    assert input_of('{"a": 1%s}' % ("0" * 400)) is not None


@pytest.mark.parametrize("arguments", ['{"city": "Ro', ""])
def test_a_call_that_was_cut_off_in_its_arguments_is_none(arguments: str) -> None:
    cut: list[Event] = [
        ItemStarted(ToolCall("t", "call_t", "get_weather")),
        ArgumentsDelta("t", arguments),
        ItemEnded("t", "incomplete"),
    ]
    answer = whole(turn(cut, stop=Stop.LENGTH))
    assert (answer["content"], answer["stop_reason"]) == ([], "max_tokens")


# --- what the agent does --------------------------------------------------------------------------


def test_what_the_agent_does_is_thinking_that_no_model_reads_again() -> None:
    mcp: list[Event] = [ItemStarted(McpCall("q", "call_q", "files", "read")), ItemEnded("q")]
    blocks = content(turn(activity("ls -l"), mcp, text_item("Done.")), thinking=True)
    assert [block.get("thinking") for block in blocks] == ["[command] ls -l", "[mcp_call] files.read", None]
    assert content(turn(activity("ls -l"), text_item("Done."))) == [{"type": "text", "text": "Done."}]
    assert len(content(turn(activity("ls"), text_item("Done.")), thinking=True, show_activity=False)) == 1


def test_a_search_that_was_asked_for_is_shown_as_anthropic_shows_its_own() -> None:
    search: list[Event] = [ItemStarted(Activity("w", "web_search", 'say "hi"')), ItemEnded("w")]
    used, found, _ = content(turn(search, text_item("It says.")), web_search=True)
    assert (used["type"], used["name"], used["input"]) == (
        "server_tool_use",
        "web_search",
        {"query": 'say "hi"'},
    )
    assert found == {"type": "web_search_tool_result", "tool_use_id": used["id"], "content": []}
    assert used["id"].startswith("srvtoolu_")
    assert len(content(turn(search, text_item("It says.")))) == 1


# --- the model's state ----------------------------------------------------------------------------


def test_the_models_state_is_one_block_before_the_calls() -> None:
    call = b'{"type":"function_call","call_id":"call_t","name":"get_weather","arguments":"{}"}'
    events = turn(
        text_item("I look."), raw(), raw(call), StepCompleted(), tool_call("{}"), stop=Stop.TOOL_CALLS
    )
    blocks = content(events, state_identity=IDENTITY)
    assert [block["type"] for block in blocks] == ["text", "redacted_thinking", "tool_use"]
    assert unpack_items(blocks[1]["data"], IDENTITY) == [json.loads(THOUGHT), "call_t"]


def test_behind_a_last_text_there_is_no_state_since_claude_code_prints_the_last_block() -> None:
    blocks = content(turn(raw(), text_item("So.")), state_identity=IDENTITY)
    assert [block["type"] for block in blocks] == ["text"]


def test_calls_that_the_client_does_not_know_of_come_before_the_text_after_them() -> None:
    call = b'{"type":"function_call","call_id":"own","name":"mcp__a__b","arguments":"{}"}'
    output = RawItem("function_call_output", b'{"type":"function_call_output","call_id":"own","output":"x"}')
    blocks = content(
        turn(text_item("I look.", "a"), raw(), RawItem("function_call", call), output, text_item("So.", "b")),
        state_identity=IDENTITY,
    )
    assert [block["type"] for block in blocks] == ["text", "redacted_thinking", "text"]
    assert len(unpack_items(blocks[1]["data"], IDENTITY)) == 3


def test_where_the_client_has_everything_already_there_is_no_state() -> None:
    message = RawItem("message", b'{"type":"message","role":"assistant","content":[]}')
    assert len(content(turn(message, text_item("So.")), state_identity=IDENTITY)) == 1
    assert len(content(turn(raw(), text_item("So.")))) == 1


def test_state_has_no_more_of_an_item_than_the_model_gave() -> None:
    noted = msgspec.json.encode({**json.loads(THOUGHT), "internal_note": "x", "status": None})
    data = pack_items([noted], IDENTITY)
    assert data is not None
    assert unpack_items(data, IDENTITY) == [json.loads(THOUGHT)]


@pytest.mark.parametrize("other", ["codex-app-server/gpt-5.4", "", "codex-app-server/gpt-5.5 "])
def test_state_of_another_model_is_ignored(other: str) -> None:
    data = pack_items([THOUGHT], IDENTITY)
    assert data is not None
    assert unpack_items(data, other) == []


def test_damaged_state_is_none_wherever_it_is_cut_or_changed() -> None:
    data = pack_items([THOUGHT], IDENTITY)
    assert data is not None
    for place in range(len(data)):
        assert unpack_items(data[:place], IDENTITY) == []
        changed = data[:place] + ("A" if data[place] != "A" else "B") + data[place + 1 :]
        assert unpack_items(changed, IDENTITY) in ([], [json.loads(THOUGHT)])


def test_elements_of_state_that_no_item_can_be_are_left_out() -> None:
    started = pack_items([THOUGHT], IDENTITY)
    assert started is not None
    head = base64.b64decode(started)[:13]
    broken = [{"type": []}, {"type": {}}, {"id": "rs_1"}, {"type": "reasoning", "id": []}, [], None]
    elements = [*broken, json.loads(THOUGHT)]
    data = base64.b64encode(head + zlib.compress(json.dumps(elements).encode())).decode()
    assert unpack_items(data, IDENTITY) == [json.loads(THOUGHT)]


def test_state_does_not_unpack_to_more_than_it_may_be() -> None:
    """A client may send as many blocks as its body holds."""
    started = pack_items([THOUGHT], IDENTITY)
    assert started is not None
    head = base64.b64decode(started)[:13]
    item = [{**json.loads(THOUGHT), "encrypted_content": "A" * 1_000_000}]
    bomb = head + zlib.compress(json.dumps(item).encode(), 9)
    assert unpack_items(base64.b64encode(bomb).decode(), IDENTITY) == []


def test_state_that_packs_very_well_comes_back_too() -> None:
    item = {**json.loads(THOUGHT), "encrypted_content": "A" * 1_000_000}
    data = pack_items([json.dumps(item).encode()], IDENTITY)
    assert data is not None
    assert unpack_items(data, IDENTITY) == [item]


def test_an_item_that_is_no_json_is_no_state() -> None:
    assert pack_items([THOUGHT, b"{"], IDENTITY) is None
    assert pack_items([b'["reasoning"]'], IDENTITY) is None


# --- how it ends ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        (Stop.STOP, "end_turn"),
        (Stop.LENGTH, "max_tokens"),
        (Stop.CONTENT_FILTER, "refusal"),
        (Stop.TOOL_CALLS, "end_turn"),
        ("of_tomorrow", "end_turn"),
    ],
)
def test_each_end_has_a_reason_that_clients_know(stop: str, reason: str) -> None:
    assert whole(turn(text_item("x"), stop=stop))["stop_reason"] == reason


def test_calls_are_the_reason_whatever_the_agent_says() -> None:
    assert whole(turn(tool_call("{}"), stop=Stop.STOP))["stop_reason"] == "tool_use"
    assert whole(turn(tool_call("{}"), stop="of_tomorrow"))["stop_reason"] == "tool_use"


def test_a_stop_sequence_is_reported() -> None:
    answer = whole(turn(text_item("x"), stop_sequence="END"))
    assert (answer["stop_reason"], answer["stop_sequence"]) == ("stop_sequence", "END")


def test_usage_has_the_cached_tokens_and_those_of_the_thinking() -> None:
    usage = UsageReported(Usage(input=100, cached=80, output=7, reasoning=3))
    answer = whole(turn(text_item("x"), usage))
    assert answer["usage"] == {
        "input_tokens": 20,
        "output_tokens": 7,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 80,
        "output_tokens_details": {"thinking_tokens": 3},
    }
    assert stream_events(turn(text_item("x"), usage))[-2]["usage"] == answer["usage"]


def test_usage_that_is_not_reported_is_an_estimate() -> None:
    usage = whole(turn(text_item("x" * 30)), prompt_tokens=lambda: 50)["usage"]
    assert usage["input_tokens"] == 50
    assert usage["output_tokens"] > 1
    assert whole(turn(text_item("word " * 30)), max_tokens=3)["usage"]["output_tokens"] == 3


# --- failures -------------------------------------------------------------------------------------


def test_a_failure_after_the_first_byte_ends_the_stream_as_an_error() -> None:
    events = [*turn(text_item("Hal"))[:-1], TurnEnded(Stop.FAILED, failure=DOWN)]
    last = stream_events(events)[-1]
    assert last == {
        "type": "error",
        "error": {"type": "api_error", "message": DOWN.message},
        "request_id": REQUEST,
    }
    assert "message_stop" not in types(events)
    assert "message_delta" not in types(events)


def test_a_failure_before_it_can_be_a_status() -> None:
    answer = renderer(stream=True)
    answer.feed([TurnStarted(), ItemStarted(ToolCall("t", "call_t", "x")), TurnEnded("failed", failure=DOWN)])
    assert answer.failure == DOWN
    assert not answer.visible


def test_calls_of_a_turn_that_fails_are_not_sent() -> None:
    events = [*turn(text_item("x"), tool_call("{}"))[:-1], TurnEnded(Stop.FAILED, failure=DOWN)]
    assert "tool_use" not in str(stream_events(events))


def test_an_interrupted_turn_keeps_what_was_written() -> None:
    events = turn(text_item("x"), stop=Stop.INTERRUPTED)
    assert types(events)[-1] == "message_stop"
    assert (whole(events)["content"][0]["text"], whole(events)["stop_reason"]) == ("x", "end_turn")


def test_opening_a_silent_stream_sends_its_beginning_once() -> None:
    answer = renderer(stream=True)
    assert [frame["type"] for frame in frames(answer.open())] == ["message_start"]
    assert answer.open() == b""
    assert "message_start" not in [frame["type"] for frame in frames(answer.feed(turn(text_item("x"))))]
    assert renderer().open() == b""
