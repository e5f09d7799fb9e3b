"""The proto dialect beside recordings of `codex proto` 0.42.0."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.fake.child import recorded_lines, shape
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
        line
        for line in recorded_lines("proto", name)
        if "session_configured" not in line and '"z"' not in line
    ]
    with proto() as child:
        child.read_line()
        child.send(user_input(prompt))
        lines = [line.decode() for line in child.lines_until(is_over)]
    assert [without_waits(line) for line in lines] == [without_waits(line) for line in expected]


def test_the_first_line_has_the_fields_of_the_real_one() -> None:
    with proto("-c", 'model="gpt-5-mini"') as child:
        first = json.loads(child.read_line() or b"")
    assert shape(first) == shape(json.loads(recorded_lines("proto", "text")[0]))
    assert first["msg"]["model"] == "gpt-5-mini"


def test_usage_adds_up_over_the_turns_of_a_conversation_as_recorded() -> None:
    expected = [
        line for line in recorded_lines("proto", "two_turns") if line.startswith(('{"id":"1"', '{"id":"2"'))
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
    real = [json.loads(line)["msg"] for line in recorded_lines("proto", name) if line.startswith('{"id":"1"')]
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
    assert last == recorded_lines("proto", "interrupt_mid_text")[-1]


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
        assert lines[-1].decode() == recorded_lines("proto", "shutdown_op")[-1]
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


def test_settings_of_the_context_hold_for_the_turns_behind_it() -> None:
    context = {"type": "override_turn_context", "model": "m2", "effort": "high", "summary": "concise"}
    with proto() as child:
        child.send({"id": "c", "op": context})
        seen = json.loads(ask(child, "[[fake:echo]]")[-1]["last_agent_message"])
    assert (seen["model"], seen["effort"], seen["summary"]) == ("m2", "high", "concise")


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
