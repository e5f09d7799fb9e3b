"""Both APIs in front of an upstream that speaks the Responses API, with the official SDK as the client."""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.http.serving import Proxy, user
from tests.mcp.serving import PROGRAM
from tests.model_server import Case, Upstream, proxy_before
from tests.response_events import CALL_ITEM, PARIS, THOUGHT, USAGE, event, message, response_with
from tests.weather_tool import CHAT_WEATHER, RESPONSES_WEATHER


@pytest.fixture
async def proxy(server: Upstream, tmp_path: Path) -> AsyncIterator[Proxy]:
    async with proxy_before(server.url, tmp_path, agent="openai-responses") as running:
        yield running


@pytest.mark.parametrize("bare", [False, True])
async def test_text_and_reasoning_reach_both_apis_once(
    bare: bool, client: AsyncOpenAI, server: Upstream
) -> None:
    server.script = [response_with(THOUGHT, message("Hello there."), bare=bare)] * 2
    response = await client.responses.create(
        model="small", input="Hi", store=False, include=["reasoning.encrypted_content"]
    )
    thought, said = response.output
    assert thought.type == "reasoning"
    assert thought.summary[0].text == "Hm."
    assert thought.encrypted_content == "gAAA-sealed"
    assert said.type == "message"
    assert response.output_text == "Hello there."
    assert response.usage is not None
    assert (response.usage.input_tokens, response.usage.input_tokens_details.cached_tokens) == (11, 3)
    assert (response.usage.output_tokens, response.usage.output_tokens_details.reasoning_tokens) == (7, 2)
    chat = await client.chat.completions.create(model="small", messages=[{"role": "user", "content": "Hi"}])
    assert chat.choices[0].message.content == "Hello there."
    assert chat.choices[0].message.model_extra == {"reasoning_content": "Hm."}
    asked = server.requests[-1].body
    assert (asked["store"], asked["stream"], asked["include"]) == (
        False,
        True,
        ["reasoning.encrypted_content"],
    )


@pytest.mark.parametrize("said", ["flex", "default", None])
async def test_a_service_tier_is_asked_of_the_upstream_and_its_own_is_reported(
    said: str | None, proxy: Proxy, server: Upstream
) -> None:
    more: dict[str, Any] = {} if said is None else {"service_tier": said}
    server.script = [response_with(message("Hello there."), **more)] * 2
    asked = {"model": "small", "service_tier": "flex"}
    response = await proxy.send("POST", "/v1/responses", {**asked, "input": "Hi", "store": False})
    assert server.requests[-1].body["service_tier"] == "flex"
    assert "x-codex-ignored-params" not in response.headers
    assert response.body["service_tier"] == (said or "default")
    chat = await proxy.ask({**user("Hi"), **asked})
    assert "x-codex-ignored-params" not in chat.headers
    assert chat.body["service_tier"] == (said or "default")


async def test_a_stream_sends_deltas_as_they_come(client: AsyncOpenAI, server: Upstream) -> None:
    server.script = [response_with(message("Hello there.")), response_with(message("No.", "refusal"))]
    stream = await client.responses.create(model="small", input="Hi", stream=True)
    deltas = [each.delta async for each in stream if each.type == "response.output_text.delta"]
    assert deltas == ["Hello ", "there."]
    chat: Any = await client.chat.completions.create(
        model="small", messages=[{"role": "user", "content": "Hi"}], stream=True
    )
    said = [part.choices[0].delta.refusal async for part in chat if part.choices]
    assert "".join(filter(None, said)) == "No."


CITATION = {
    "type": "url_citation",
    "url": "https://example.com",
    "title": "Ex",
    "start_index": 0,
    "end_index": 5,
}
FILE_CITATION = {"type": "file_citation", "file_id": "file_1", "filename": "a.txt", "index": 4}


