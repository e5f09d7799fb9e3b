"""The request that a Chat Completions server gets for a turn."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from codex_proxy.core.items import (
    HistoryCall,
    HistoryItem,
    HistoryMessage,
    HistoryOutput,
    ImagePart,
    RawHistoryItem,
    TextPart,
    Tool,
)
from codex_proxy.core.turn import NamedTools, Turn
from codex_proxy.parts.upstream.openai_chat.answer import ThinkTags
from codex_proxy.parts.upstream.openai_chat.request_body import NO_OUTPUT, ChatMessages, request_body

USER = HistoryMessage("user", (TextPart("Hi"),))
WEATHER = Tool(name="weather", description="of a city", parameters=msgspec.Raw(b'{"type":"object"}'))
TIME = Tool(name="time")


def body_of(**fields: Any) -> dict[str, Any]:
    turn = Turn(**{"model": "m", "history": (USER,), **fields})
    body: dict[str, Any] = json.loads(request_body(turn, "m", ChatMessages(turn.history).messages()))
    return body


def messages_of(*history: HistoryItem) -> list[dict[str, Any]]:
    return ChatMessages(history).messages()


def output(call_id: str, text: str) -> HistoryOutput:
    return HistoryOutput(call_id, (TextPart(text),))


def calls_message(*ids: str) -> dict[str, Any]:
    calls = [{"id": id, "type": "function", "function": {"name": "weather", "arguments": "{}"}} for id in ids]
    return {"role": "assistant", "content": None, "tool_calls": calls}


def test_the_body_asks_for_a_stream_with_usage() -> None:
    assert body_of() == {
        "model": "m",
        "messages": [{"role": "user", "content": "Hi"}],
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_what_the_client_wants_of_the_answer_is_passed_on() -> None:
    sampling = {"temperature": 0.5, "seed": 7, "logit_bias": {"50256": -100}, "top_k": 3}
    body = body_of(
        sampling=sampling, effort="low", verbosity="high", service_tier="flex", stop=("a", "b"), max_tokens=9
    )
    wanted = sampling | {"reasoning_effort": "low", "verbosity": "high", "service_tier": "flex"}
    assert wanted | {"stop": ["a", "b"], "max_tokens": 9} == {name: body[name] for name in list(body)[4:]}


def test_a_schema_becomes_a_response_format() -> None:
    body = body_of(output_schema=msgspec.Raw(b'{"type":"object"}'))
    assert body["response_format"] == {
        "type": "json_schema",
        "json_schema": {"name": "answer", "strict": True, "schema": {"type": "object"}},
    }


def test_tools_are_functions_and_a_strict_one_is_sent_as_strict() -> None:
    tools = body_of(tools=(WEATHER, Tool(name="time", strict=True)))["tools"]
    assert [tool["type"] for tool in tools] == ["function", "function"]
    weather = {"name": "weather", "description": "of a city", "parameters": {"type": "object"}}
    assert tools[0]["function"] == weather
    empty = {"type": "object", "properties": {}}
    assert tools[1]["function"] == {"name": "time", "parameters": empty, "strict": True}


@pytest.mark.parametrize(
    ("choice", "tools", "wanted"),
    [
        ("auto", (WEATHER, TIME), None),
        ("required", (WEATHER, TIME), "required"),
        ("required", (WEATHER,), {"type": "function", "function": {"name": "weather"}}),
        (NamedTools(("weather",), required=True), (WEATHER,), {"type": "function", "function": {"name": "weather"}}),
        (NamedTools(("weather",)), (WEATHER,), None),
        ("none", (), None),
    ],
)  # fmt: skip
def test_the_tool_choice_is_sent_to_the_upstream(choice: Any, tools: tuple[Tool, ...], wanted: Any) -> None:
    assert body_of(tool_choice=choice, tools=tools).get("tool_choice") == wanted


def test_parallel_tool_calls_false_is_sent_where_there_are_tools() -> None:
    assert body_of(parallel_tool_calls=False, tools=(TIME,))["parallel_tool_calls"] is False
    assert "parallel_tool_calls" not in body_of(parallel_tool_calls=False)
    assert "parallel_tool_calls" not in body_of(tools=(TIME,))


def test_instructions_are_system_messages_which_every_server_knows() -> None:
    said = HistoryMessage("developer", (TextPart("Be"), TextPart("short.")))
    assert messages_of(said) == [{"role": "system", "content": "Be\n\nshort."}]


def test_images_are_passed_on_as_they_are() -> None:
    image = ImagePart("data:image/png;base64,AA", "low")
    [message] = messages_of(HistoryMessage("user", (TextPart("What?"), image)))
    url = {"url": "data:image/png;base64,AA", "detail": "low"}
    assert message["content"] == [{"type": "text", "text": "What?"}, {"type": "image_url", "image_url": url}]


def test_text_and_calls_in_a_row_are_one_message() -> None:
    said = HistoryMessage("assistant", (TextPart("Let me see."),))
    history = (USER, said, HistoryCall("a", "weather", ""), HistoryCall("b", "weather", "{}"))
    first, message, *outputs = messages_of(*history, output("b", "2"), output("a", "1"), USER)
    assert message == calls_message("a", "b") | {"content": "Let me see."}
    assert [(each["tool_call_id"], each["content"]) for each in outputs[:2]] == [("a", "1"), ("b", "2")]
    assert outputs[2] == first


def test_calls_that_were_made_one_after_the_other_stay_so() -> None:
    call = HistoryCall("a", "weather", "{}"), output("a", "1")
    other = HistoryCall("b", "weather", "{}"), output("b", "2")
    roles = [message["role"] for message in messages_of(USER, *call, *other)]
    assert roles == ["user", "assistant", "tool", "assistant", "tool"]


def test_an_output_stands_right_behind_its_call_whatever_came_between() -> None:
    history = (HistoryCall("a", "weather", "{}"), USER, output("a", "1"))
    assert [message["role"] for message in messages_of(*history)] == ["assistant", "tool", "user"]


def test_no_call_is_left_without_an_output_and_no_output_without_a_call() -> None:
    assert messages_of(HistoryCall("a", "weather", "{}"), USER)[1]["content"] == NO_OUTPUT
    [stray] = messages_of(output("z", "sunny"))
    assert stray["role"] == "user"
    assert "sunny" in json.dumps(stray)


def test_an_image_of_a_tool_is_shown_by_a_message_behind_the_outputs() -> None:
    image = HistoryOutput("a", (TextPart("see"), ImagePart("data:image/png;base64,AA")))
    _, tool, user = messages_of(HistoryCall("a", "weather", "{}"), image)
    assert tool["content"].startswith("see\n[image")
    assert user["content"][0]["image_url"] == {"url": "data:image/png;base64,AA"}


def test_items_of_the_model_come_back_as_messages() -> None:
    raw: Sequence[dict[str, Any]] = [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hm."}]},
        {"type": "function_call", "call_id": "a", "name": "weather", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_text", "text": "1"}]},
        {"type": "web_search_call", "id": "ws_1"},
    ]
    items = [RawHistoryItem(json.dumps(item).encode()) for item in raw]
    assert messages_of(*items) == [
        calls_message("a") | {"content": "Hm."},
        {"role": "tool", "tool_call_id": "a", "content": "1"},
    ]


@pytest.mark.parametrize(
    "item",
    [
        {"type": "function_call", "call_id": "a", "arguments": "{}"},
        {"type": "custom_tool_call", "name": "patch", "input": "x"},
        {"type": "function_call_output", "output": "x"},
        {"type": "message", "role": "assistant", "content": ["x", None]},
    ],
)
def test_an_item_of_the_model_that_lacks_what_a_message_needs_is_left_out(item: dict[str, Any]) -> None:
    assert messages_of(RawHistoryItem(json.dumps(item).encode())) == []


def test_the_input_of_a_custom_tool_goes_in_as_it_came_out() -> None:
    history = (HistoryCall("a", "patch", "*** x", "custom"), HistoryOutput("a", (TextPart("ok"),), "custom"))
    arguments = messages_of(*history)[0]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(arguments) == {"input": "*** x"}


def test_half_a_surrogate_pair_does_not_spoil_the_request() -> None:
    assert (
        "\ufffd"
        in json.loads(request_body(Turn(model="m", history=()), "m", [{"content": "\ud83d"}]))["messages"][0][
            "content"
        ]
    )


# --- tags of reasoning ----------------------------------------------------------------------------


def split(text: str, cuts: Sequence[int]) -> tuple[str, str]:
    tags, reasoning, answer = ThinkTags(), "", ""
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in itertools.pairwise(places):
        thought, said = tags.feed(text[start:end])
        reasoning, answer = reasoning + thought, answer + said
    thought, said = tags.close()
    return reasoning + thought, answer + said


@pytest.mark.parametrize(
    ("text", "reasoning", "answer"),
    [
        ("<think>hm</think>\n\nYes", "hm", "Yes"),
        ("\n<think>\nhm</think>Yes", "\nhm", "Yes"),
        ("<think>a < b </ c</think>Yes", "a < b </ c", "Yes"),
        ("<think>never closed", "never closed", ""),
        ("<think></think>", "", ""),
        ("Say <think>x</think>", "", "Say <think>x</think>"),
        ("<thin", "", "<thin"),
        ("<b>bold</b>", "", "<b>bold</b>"),
        ("  spaces stay", "", "  spaces stay"),
        ("", "", ""),
    ],
)
@given(cuts=st.lists(st.integers(0, 40)))
def test_reasoning_in_tags_is_separated_from_the_answer_however_it_is_cut(
    text: str, reasoning: str, answer: str, cuts: list[int]
) -> None:
    assert split(text, cuts) == (reasoning, answer)
