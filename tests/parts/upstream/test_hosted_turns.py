"""Turns with tools that the model server runs: beside MCP servers, in the background, on a WebSocket; and
what the key of a client may reach through them. The official SDK is the client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from codex_proxy.core.keys import digest_of
from tests.http.serving import Proxy
from tests.mcp.serving import web_server
from tests.model_server import Upstream, call, proxy_before, stream, text
from tests.parts.mcp.test_requests import operators, weather
from tests.parts.upstream.test_hosted_tools import (
    CODE_ITEM,
    CODE_TOOL,
    HOSTED,
    IMAGE_ITEM,
    IMAGE_TOOL,
    ITEMS,
    TOOLS,
    hosted_answer,
    response_with_items,
    shown,
)
from tests.response_events import CALL_ITEM, THOUGHT, event, message, response_with
from tests.waiting import PATIENCE, poll
from tests.weather_tool import RESPONSES_WEATHER

TABLE = {"hosted_tools": HOSTED}
KEYS = {"one": "key-of-one", "two": "key-of-two"}


@pytest.fixture
async def proxy(server: Upstream, tmp_path: Path) -> AsyncIterator[Proxy]:
    async with proxy_before(server.url, tmp_path, agent="openai-responses", table=TABLE) as running:
        yield running


@asynccontextmanager
async def with_keys(server: Upstream, folder: Path, limits: str = "") -> AsyncIterator[list[AsyncOpenAI]]:
    """The clients of two keys. `limits`: lines of the keys' tables."""
    file = folder / "keys.toml"
    tables = (f'[keys.{name}]\nsha256 = "{digest_of(key)}"\n{limits}\n' for name, key in KEYS.items())
    file.write_text("".join(tables))
    made = proxy_before(server.url, folder, agent="openai-responses", table=TABLE, keys_file=file)
    async with made as proxy:
        url = f"{proxy.url}/v1"
        one, two = (AsyncOpenAI(base_url=url, api_key=key, max_retries=0) for key in KEYS.values())
        async with one, two:
            yield [one, two]


def calls_in(given: list[Any]) -> list[Any]:
    """The items of a request that are no messages."""
    return [item for item in given if item.get("type") != "message"]


# --- beside other tools ---------------------------------------------------------------------------


async def test_a_hosted_tool_and_one_of_an_mcp_server_are_used_in_one_turn(
    server: Upstream, tmp_path: Path
) -> None:
    with web_server("http", "--only", "get_weather") as (port, _):
        url = f"http://localhost:{port}/mcp"
        made = proxy_before(server.url, tmp_path, agent="openai-responses", table=TABLE, mcp_allowed_urls=url)
        async with made as proxy, AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none") as client:
            called = CALL_ITEM | {"name": "weather__get_weather"}
            server.script = [
                response_with_items(CODE_ITEM, called),
                response_with_items(IMAGE_ITEM, message("Yes.")),
            ]
            tools: Any = [*TOOLS, weather(port)]
            response = await client.responses.create(
                model="small", input="Hi", tools=tools, tool_choice="required", max_tool_calls=2
            )
            server.script = [response_with(message("Yes."))]
            await client.responses.create(model="small", input="?", previous_response_id=response.id)
    kinds = [item.type for item in response.output]
    assert kinds == [
        *("mcp_list_tools", "code_interpreter_call", "mcp_call", "image_generation_call", "message")
    ]
    assert [shown(response.output[index]) for index in (1, 3)] == [CODE_ITEM, IMAGE_ITEM]
    first, second, later = (request.body for request in server.requests)
    assert [tool["type"] for tool in second["tools"]] == ["function", *HOSTED]
    assert calls_in(second["input"])[:2] == [CODE_ITEM, called]
    output = calls_in(second["input"])[2]
    assert calls_in(later["input"]) == [CODE_ITEM, called, output, IMAGE_ITEM]
    assert (first["tool_choice"], second.get("tool_choice")) == ("required", None)