def citing(told: list[dict[str, Any]]) -> bytes:
    """An answer of two messages, the second of which cites two sources in two parts. `told` come in events of their
    own."""
    parts: list[dict[str, Any]] = [
        {"type": "output_text", "text": "Hello", "annotations": [FILE_CITATION, CITATION]},
        {"type": "output_text", "text": " there.", "annotations": [CITATION]},
    ]
    cited = {**message("Hello"), "id": "msg_2", "content": parts}
    at = {"item_id": "msg_2", "output_index": 1, "content_index": 0}
    begun = {**cited, "content": []}
    frames = [
        event("response.output_item.added", item=begun, output_index=1),
        event("response.output_text.delta", delta="Hello", **at),
        *(
            event("response.output_text.annotation.added", annotation=each, annotation_index=index, **at)
            for index, each in enumerate(told)
        ),
        event("response.output_text.delta", delta=" there.", **{**at, "content_index": 1}),
        event("response.output_item.done", item=cited, output_index=1),
    ]
    first, whole = response_with(message("Oh.")).split(b"event: response.completed")
    last = event(
        "response.completed", response={"id": "r", "object": "response", "usage": USAGE, "output": []}
    )
    assert whole
    return first + b"".join(frames) + last


@pytest.mark.parametrize("told", [[], [FILE_CITATION], [FILE_CITATION, CITATION]])
async def test_sources_that_a_text_cites_reach_both_apis_once(
    told: list[dict[str, Any]], client: AsyncOpenAI, server: Upstream
) -> None:
    server.script = [citing(told)] * 3
    stream = await client.responses.create(model="small", input="Hi", stream=True, store=False)
    events = [each async for each in stream]
    of_second = {**CITATION, "start_index": 5, "end_index": 10}
    added = [each for each in events if each.type == "response.output_text.annotation.added"]
    assert [each.model_dump()["annotation"] for each in added] == [FILE_CITATION, CITATION, of_second]
    assert [(each.annotation_index, each.content_index) for each in added] == [(0, 0), (1, 0), (2, 0)]
    last = events[-1]
    assert last.type == "response.completed"
    *_, said = last.response.output
    assert said.type == "message"
    content: Any = said.content[0]
    assert content.text == "Hello there."
    assert [each.model_dump() for each in content.annotations] == [FILE_CITATION, CITATION, of_second]

    asked: Any = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
    whole: Any = await client.chat.completions.create(**asked)
    assert whole.choices[0].message.content == "Oh.\n\nHello there."
    in_content = [
        {"type": "file_citation", "file_citation": {"file_id": "file_1", "filename": "a.txt", "index": 4}},
        *(
            {
                "type": "url_citation",
                "url_citation": {
                    "url": "https://example.com",
                    "title": "Ex",
                    "start_index": start,
                    "end_index": start + 5,
                },
            }
            for start in (5, 10)
        ),
    ]
    assert [each.model_dump(exclude_none=True) for each in whole.choices[0].message.annotations] == in_content
    chunks: Any = await client.chat.completions.create(**asked, stream=True)
    deltas = [chunk.choices[0].delta async for chunk in chunks if chunk.choices]
    assert [each.annotations for each in deltas if hasattr(each, "annotations")] == [in_content]


PATCHED = {
    "type": "custom_tool_call",
    "id": "ctc_1",
    "call_id": "call_b",
    "name": "patch",
    "input": "+one",
    "status": "completed",
}


@pytest.mark.parametrize("bare", [False, True])
async def test_arguments_and_inputs_stream_as_the_upstream_writes_them(
    bare: bool, client: AsyncOpenAI, server: Upstream
) -> None:
    tools: list[Any] = [RESPONSES_WEATHER, {"type": "custom", "name": "patch"}]
    server.script = [response_with(THOUGHT, CALL_ITEM, PATCHED, bare=bare)] * 2
    stream = await client.responses.create(model="small", input="?", tools=tools, stream=True)
    events = [each async for each in stream]
    said = [each.delta for each in events if each.type == "response.function_call_arguments.delta"]
    typed = [each.delta for each in events if each.type == "response.custom_tool_call_input.delta"]
    assert (said, typed) == ([PARIS[:8], PARIS[8:]], ["+o", "ne"])
    whole = await client.responses.create(model="small", input="?", tools=tools)
    last = events[-1]
    assert last.type == "response.completed"
    for one, other in zip(last.response.output, whole.output, strict=True):
        assert one.model_dump(exclude={"id"}) == other.model_dump(exclude={"id"})


