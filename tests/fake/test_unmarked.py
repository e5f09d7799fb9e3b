"""What the fake model does without a marker: calls tools that the prompt speaks of, and keeps to a schema."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fake_proto.request import Request
from fake_proto.unmarked import mentioned_tool, unmarked_scenario, wanted_schema

WEATHER = {
    "name": "get_weather",
    "description": "Get current temperature for a given location.",
    "parameters": {
        "type": "object",
        "properties": {"location": {"type": "string"}},
        "required": ["location"],
    },
}
EMAIL = {"name": "send_email", "description": "Send an email to a given recipient."}
SEARCH = {"name": "kb", "description": "Query a knowledge base to retrieve relevant info."}
TOOLS: list[dict[str, Any]] = [WEATHER, EMAIL, SEARCH]


def message(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": text}


def request_with(*items: dict[str, Any], tools: list[dict[str, Any]] = TOOLS) -> Request:
    request = Request("app-server", "m", list(items))
    request.offered = tools
    return request


@pytest.mark.parametrize(
    ("prompt", "name"),
    [
        ("What is the weather like in Paris today?", "get_weather"),
        ("Please use get_weather.", "get_weather"),
        ("What is the current temperature?", "get_weather"),
        ("Can you send an email to ilan@example.com saying hi?", "send_email"),
        ("Is there something about ChatGPT in the AI knowledge base?", "kb"),
        ("Say hello.", None),
        ("Write a story about a location.", None),
        ("", None),
    ],
)
def test_the_tool_that_the_prompt_speaks_of_is_called(prompt: str, name: str | None) -> None:
    found = mentioned_tool(prompt, TOOLS)
    assert (found and found["name"]) == name


def test_a_call_comes_first_and_then_a_text_with_what_the_tool_said() -> None:
    scenario = unmarked_scenario(request_with(message("user", "How is the weather?")))
    assert scenario is not None
    calling, answering = scenario["steps"]
    assert calling["actions"] == [
        {"do": "calls", "calls": [{"name": "get_weather", "arguments": ['{"location": "location"}']}]}
    ]
    assert "{outputs}" in answering["actions"][0]["text"]


def test_a_tool_whose_output_is_there_is_not_called_again() -> None:
    output = {"type": "function_call_output", "call_id": "call_1_0", "output": "sunny"}
    scenario = unmarked_scenario(request_with(message("user", "How is the weather?"), output))
    assert scenario is not None
    assert [action["do"] for step in scenario["steps"] for action in step["actions"]] == ["message"]


def test_a_later_question_calls_it_anew() -> None:
    output = {"type": "function_call_output", "call_id": "call_1_0", "output": "sunny"}
    items = (message("user", "How is the weather?"), output, message("user", "And the weather in Rome?"))
    scenario = unmarked_scenario(request_with(*items))
    assert scenario is not None
    assert scenario["steps"][0]["end"] == "tool_calls"


def test_a_call_that_is_required_is_made_whatever_the_prompt_says() -> None:
    words = message("developer", "Call the tool `send_email` now. Do not answer with text.")
    scenario = unmarked_scenario(request_with(message("user", "Say hello."), words, tools=[EMAIL]))
    assert scenario is not None
    assert scenario["steps"][0]["actions"][0]["calls"][0]["name"] == "send_email"


def test_a_request_that_asks_for_nothing_is_answered_by_a_plain_text() -> None:
    assert unmarked_scenario(request_with(message("user", "Say hello."))) is None


def test_the_schema_of_the_request_shapes_the_answer() -> None:
    request = request_with(message("user", "Alice and Bob go to a fair."))
    request.output_schema = {"type": "object", "properties": {"day": {"const": "Friday"}}}
    scenario = unmarked_scenario(request)
    assert scenario is not None
    assert json.loads(scenario["steps"][0]["actions"][0]["text"]) == {"day": "Friday"}


@pytest.mark.parametrize(
    ("words", "schema"),
    [
        ("Answer with exactly one JSON object: no text before or after it.", {"type": "object"}),
        (
            'Answer with exactly one JSON value and nothing else. It must be valid under this JSON schema: {"a": 1}',
            {"a": 1},
        ),
        ("Be concise.", None),
    ],
)
def test_a_schema_in_a_developer_message_counts_too(words: str, schema: Any) -> None:
    assert wanted_schema(request_with(message("developer", words), message("user", "Hi."))) == schema
