"""The proto dialect beside recordings of `codex proto` 0.42.0."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.fake.child import recorded, shape
from tests.fake.proto_child import ask, is_over, proto, texts, user_input

SAME_BYTES = [
    ("text", '[[fake:text say="Hello from the mock model."]]'),
    ("empty", "[[fake:empty]]"),
    ("no_deltas", '[[fake:no_deltas say="All at once."]]'),
    ("refusal", "[[fake:refusal]]"),
    ("usage_missing", '[[fake:usage_missing say="Hello from the mock model."]]'),
    ("err_http_429_usage_limit", "[[fake:usage_limit]]"),
    ("err_http_500", "[[fake:error_500 retries=2]]"),
]


def without_waits(line: str) -> str:
    """The line without the random wait in the text of a retry."""
    return re.sub(r" in \d+ms", " in ?ms", line)


@pytest.mark.parametrize(("name", "prompt"), SAME_BYTES, ids=[name for name, _ in SAME_BYTES])
def test_a_turn_is_byte_for_byte_what_the_real_child_says(name: str, prompt: str) -> None:
    expected = [
        line for line in recorded("proto", name) if "session_configured" not in line and '"z"' not in line
    ]
    with proto() as child:
        child.read_line()
        child.send(user_input(prompt))
        lines = [line.decode() for line in child.lines_until(is_over)]
    assert [without_waits(line) for line in lines] == [without_waits(line) for line in expected]


def test_the_first_line_has_the_fields_of_the_real_one() -> None:
    with proto("-c", 'model="gpt-5-mini"') as child:
        first = json.loads(child.read_line() or b"")
    assert shape(first) == shape(json.loads(recorded("proto", "text")[0]))
    assert first["msg"]["model"] == "gpt-5-mini"


def test_usage_adds_up_over_the_turns_of_a_conversation_as_recorded() -> None:
    expected = [
        line for line in recorded("proto", "two_turns") if line.startswith(('{"id":"1"', '{"id":"2"'))
    ]
    lines = []
    with proto() as child:
        child.read_line()
        for submission, say in (("1", "A1"), ("2", "A2")):
            child.send(user_input(f"[[fake:text say={say}]]", submission))
            lines += [line.decode() for line in child.lines_until(is_over)]
    assert lines == expected


def kinds(messages: list[Any]) -> list[str]:
    """Event types, a run of the same type once."""
    names = [message["type"] for message in messages]
    return [name for i, name in enumerate(names) if i == 0 or names[i - 1] != name]


@pytest.mark.parametrize(
    ("name", "prompt"),
    [
        ("reasoning_raw", "[[fake:reasoning_raw]]"),
        ("usage_multistep", "[[fake:usage_multistep]]"),
        ("err_drop_once", "[[fake:retry_after_text_same]]"),
    ],
)
def test_events_come_in_the_recorded_order_with_the_recorded_fields(name: str, prompt: str) -> None:
    real = [json.loads(line)["msg"] for line in recorded("proto", name) if line.startswith('{"id":"1"')]
    with proto() as child:
        fake = ask(child, prompt)
    section = ["agent_reasoning_section_break", "agent_reasoning_delta"]
    assert [k for k in kinds(fake) if k not in section] == [k for k in kinds(real) if k not in section]
    assert set(section) <= set(kinds(fake)) or name != "reasoning_raw"
    shapes_of_real = {message["type"]: shape(message) for message in real if message.get("info", 1)}
    for message in fake:
        if message.get("info", 1):
            assert shape(message) == shapes_of_real[message["type"]]


def test_an_interrupt_ends_the_turn_as_recorded() -> None:
    with proto() as child:
        child.send(user_input("[[fake:text n=100000 delay=50]]"))
        child.read_until(lambda event: event["msg"]["type"] == "agent_message_delta")
        child.send({"id": "2", "op": {"type": "interrupt"}})
        last = child.lines_until(is_over)[-1].decode()
    assert last == recorded("proto", "interrupt_mid_text")[-1]


def test_an_interrupt_reaches_a_turn_that_never_pauses() -> None:
    with proto() as child:
        child.send(user_input("[[fake:count n=1000000]]"))
        child.read_until(lambda event: event["msg"]["type"] == "agent_message_delta")
        child.send({"id": "2", "op": {"type": "interrupt"}})
        events = child.read_until(is_over)
    assert events[-1]["msg"]["type"] == "turn_aborted"
    assert len(events) < 900_000


def test_shutdown_is_confirmed_and_the_end_of_stdin_then_ends_the_child() -> None:
    with proto() as child:
        child.send({"id": "9", "op": {"type": "shutdown"}})
        lines = child.lines_until(lambda event: event["id"] == "9")
        assert lines[-1].decode() == recorded("proto", "shutdown_op")[-1]
        child.close_stdin()
        assert child.exit_status() == 0


def test_the_end_of_stdin_alone_does_not_end_the_child() -> None:
    with proto() as child:
        child.send(user_input("[[fake:text]]"))
        child.close_stdin()
        child.read_until(is_over)
        assert child.read_line(wait_s=0.1) is None
        assert child.process.poll() is None


def test_a_second_prompt_while_a_task_runs_is_swallowed() -> None:
    with proto() as child:
        child.send(user_input("[[fake:text n=5 delay=5]]", "1"), user_input("[[fake:text]]", "2"))
        events = child.read_until(is_over)
        assert {event["id"] for event in events} == {"", "1"}
        assert child.read_line(wait_s=0.1) is None


def test_a_bad_line_is_answered_with_nothing() -> None:
    with proto() as child:
        child.read_line()
        child.send({"id": "1", "op": {"type": "nonsense"}}, {"no": "op"})
        assert ask(child, "[[fake:text]]", "2")[0]["type"] == "task_started"


def test_a_command_is_asked_for_and_runs_only_when_approved() -> None:
    for decision, runs in (("approved", True), ("denied", False)):
        with proto() as child:
            child.send(user_input("[[fake:approval]]"))
            child.read_until(lambda event: event["msg"]["type"] == "exec_approval_request")
            child.send({"id": "2", "op": {"type": "exec_approval", "id": "1", "decision": decision}})
            seen = {event["msg"]["type"] for event in child.read_until(is_over)}
        assert ("exec_command_end" in seen) is runs
        assert "task_complete" in seen


def test_parallel_calls_come_as_increments_one_call_after_the_other() -> None:
    with proto() as child:
        messages = ask(child, "[[fake:tool_calls]]")
    fragments = [part for m in messages if m["type"] == "tool_calls_delta" for part in m["tool_calls"]]
    assert [part["index"] for part in fragments] == [0, 0, 0, 1, 1, 1]
    assert [part.get("id") for part in fragments] == ["call_1_0", None, None, "call_1_1", None, None]
    arguments = ["".join(p["function"]["arguments"] for p in fragments if p["index"] == i) for i in (0, 1)]
    assert [json.loads(text) for text in arguments] == [{"city": "Paris"}, {"city": "Rome"}]
    assert messages[-1] == {
        "type": "task_complete",
        "last_agent_message": None,
        "finish_reason": "tool_calls",
    }


def test_interleaved_calls_take_turns() -> None:
    with proto() as child:
        messages = ask(child, "[[fake:tool_calls_interleaved]]")
    assert [m["tool_calls"][0]["index"] for m in messages if m["type"] == "tool_calls_delta"] == [0, 1] * 3


def test_sequential_calls_come_whole_and_say_so() -> None:
    with proto() as child:
        messages = ask(child, "[[fake:tool_calls_sequential]]")
    whole = next(m for m in messages if m["type"] == "agent_message")
    assert "tool_calls_delta" not in kinds(messages)
    assert (whole["message"], whole["parallel_tool_calls"]) == (None, False)
    assert [json.loads(c["function"]["arguments"])["city"] for c in whole["tool_calls"]] == ["Paris", "Rome"]


def test_once_the_prompt_shows_the_call_answered_the_text_follows() -> None:
    prompt = "user: [[fake:tool_calls]] weather?\n\ntool (call_1_0): sunny"
    with proto() as child:
        messages = ask(child, prompt)
    assert texts(messages, "agent_message", "message") == ["It is sunny."]


def test_new_call_ids_never_repeat_those_of_the_prompt() -> None:
    prompt = "assistant called call_3_0, tool: wet. [[fake:tool_call]]"
    with proto() as child:
        messages = ask(child, prompt)
    assert next(m for m in messages if "tool_calls" in m)["tool_calls"][0]["id"] == "call_4_0"


def test_the_legacy_function_call_names_the_function_once() -> None:
    with proto() as child:
        messages = ask(child, "[[fake:function_call name=look_up]]")
    parts = texts(messages, "function_call_delta", "function_call")
    assert [part.get("name") for part in parts] == ["look_up", None, None]  # type: ignore[attr-defined]
    assert messages[-1]["finish_reason"] == "function_call"


def test_choices_take_turns_and_each_has_its_own_text() -> None:
    with proto() as child:
        messages = ask(child, "[[fake:multi_choice]]")
    streamed = [m for m in messages if m["type"] == "agent_message_delta"]
    assert [m["choice_index"] for m in streamed[:4]] == [0, 1, 2, 0]
    whole = {m["choice_index"]: m["message"] for m in messages if m["type"] == "agent_message"}
    for index, text in whole.items():
        assert "".join(m["delta"] for m in streamed if m["choice_index"] == index) == text
    assert len(set(whole.values())) == 3
    assert messages[-1]["choice_finish_reasons"] == {"0": "stop", "1": "stop", "2": "stop"}


@pytest.mark.parametrize(
    ("name", "event", "reason"),
    [
        ("length", "task_complete", "length"),
        ("truncation", "token_count", "length"),
        ("content_filter", "task_complete", "content_filter"),
        ("future_finish_reason", "task_complete", "quantum_pause"),
    ],
)
def test_a_finish_reason_is_on_one_event(name: str, event: str, reason: str) -> None:
    with proto() as child:
        messages = ask(child, f"[[fake:{name}]]")
    assert {m["type"]: m["finish_reason"] for m in messages if "finish_reason" in m} == {event: reason}


def test_an_answered_call_in_the_history_leads_to_the_text() -> None:
    user = {"type": "input_text", "text": "[[fake:tool_call]] weather?"}
    history = [
        {"type": "message", "role": "user", "content": [user]},
        {"type": "function_call", "call_id": "call_1_0", "name": "get_weather", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "call_1_0",
            "output": [{"type": "input_text", "text": "sunny"}],
        },
    ]
    with proto() as child:
        child.send({"id": "1", "op": {"type": "user_input", "items": [], "history": history}})
        last = child.read_until(is_over)[-1]
    assert last["msg"] == {"type": "task_complete", "last_agent_message": "The tool said: sunny"}


def test_settings_of_the_context_hold_for_the_turns_behind_it() -> None:
    context = {"type": "override_turn_context", "model": "m2", "effort": "high", "summary": "concise"}
    with proto() as child:
        child.send({"id": "c", "op": context})
        seen = json.loads(ask(child, "[[fake:echo]]")[-1]["last_agent_message"])
    assert (seen["model"], seen["effort"], seen["summary"]) == ("m2", "high", "concise")


def test_tools_and_history_in_the_op_reach_the_model() -> None:
    history = [
        {"type": "message", "role": "developer", "content": "be brief"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hm"}]},
    ]
    op = {
        "type": "user_turn",
        "items": [{"type": "text", "text": "[[fake:echo]]"}, {"type": "image", "image_url": "data:,"}],
        "model": "m1",
        "effort": "low",
        "final_output_json_schema": {"type": "object"},
        "tools": [{"name": "look_up"}],
        "history": history,
        "tool_choice": "required",
    }
    with proto() as child:
        child.send({"id": "1", "op": op})
        seen = json.loads(child.read_until(is_over)[-1]["msg"]["last_agent_message"])
    assert (seen["model"], seen["effort"], seen["tools"]) == ("m1", "low", ["look_up"])
    assert seen["tool_choice"] == "required"
    assert seen["output_schema"] == {"type": "object"}
    assert seen["history"] == [
        {"role": "developer", "text": "be brief"},
        {"role": "assistant", "text": "hm"},
        {"role": "user", "text": "[[fake:echo]]", "images": 1},
    ]
