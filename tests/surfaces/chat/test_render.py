"""What the contract leaves open: several messages, activity, refusals, forms of calls, estimates."""

from __future__ import annotations

import msgspec
import pytest

from codex_proxy.core.events import (
    AnswerDetails,
    ArgumentsDelta,
    Event,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    ReasoningDelta,
    RefusalDelta,
    TextDelta,
    Usage,
    UsageReported,
)
from codex_proxy.core.items import Activity, Message, Reasoning, ToolCall
from tests.surfaces.chat.answering import deltas, frames, message, renderer, stream_events, whole
from tests.surfaces.chat.turns import activity, reasoning_item, step, text_item, tool_call, turn, usage


def test_several_messages_are_joined_by_a_blank_line() -> None:
    assert message(turn(text_item("One.", id="a"), text_item("Two.", " Still two.", id="b")))["content"] == (
        "One.\n\nTwo. Still two."
    )


def test_a_message_without_a_word_leaves_no_blank_line() -> None:
    assert (
        message(turn(text_item("One.", id="a"), text_item(id="b"), text_item("Two.", id="c")))["content"]
        == "One.\n\nTwo."
    )


def test_two_messages_that_come_interleaved_are_sent_one_after_the_other() -> None:
    events: list[Event] = [
        ItemStarted(Message("a")),
        ItemStarted(Message("b")),
        TextDelta("a", "On"),
        TextDelta("b", "Tw"),
        TextDelta("a", "e."),
        TextDelta("b", "o."),
        ItemEnded("b"),
        ItemEnded("a"),
    ]
    assert message(turn(events))["content"] == "One.\n\nTwo."


def test_an_answer_without_any_word_is_the_empty_string() -> None:
    assert deltas(turn()) == [{"content": ""}]
    assert message(turn())["content"] == ""


def test_parts_of_a_reasoning_summary_are_separated_by_a_blank_line() -> None:
    told = message(turn(reasoning_item("First.", "Second.", id="a"), reasoning_item("Third.", id="b")))
    assert told["reasoning_content"] == "First.\n\nSecond.\n\nThird."


def test_pieces_of_one_part_are_joined_as_they_are() -> None:
    pieces: list[Event] = [
        ItemStarted(Reasoning("r")),
        ReasoningDelta("r", "Fi"),
        ReasoningDelta("r", "rst."),
    ]
    assert message(turn(pieces))["reasoning_content"] == "First."


def test_raw_reasoning_is_not_shown_and_does_not_begin_the_answer() -> None:
    answer = renderer(stream=True)
    raw: list[Event] = [ItemStarted(Reasoning("r")), ReasoningDelta("r", "secret", kind="raw")]
    assert answer.feed(raw) == b""
    assert not answer.visible


def test_activities_of_the_agent_are_one_line_each_of_its_reasoning() -> None:
    told = message(
        turn(
            activity("ls -la", id="a"),
            reasoning_item("Hm.", id="b"),
            activity("cat <<E\nx\nE", id="c"),
            reasoning_item("So.", id="d"),
            text_item("Done."),
        )
    )
    assert told["reasoning_content"] == "[command] ls -la\nHm.\n[command] cat <<E x E\nSo."
    assert told["content"] == "Done."


def test_activity_can_be_switched_off() -> None:
    assert "reasoning_content" not in message(turn(activity("ls"), text_item("Done.")), show_activity=False)


def test_output_of_a_command_is_not_shown() -> None:
    item = ItemStarted(Activity("c", "command", "ls"))
    assert message(turn([item, OutputDelta("c", "README.md")]))["reasoning_content"] == "[command] ls\n"


def test_a_refusal_is_a_refusal_and_the_content_is_null() -> None:
    refusal: list[Event] = [
        ItemStarted(Message("m")),
        RefusalDelta("m", "I "),
        RefusalDelta("m", "will not."),
    ]
    assert deltas(turn(refusal)) == [{"refusal": "I "}, {"refusal": "will not."}]
    told = message(turn(refusal))
    assert (told["content"], told["refusal"]) == (None, "I will not.")


