"""POST /v1/responses in front of its client: whole and streamed, and what is on disk afterwards."""

from __future__ import annotations

import json

import pytest
from openai import AsyncOpenAI
from openai.types.responses import Response

from tests.http.serving import Proxy
from tests.http_responses.asking import WEATHER, ask, events_of, said, types_of

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
    response = await client.responses.create(model="codex-5", input=said("Hello there."))
    assert response.output_text == "Hello there."
    assert (response.status, response.object, response.store) == ("completed", "response", True)  # type: ignore[attr-defined]
    assert response.usage is not None
    assert response.usage.total_tokens == response.usage.input_tokens + response.usage.output_tokens


async def test_a_stream_has_openais_events_and_ends_with_done(proxy: Proxy) -> None:
    answer = await ask(proxy, said("one two three"), stream=True)
    assert answer.headers["Content-Type"].startswith("text/event-stream")
    events = events_of(answer.text)
    assert types_of(events) == TEXT_TYPES
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert events[-1]["response"]["output"] == done


@pytest.mark.parametrize("stream", [False, True])
async def test_what_was_acknowledged_can_be_continued(proxy: Proxy, stream: bool) -> None:
    answer = await ask(proxy, said("Blue."), stream=stream)
    first = events_of(answer.text)[-1]["response"] if stream else answer.body
    second = await ask(proxy, "[[fake:echo]]", previous_response_id=first["id"])
    echo = json.dumps(second.body["output"])
    assert "Blue." in echo
    assert second.body["previous_response_id"] == first["id"]


async def test_the_sdks_stream_helper_gives_the_final_response(client: AsyncOpenAI) -> None:
    async with client.responses.stream(model="codex-5", input=said("Hello.")) as stream:
        async for _ in stream:
            pass
        response = await stream.get_final_response()
    assert isinstance(response, Response)
    assert response.output_text == "Hello."


async def test_a_call_is_answered_by_its_output_and_the_previous_id(client: AsyncOpenAI) -> None:
    first = await client.responses.create(
        model="codex-5",
        input="""[[fake:tool_call name=get_weather args='{"city":"Paris"}' say="{outputs}"]]""",
        tools=[WEATHER],  # type: ignore[list-item]
    )
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    second = await client.responses.create(
        model="codex-5",
        previous_response_id=first.id,
        input=[{"type": "function_call_output", "call_id": call.call_id, "output": "sunny"}],
        tools=[WEATHER],  # type: ignore[list-item]
    )
    assert "sunny" in second.output_text


async def test_the_path_without_v1_is_the_same(proxy: Proxy) -> None:
    answer = await proxy.send("POST", "/responses", {"model": "codex-5", "input": said("Hi.")})
    assert answer.body["output"][-1]["content"][0]["text"] == "Hi."


async def test_a_failure_before_the_first_event_is_a_plain_status(proxy: Proxy) -> None:
    answer = await ask(proxy, "[[fake:no_such_scenario]]", stream=True)
    assert answer.status >= 500
    assert set(answer.error) == {"message", "type", "param", "code"}


async def test_a_failure_behind_the_first_event_is_an_error_and_a_failed_response(proxy: Proxy) -> None:
    answer = await ask(proxy, "[[fake:error_mid_text]]", stream=True)
    events = events_of(answer.text)
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-1]["response"]["status"] == "failed"