@pytest.mark.parametrize("agent", ["openai-chat", "openai-responses"])
async def test_after_a_required_call_that_is_run_here_the_model_may_answer(
    agent: str, server: Upstream, tmp_path: Path
) -> None:
    called = CALL_ITEM | {"name": "weather__get_weather"}
    chat = stream(call(called["name"], called["arguments"]), finish="tool_calls"), text("Yes.")
    items = response_with(called), response_with(message("Yes."))
    server.script = [*(chat if agent == "openai-chat" else items)]
    with web_server("http", "--only", "get_weather") as (port, _):
        url = f"http://localhost:{port}/mcp"
        made = proxy_before(server.url, tmp_path, agent=agent, mcp_allowed_urls=url)
        async with made as proxy, AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none") as client:
            tools: Any = [weather(port), RESPONSES_WEATHER]
            response = await client.responses.create(
                model="small", input="Hi", tools=tools, tool_choice="required"
            )
    assert response.output_text == "Yes."
    assert [request.body.get("tool_choice") for request in server.requests] == ["required", None]


@pytest.mark.parametrize(("choice", "names"), [("auto", ["desk__get_weather"]), ("required", [])])
async def test_a_required_hosted_tool_is_not_replaced_by_one_of_the_operators_servers(
    choice: Any, names: list[str], server: Upstream, tmp_path: Path
) -> None:
    server.script = [response_with_items(CODE_ITEM, message("Yes."))]
    config = operators(tmp_path)
    made = proxy_before(server.url, tmp_path, agent="openai-responses", table=TABLE, mcp_config=config)
    async with made as proxy, AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none") as client:
        await client.responses.create(model="small", input="Hi", tools=[CODE_TOOL], tool_choice=choice)
    assert [tool["name"] for tool in server.requests[0].body["tools"] if "name" in tool] == names


async def test_items_beside_a_call_of_the_client_go_back_once(client: AsyncOpenAI, server: Upstream) -> None:
    server.script = [response_with_items(THOUGHT, CODE_ITEM, CALL_ITEM), response_with(message("Yes."))]
    tools: Any = [CODE_TOOL, RESPONSES_WEATHER]
    first = await client.responses.create(model="small", input="Hi", tools=tools, store=False)
    output = {"type": "function_call_output", "call_id": "call_a", "output": "sunny"}
    given: list[Any] = [{"role": "user", "content": "Hi"}, *map(shown, first.output), output]
    await client.responses.create(model="small", store=False, input=given, tools=tools)
    assert calls_in(server.requests[1].body["input"]) == [THOUGHT, CODE_ITEM, CALL_ITEM, output]


# --- in every way ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("listed", "tool", "told"),
    [
        ([], CODE_TOOL, (400, "unsupported_tool", "tools[0]")),
        (["file_search"], IMAGE_TOOL, (400, "unsupported_tool", "tools[0]")),
        (HOSTED, {"type": "computer_use_preview"}, (400, "unsupported_tool", "tools[0]")),
        (
            HOSTED,
            {"type": "code_interpreter", "container": "cntr_1"},
            (403, "not_allowed", "tools[0].container"),
        ),
    ],
)
async def test_a_websocket_refuses_a_tool_and_goes_on(
    listed: list[str], tool: Any, told: Any, server: Upstream, tmp_path: Path
) -> None:
    server.script = [response_with(message("Yes."))]
    table, key = {"hosted_tools": listed}, KEYS["one"]
    made = proxy_before(server.url, tmp_path, agent="openai-responses", table=table, api_key=key)
    headers = {"Authorization": f"Bearer {key}"}
    async with (
        made as proxy,
        proxy.session.ws_connect(f"{proxy.url}/v1/responses", headers=headers) as socket,
    ):
        asked = {"type": "response.create", "model": "small", "input": "Hi"}
        await socket.send_json(asked | {"tools": [tool]})
        frame = await socket.receive_json(timeout=PATIENCE)
        assert (frame["type"], frame["status"]) == ("error", told[0])
        assert (frame["error"]["code"], frame["error"]["param"]) == told[1:]
        assert server.requests == []
        await socket.send_json(asked)
        while frame["type"] != "response.completed":
            frame = await socket.receive_json(timeout=PATIENCE)
    assert len(server.requests) == 1