def test_calls_that_come_interleaved_are_serialised_call_after_call() -> None:
    events: list[Event] = [
        ItemStarted(ToolCall("a", "call_a", "f")),
        ItemStarted(ToolCall("b", "call_b", "g")),
        ArgumentsDelta("b", "[1,"),
        ArgumentsDelta("a", "{"),
        ArgumentsDelta("a", "}"),
        ItemEnded("a"),
        ArgumentsDelta("b", "2]"),
        ItemEnded("b"),
    ]
    pieces = [delta["tool_calls"][0] for delta in deltas(turn(events))]
    assert [(piece["index"], piece.get("id"), piece["function"]["arguments"]) for piece in pieces] == [
        (0, "call_a", ""),
        (0, None, "{"),
        (0, None, "}"),
        (1, "call_b", ""),
        (1, None, "[1,"),
        (1, None, "2]"),
    ]


def test_whole_calls_keep_the_order_in_which_they_were_opened() -> None:
    events: list[Event] = [
        ItemStarted(ToolCall("a", "call_a", "f")),
        ItemStarted(ToolCall("b", "call_b", "g")),
        ArgumentsDelta("b", "B"),
        ItemEnded("b"),
        ArgumentsDelta("a", "A"),
        ItemEnded("a"),
    ]
    calls = message(turn(events), whole_calls=True)["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [
        ("call_a", "A"),
        ("call_b", "B"),
    ]
    assert len(deltas(turn(events), whole_calls=True)) == 2


def test_the_legacy_form_streams_a_function_call_and_ends_with_its_reason() -> None:
    events = turn(tool_call('{"a":', "1}"))
    assert deltas(events, legacy_function_call=True) == [
        {"function_call": {"name": "get_weather", "arguments": ""}},
        {"function_call": {"arguments": '{"a":'}},
        {"function_call": {"arguments": "1}"}},
    ]
    choice = whole(events, legacy_function_call=True)["choices"][0]
    assert choice["message"]["function_call"] == {"name": "get_weather", "arguments": '{"a":1}'}
    assert choice["finish_reason"] == "function_call"
    assert "tool_calls" not in choice["message"]


def test_the_legacy_form_has_room_for_one_call() -> None:
    events = turn(tool_call("{}", id="a"), tool_call("[]", id="b", name="other"))
    assert message(events, legacy_function_call=True)["function_call"]["name"] == "get_weather"
    assert len(deltas(events, legacy_function_call=True)) == 2


def test_a_custom_tool_call_carries_its_input() -> None:
    events: list[Event] = [
        ItemStarted(ToolCall("t", "call_1", "sql", kind="custom")),
        ArgumentsDelta("t", "select 1"),
        ItemEnded("t"),
    ]
    assert deltas(turn(events)) == [
        {
            "tool_calls": [
                {"index": 0, "id": "call_1", "type": "custom", "custom": {"name": "sql", "input": ""}}
            ]
        },
        {"tool_calls": [{"index": 0, "custom": {"input": "select 1"}}]},
    ]
    assert message(turn(events))["tool_calls"] == [
        {"id": "call_1", "type": "custom", "custom": {"name": "sql", "input": "select 1"}}
    ]


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("stop", "tool_calls"),
        ("interrupted", "tool_calls"),
        ("function_call", "tool_calls"),
        ("length", "length"),
    ],
)
def test_a_turn_with_calls_ends_as_calls_do_unless_it_was_cut(stop: str, reason: str) -> None:
    assert whole(turn(tool_call("{}"), stop=stop))["choices"][0]["finish_reason"] == reason


def test_a_call_that_breaks_off_is_not_one_to_be_run() -> None:
    *begun, ended = tool_call('{"city')
    assert isinstance(ended, ItemEnded)
    events = turn([*begun, ItemEnded(ended.id, "incomplete")], stop="interrupted")
    assert whole(events)["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize("stop", ["stop", "interrupted", "tool_calls", "function_call"])
def test_a_turn_without_calls_does_not_end_as_calls_do(stop: str) -> None:
    assert whole(turn(text_item("x"), stop=stop))["choices"][0]["finish_reason"] == "stop"


def test_a_choice_without_the_call_of_its_sibling_stops() -> None:
    events = turn(tool_call("{}", choice=0), text_item("x", choice=1), stop="tool_calls")
    assert [choice["finish_reason"] for choice in whole(events, choices=2)["choices"]] == [
        "tool_calls",
        "stop",
    ]


def test_a_lone_surrogate_becomes_the_replacement_character_streamed_and_whole() -> None:
    events = turn(text_item("a\ud83db", "\ude00"))
    assert [delta["content"] for delta in deltas(events)] == ["a\ufffdb", "\ufffd"]
    assert message(events)["content"] == "a\ufffdb\ufffd"


def test_line_separators_of_unicode_do_not_break_a_frame() -> None:
    assert [delta["content"] for delta in deltas(turn(text_item("a\u2028b\x85c\nd")))] == ["a\u2028b\x85c\nd"]


def test_the_first_keepalive_brings_the_role_along_once() -> None:
    answer = renderer(stream=True, choices=2)
    opened = frames(answer.open())
    assert [chunk["choices"][0]["delta"] for chunk in opened] == [{"role": "assistant"}] * 2
    assert answer.visible
    assert answer.open() == b""
    assert b"role" not in answer.feed(turn(text_item("Hi")))


def test_usage_that_is_not_reported_is_an_estimate_and_says_so() -> None:
    usage = whole(turn(text_item("1" * 30)), choices=2, prompt_tokens=lambda: 25)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["estimated"]) == (25, 20, True)
    assert usage["total_tokens"] == 45