@pytest.mark.parametrize("surface", ["chat", "responses"])
async def test_encrypted_reasoning_goes_back_in_front_of_its_call(
    surface: str, client: AsyncOpenAI, server: Upstream
) -> None:
    server.script = [response_with(THOUGHT, CALL_ITEM), response_with(message("Sunny."))]
    if surface == "chat":
        messages: list[Any] = [{"role": "user", "content": "weather?"}]
        first = await client.chat.completions.create(model="small", messages=messages, tools=[CHAT_WEATHER])
        made = first.choices[0].message
        assert made.tool_calls is not None
        messages += [made, {"role": "tool", "tool_call_id": made.tool_calls[0].id, "content": "sunny"}]
        last = await client.chat.completions.create(model="small", messages=messages, tools=[CHAT_WEATHER])
        assert last.choices[0].message.content == "Sunny."
    else:
        created = await client.responses.create(model="small", input="weather?", tools=[RESPONSES_WEATHER])
        [called] = [item for item in created.output if item.type == "function_call"]
        output: Any = {"type": "function_call_output", "call_id": called.call_id, "output": "sunny"}
        answer = await client.responses.create(
            model="small", input=[output], tools=[RESPONSES_WEATHER], previous_response_id=created.id
        )
        assert answer.output_text == "Sunny."
    items = server.requests[-1].body["input"]
    assert [item["type"] for item in items] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert items[1]["encrypted_content"] == "gAAA-sealed"
    assert (items[2]["call_id"], items[3]["call_id"], items[3]["output"]) == ("call_a", "call_a", "sunny")


async def test_custom_tools_stay_custom_and_become_functions_where_they_are_refused(
    client: AsyncOpenAI, server: Upstream
) -> None:
    tool: Any = {"type": "custom", "name": "patch"}
    made = {"type": "custom_tool_call", "id": "ctc_1", "call_id": "call_a", "name": "patch", "input": "+x"}
    as_function = {**CALL_ITEM, "name": "patch", "arguments": '{"input":"+x"}'}
    refusal = Case(400, {}, ['{"error":{"message":"tools[0].type: custom is not supported"}}'], [], "failed")
    server.script = [response_with(made), refusal, response_with(as_function)]
    for _ in range(2):
        answer = await client.responses.create(model="small", input="?", tools=[tool], store=False)
        [called] = [item for item in answer.output if item.type == "custom_tool_call"]
        assert (called.name, called.input) == ("patch", "+x")
    kinds = [each.body["tools"][0]["type"] for each in server.requests]
    assert kinds == ["custom", "custom", "function"]


async def test_what_a_request_asks_for_reaches_the_upstream(client: AsyncOpenAI, server: Upstream) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    given: dict[str, Any] = {"temperature": 0.5, "top_p": 0.25, "max_output_tokens": 50}
    text: Any = {"format": {"type": "json_schema", "name": "x", "schema": schema}, "verbosity": "low"}
    server.script = [response_with(message('{"a": 1}'))]
    await client.responses.create(
        model="small", input="?", instructions="Be brief.", parallel_tool_calls=False,
        reasoning={"effort": "low", "summary": "auto"}, tools=[RESPONSES_WEATHER, {"type": "web_search"}],
        text=text, **given,
    )  # fmt: skip
    asked = server.requests[-1].body
    assert {name: asked[name] for name in given} == given
    assert asked["reasoning"] == {"effort": "low", "summary": "auto"}
    assert asked["text"]["verbosity"] == "low"
    assert asked["text"]["format"]["name"] == "x"
    assert [tool["type"] for tool in asked["tools"]] == ["function", "web_search"]
    assert asked["parallel_tool_calls"] is False
    told = asked["input"][0]
    assert (told["role"], told["content"][0]["text"]) == ("developer", "Be brief.")