async def test_the_stream_of_a_background_response_is_resumed_at_each_event(
    client: AsyncOpenAI, server: Upstream
) -> None:
    server.script = [hosted_answer()]
    created = await client.responses.create(
        model="small", input="Hi", tools=TOOLS, background=True, stream=True
    )
    begun: Any = await anext(aiter(created))
    await created.close()
    id = begun.response.id

    async def ended() -> Any:
        response = await client.responses.retrieve(id)
        return None if response.status in ("queued", "in_progress") else response

    response = await poll(ended)
    assert [shown(item) for item in response.output[:3]] == ITEMS
    events = [each async for each in await client.responses.retrieve(id, stream=True)]
    assert [each.sequence_number for each in events] == list(range(len(events)))
    assert "response.image_generation_call.partial_image" in [each.type for each in events]
    for number in range(len(events)):
        rest = [
            each async for each in await client.responses.retrieve(id, stream=True, starting_after=number)
        ]
        assert rest == events[number + 1 :]


# --- images ---------------------------------------------------------------------------------------


@pytest.mark.exhaustive
@pytest.mark.parametrize("streams", [False, True])
async def test_an_image_of_12_mib_is_passed_on(streams: bool, client: AsyncOpenAI, server: Upstream) -> None:
    image = IMAGE_ITEM | {"result": "a" * (12 << 20)}
    server.script = [response_with_items(image)]
    asked: Any = {"model": "small", "input": "Hi", "tools": [IMAGE_TOOL]}
    if streams:
        events: list[Any] = [each async for each in await client.responses.create(**asked, stream=True)]
        response = events[-1].response
    else:
        response = await client.responses.create(**asked)
    assert (response.status, [shown(item) for item in response.output]) == ("completed", [image])


@pytest.mark.exhaustive
async def test_more_images_than_an_answer_may_have_end_it_with_the_reason(
    client: AsyncOpenAI, server: Upstream
) -> None:
    begun = event("response.output_item.added", item=IMAGE_ITEM | {"result": None}, output_index=0)
    place = {"item_id": IMAGE_ITEM["id"], "output_index": 0}
    part = event("response.image_generation_call.partial_image", partial_image_b64="a" * (9 << 20), **place)
    server.script = [begun + part * 4 + response_with_items(IMAGE_ITEM)]
    response = await client.responses.create(model="small", input="Hi", tools=[IMAGE_TOOL])
    assert response.status == "incomplete"
    assert [item.type for item in response.output] == ["image_generation_call"]


async def test_an_image_that_failed_names_none_of_the_account(client: AsyncOpenAI, server: Upstream) -> None:
    server.script = [response_with(message("Yes."))]
    failed: Any = IMAGE_ITEM | {"status": "failed", "result": None}
    await client.responses.create(model="small", input=[failed, {"role": "user", "content": "Why?"}])
    assert calls_in(server.requests[0].body["input"]) == []


# --- what a key may reach -------------------------------------------------------------------------

AS_FUNCTION = [
    {"type": "function_call", "name": "code_interpreter", "arguments": '{"code":"print(1)"}'},
    {"type": "function_call_output", "output": "1\n"},
]
RUN_ITEM: Any = CODE_ITEM | {"outputs": [{"type": "logs", "logs": "1\n"}]}


@pytest.mark.parametrize("way", ["input", "conversation", "conversation item", "previous response"])
async def test_a_key_does_not_reach_a_container_that_it_only_names(
    way: str, server: Upstream, tmp_path: Path
) -> None:
    server.script = [response_with(message("Yes."))] * 2
    asked: Any = {"model": "small", "tools": [CODE_TOOL], "input": "?"}
    async with with_keys(server, tmp_path) as (one, _):
        if way == "input":
            asked["input"] = [RUN_ITEM, {"role": "user", "content": "?"}]
        elif way == "previous response":
            given: Any = [RUN_ITEM, {"role": "user", "content": "?"}]
            asked["previous_response_id"] = (await one.responses.create(**asked | {"input": given})).id
        else:
            items = [RUN_ITEM] if way == "conversation" else []
            conversation = await one.conversations.create(items=items)
            if not items:
                await one.conversations.items.create(conversation.id, items=[RUN_ITEM])
            asked["conversation"] = conversation.id
        raw = await one.responses.with_raw_response.create(**asked)
    for request in server.requests:
        assert "cntr_1" not in json.dumps(request.body)
        told = calls_in(request.body["input"])
        assert [told[0]["call_id"], told[0] | AS_FUNCTION[0], told[1] | AS_FUNCTION[1]] == [
            told[1]["call_id"],
            *told,
        ]
    named = raw.headers.get("x-codex-ignored-params", "")
    assert ("input[].container_id" in named) == (way == "input")