def test_an_answer_cut_by_max_tokens_reports_its_limit_and_is_marked() -> None:
    for choices in (1, 3):
        events = turn(text_item("one two"), stop="length", cut=True)
        usage = whole(events, choices=choices, max_tokens=2)["usage"]
        assert (usage["completion_tokens"], usage["estimated"]) == (2 * choices, True)


def test_usage_that_was_reported_before_a_cut_is_not_all_that_was_spent() -> None:
    """The call that was cut has read at least what the one before it has."""
    told = step(Usage(100, 0, 3, 0))
    usage = whole(turn(told, text_item("one two three four five"), stop="length", cut=True))["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["estimated"]) == (200, 5, True)
    totals: list[Event] = [UsageReported(Usage(read, 0, 3, 0)) for read in (100, 250, 250)]
    usage = whole(turn(totals, text_item("one two three four five"), stop="length", cut=True))["usage"]
    assert usage["prompt_tokens"] == 250 + 150


@pytest.mark.parametrize(("prompt", "expected"), [(25, (100, 5)), (400, (400, 5))])
def test_a_partial_usage_is_the_minimum_of_the_estimate(prompt: int, expected: tuple[int, int]) -> None:
    told: list[Event] = [UsageReported(Usage(100, 0, 3, 0), partial=True)]
    usage = whole(turn(told, text_item("one two three four five")), prompt_tokens=lambda: prompt)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["estimated"]) == (*expected, True)


def test_an_estimate_is_at_least_one_token_each() -> None:
    usage = whole(turn())["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (1, 1)


def test_usage_that_was_reported_is_not_marked() -> None:
    assert "estimated" not in whole(turn(text_item("x"), usage()))["usage"]


def test_the_last_total_counts_and_steps_count_only_without_one() -> None:
    steps = whole(turn(step(Usage(1, 0, 2, 0)), step(None), step(Usage(3, 0, 4, 0))))["usage"]
    assert (steps["prompt_tokens"], steps["completion_tokens"]) == (4, 6)
    both = whole(turn(usage(), step(Usage(1, 0, 2, 0)), usage(Usage(20, 0, 30, 0))))["usage"]
    assert (both["prompt_tokens"], both["completion_tokens"]) == (20, 30)


def test_a_stream_never_ends_without_done() -> None:
    assert stream_events(turn(text_item("x")))[-1] == "[DONE]"


FIELDS = {"service_tier": msgspec.Raw(b'"flex"'), "system_fingerprint": msgspec.Raw(b'"fp_1"')}
LATER = {"system_fingerprint": msgspec.Raw(b'"fp_2"')}


@pytest.mark.parametrize("profile", ["openai", "codex-completions-api"])
@pytest.mark.parametrize(
    "parts", [text_item("Hel", "lo!"), reasoning_item("Hm.") + text_item("Hi"), tool_call(), []]
)
def test_a_field_of_the_answer_is_in_every_chunk_with_one_value_or_in_none(
    parts: list[Event], profile: str
) -> None:
    plain = turn(parts, usage())
    for first in range(1, len(plain)):
        for second in (None, *range(first, len(plain))):
            events = list(plain)
            if second is not None:
                events.insert(second, AnswerDetails(LATER, b'[{"type":"x"}]'))
            events.insert(first, AnswerDetails(FIELDS))
            chunks = stream_events(
                events, profile=profile, choices=2, include_usage=True, service_tier="auto"
            )
            for name in FIELDS:
                assert len({chunk.get(name) for chunk in chunks if isinstance(chunk, dict)}) == 1
            kept = FIELDS if second is None else LATER
            top = whole(events, profile=profile, choices=2)
            assert {name: top.get(name) for name in kept} == {
                name: msgspec.json.decode(value) for name, value in kept.items()
            }