async def test_sampling_that_the_upstream_does_not_know_is_left_out_from_then_on(
    proxy: Proxy, server: Upstream
) -> None:
    refusal = '{"error":{"message":"Unknown parameter: \'seed\'.","param":"seed","code":"unknown_parameter"}}'
    server.script = [Case(400, {}, [refusal], [], "failed"), *[response_with(message("Hi."))] * 2]
    for _ in range(2):
        assert (await proxy.ask(user(seed=7, temperature=0.5))).status == 200
    assert ["seed" in each.body for each in server.requests] == [True, False, False]
    assert server.requests[-1].body["temperature"] == 0.5


async def test_a_cut_at_the_length_or_by_the_filter_is_its_finish_reason(
    client: AsyncOpenAI, server: Upstream
) -> None:
    for reason, finish in (("max_output_tokens", "length"), ("content_filter", "content_filter")):
        cut = response_with(message("Hal"), status="incomplete", incomplete_details={"reason": reason})
        server.script = [cut, cut]
        chat = await client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "?"}]
        )
        assert chat.choices[0].finish_reason == finish
        response = await client.responses.create(model="small", input="?")
        assert response.status == "incomplete"
        assert response.incomplete_details is not None
        assert response.incomplete_details.reason == reason


FAILED = response_with(status="failed", error={"code": "rate_limit_exceeded", "message": "Slow down."})
BROKEN = response_with(message("Hello there."))[:-300]
ERROR = event("error", code="server_error", message="It broke.", param=None)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (FAILED, "Slow down."),
        (BROKEN, "before it was complete"),
        (ERROR, "It broke."),
        (b"", "before it was complete"),
    ],
)
async def test_an_answer_without_a_good_end_has_failed(
    body: bytes, words: str, client: AsyncOpenAI, server: Upstream
) -> None:
    server.script = [body, body]
    with pytest.raises(openai.APIStatusError) as raised:
        await client.chat.completions.create(model="small", messages=[{"role": "user", "content": "?"}])
    assert words in raised.value.message
    last: Any = None
    try:
        async for each in await client.responses.create(model="small", input="?", stream=True):
            last = each
    except openai.APIError:
        return
    assert last.type == "response.failed"


async def test_one_json_object_is_read_like_a_stream(client: AsyncOpenAI, server: Upstream) -> None:
    whole = {
        "id": "r",
        "object": "response",
        "status": "completed",
        "output": [message("Hi.")],
        "usage": USAGE,
    }
    server.script = [json.dumps(whole).encode()]
    response = await client.responses.create(model="small", input="?")
    assert response.output_text == "Hi."


@pytest.mark.exhaustive
async def test_tools_of_an_mcp_server_are_run_here(server: Upstream, tmp_path: Path) -> None:
    config = tmp_path / "mcp.json"
    command = {"command": sys.executable, "args": [PROGRAM, "stdio"]}
    config.write_text(json.dumps({"mcpServers": {"files": command}}))
    called = {**CALL_ITEM, "name": "files__echo", "arguments": '{"text":"hello.txt"}'}
    server.script = [response_with(THOUGHT, called), response_with(message("It is hello.txt."))]
    async with proxy_before(server.url, tmp_path, agent="openai-responses", mcp_config=config) as proxy:
        answer = await proxy.ask(user("read it"))
    assert answer.body["choices"][0]["message"]["content"] == "It is hello.txt."
    items = server.requests[1].body["input"]
    assert [item["type"] for item in items] == [
        "message",
        "reasoning",
        "function_call",
        "function_call_output",
    ]
    assert "hello.txt" in json.dumps(items[-1]["output"])