async def test_a_key_keeps_the_container_of_its_own_response(server: Upstream, tmp_path: Path) -> None:
    async with with_keys(server, tmp_path) as (one, two):
        server.script = [response_with_items(RUN_ITEM, message("1")), response_with(message("Yes."))]
        first = await one.responses.create(model="small", input="Hi", tools=[CODE_TOOL])
        asked: Any = {"model": "small", "tools": [CODE_TOOL], "input": "?", "previous_response_id": first.id}
        await one.responses.create(**asked)
        assert calls_in(server.requests[1].body["input"]) == [RUN_ITEM]
        with pytest.raises(openai.APIStatusError) as raised:
            await two.responses.create(**asked)
        assert raised.value.status_code in (400, 404)
        reference: Any = {"type": "item_reference", "id": first.output[0].id}
        with pytest.raises(openai.APIStatusError):
            await two.responses.create(**asked | {"previous_response_id": None, "input": [reference]})
    assert len(server.requests) == 2


async def test_a_key_may_give_back_what_it_got_beside_a_call(server: Upstream, tmp_path: Path) -> None:
    tools: Any = [CODE_TOOL, RESPONSES_WEATHER]
    output = {"type": "function_call_output", "call_id": "call_a", "output": "sunny"}
    async with with_keys(server, tmp_path) as clients:
        server.script = [response_with_items(THOUGHT, RUN_ITEM, CALL_ITEM)]
        first = await clients[0].responses.create(model="small", input="Hi", tools=tools, store=False)
        given: list[Any] = [{"role": "user", "content": "Hi"}, *map(shown, first.output), output]
        for client in clients:
            server.script = [response_with(message("Yes."))]
            await client.responses.create(model="small", store=False, input=given, tools=tools)
    own, others = (calls_in(request.body["input"]) for request in server.requests[1:])
    assert own == [THOUGHT, RUN_ITEM, CALL_ITEM, output]
    assert "cntr_1" not in json.dumps(others)
    assert [item["type"] for item in others] == ["function_call", "function_call_output"] * 2


async def test_another_agent_gets_code_and_output_as_a_call_of_a_function(
    server: Upstream, tmp_path: Path
) -> None:
    server.script = [response_with(message("Yes."))]
    given: Any = [RUN_ITEM, {"role": "user", "content": "?"}]
    async with (
        proxy_before(server.url, tmp_path, agent="openai-responses") as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none") as client,
    ):
        await client.responses.create(model="small", input=given)
    call, out = calls_in(server.requests[0].body["input"])
    assert [call | AS_FUNCTION[0], out | AS_FUNCTION[1]] == [call, out]


@pytest.mark.parametrize("name", ["model", "Model", "draft_model"])
async def test_a_key_that_is_limited_to_models_cannot_name_another_in_a_tool(
    name: str, server: Upstream, tmp_path: Path
) -> None:
    tool: Any = {"type": "image_generation", name: "large"}
    async with with_keys(server, tmp_path, 'models = ["small"]') as (one, _):
        with pytest.raises(openai.PermissionDeniedError) as raised:
            await one.responses.create(model="small", input="Hi", tools=[tool])
        assert raised.value.param == f"tools[0].{name}"
        assert server.requests == []
        server.script = [response_with(message("Yes."))]
        await one.responses.create(model="small", input="Hi", tools=[IMAGE_TOOL | {"model": "small"}])


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        ({"type": "code_interpreter", "Container": "cntr_1"}, "Container"),
        ({"type": "code_interpreter", "container": {"File_IDs": ["file_1"]}}, "container.File_IDs"),
        ({"type": "file_search", "vectorStoreIds": ["vs_1"]}, "vectorStoreIds"),
        ({"type": "image_generation", "a": [{"file_ıd": 1, "file_ID": 1}]}, "a[0].file_ID"),
    ],
)
async def test_objects_of_the_account_are_known_in_every_spelling(
    tool: Any, param: str, server: Upstream, tmp_path: Path
) -> None:
    async with with_keys(server, tmp_path) as (one, _):
        with pytest.raises(openai.PermissionDeniedError) as raised:
            await one.responses.create(model="small", input="Hi", tools=[tool])
        assert raised.value.param == f"tools[0].{param}"
    assert server.requests == []
