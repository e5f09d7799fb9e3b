"""POST /v1/responses in front of its client: whole and streamed, and what is on disk afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from tests.http.serving import Proxy
from tests.http_responses.asking import create, events_of, prompt_for, types_of
from tests.weather_tool import RESPONSES_WEATHER

TEXT_TYPES = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.content_part.added",
    "response.output_text.delta",
    "response.output_text.done",
    "response.content_part.done",
    "response.output_item.done",
    "response.completed",
]


async def test_a_string_is_answered_with_a_whole_response(client: AsyncOpenAI) -> None:
    response = await client.responses.create(model="codex-5", input=prompt_for("Hello there."))
    assert response.output_text == "Hello there."
    assert (response.status, response.object, response.store) == ("completed", "response", True)  # type: ignore[attr-defined]
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


async def test_a_stream_has_openais_events_and_ends_with_done(proxy: Proxy) -> None:
    answer = await create(proxy, prompt_for("one two three"), stream=True)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    events = events_of(answer.text)
    assert types_of(events) == TEXT_TYPES
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_acknowledged_can_be_continued(proxy: Proxy, stream: bool) -> None:
    answer = await create(proxy, prompt_for("Blue."), stream=stream)
    first = events_of(answer.text)[-1]["response"] if stream else answer.body
    second = await create(proxy, "[[fake:echo]]", previous_response_id=first["id"])
    echo = json.dumps(second.body["output"])
    assert "Blue." in echo
    assert second.body["previous_response_id"] == first["id"]


async def test_the_sdks_stream_helper_gives_the_final_response(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model="codex-5", input=prompt_for("Hello.")) as stream:
        async for _ in stream:
            pass
        response = await stream.get_final_response()
    assert isinstance(response, Response)
    assert response.output_text == "Hello."


async def test_a_call_is_answered_by_its_output_and_the_previous_id(client: AsyncOpenAI) -> None:
    first = await client.responses.create(
        model="codex-5",
        input="""[[fake:tool_call name=get_weather args='{"city":"Paris"}' say="{outputs}"]]""",
        tools=[RESPONSES_WEATHER],
    )
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    second = await client.responses.create(
        model="codex-5",
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        tools=[RESPONSES_WEATHER],
    )
    assert "sunny" in second.output_text


async def test_the_path_without_v1_is_the_same(proxy: Proxy) -> None:
    answer = await proxy.send("POST", "/responses", {"model": "codex-5", "input": prompt_for("Hi.")})
    assert answer.body["output"][-1]["content"][0]["text"] == "Hi."


async def test_a_failure_before_the_first_event_is_a_plain_status(proxy: Proxy) -> None:
    answer = await create(proxy, "[[fake:no_such_scenario]]", stream=True)
    assert answer.status >= 500
    assert set(answer.error) == {"message", "type", "param", "code"}


async def test_a_failure_behind_the_first_event_is_an_error_and_a_failed_response(proxy: Proxy) -> None:
    answer = await create(proxy, "[[fake:error_mid_text]]", stream=True)
    events = events_of(answer.text)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["status"] == "failed"


async def test_what_is_accepted_and_changes_nothing_is_named_in_a_header(proxy: Proxy) -> None:
    tools = [{"type": "tool_search"}, {"type": "web_search"}]
    answer = await create(proxy, prompt_for("Hi."), tools=tools, top_k=4, min_p=0.1, temperature=0.2)
    assert answer.status == 200
    named = answer.headers["x-codex-ignored-params"].split(", ")
    assert named == ["temperature", "top_k", "min_p", "tools[tool_search]", "tools[web_search]"]
    assert [tool["type"] for tool in answer.body["tools"]] == ["tool_search", "web_search"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"input": None}, "input"),
        ({"input": []}, "input"),
        ({"metadata": {f"key{number}": "x" for number in range(17)}}, "metadata"),
        ({"temperature": 3}, "temperature"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"min_p": 2}, "min_p"),
        ({"truncation": "sometimes"}, "truncation"),
        ({"tools": [{"type": "code_interpreter"}]}, "tools[0]"),
        (
            {"tools": [{"type": "mcp", "server_label": "a", "server_url": "http://localhost:1"}]},
            "tools[0].server_url",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "call_1", "output": "x"}]},
            "input[0].call_id",
        ),
    ],
)
async def test_a_wrong_field_is_a_400_that_names_it(proxy: Proxy, fields: dict[str, Any], param: str) -> None:
    answer = await proxy.send("POST", "/v1/responses", {"model": "codex-5", "input": "Hi.", **fields})
    assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
    assert answer.error["param"] == param


async def test_an_unknown_output_that_brings_its_call_is_made_whole(proxy: Proxy) -> None:
    output = {
        "type": "function_call_output",
        "call_id": "call_9",
        "output": "sunny",
        "name": "get_weather",
        "arguments": "{}",
    }
    user = {"role": "user", "content": "[[fake:echo]]"}
    answer = await create(proxy, [output, user], tools=[RESPONSES_WEATHER])
    echo = answer.body["output"][0]["content"][0]["text"]
    assert "get_weather" in echo
    assert "sunny" in echo


async def test_unanswered_calls_of_the_previous_response_are_a_400(proxy: Proxy) -> None:
    first = await create(proxy, "[[fake:tool_call name=get_weather]]", tools=[RESPONSES_WEATHER])
    answer = await create(proxy, "Never mind.", previous_response_id=first.body["id"])
    assert answer.status == 400
    assert answer.error["message"].startswith("No tool output found for function call")


@pytest.mark.parametrize("stream", [False, True])
async def test_every_reply_names_its_request_and_agent(proxy: Proxy, stream: bool) -> None:
    answer = await create(proxy, prompt_for("Hi."), stream=stream)
    assert answer.headers["x-request-id"]
    assert answer.headers["x-codex-agent"] == "fake"


async def test_parallel_calls_reasoning_and_activity_are_streamed_as_the_sdk_wants_them(proxy: Proxy) -> None:
    for scenario, type in (
        ("tool_calls", "response.function_call_arguments.delta"),
        ("reasoning", "response.reasoning_summary_text.delta"),
        ("activity", "response.reasoning_summary_text.delta"),
        ("content_filter", "response.incomplete"),
        ("multi_message", "response.output_text.delta"),
    ):
        events = events_of(
            (await create(proxy, f"[[fake:{scenario}]]", stream=True, tools=[RESPONSES_WEATHER])).text
        )
        assert type in types_of(events), scenario
        final = events[-1]["response"]
        done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
        assert final["output"] == done
