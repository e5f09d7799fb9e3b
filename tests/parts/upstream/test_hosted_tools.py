"""Tools that the model server itself runs (`code_interpreter`, `file_search`, `image_generation`): passed on where the
upstream's table lists them, with their items and events, and refused elsewhere. The official SDK is the client."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.http.serving import Proxy
from tests.model_server import Upstream, proxy_before
from tests.parts.upstream.serving import several
from tests.response_events import CALL_ITEM, event, message, response_with
from tests.weather_tool import RESPONSES_WEATHER

HOSTED = ["code_interpreter", "file_search", "image_generation"]
CODE_TOOL: Any = {"type": "code_interpreter", "container": {"type": "auto", "memory_limit": "4g"}}
SEARCH_TOOL: Any = {"type": "file_search", "vector_store_ids": ["vs_1"], "max_num_results": 2}
IMAGE_TOOL: Any = {"type": "image_generation", "quality": "low", "partial_images": 1}
TOOLS: Any = [CODE_TOOL, SEARCH_TOOL, IMAGE_TOOL]
CODE_ITEM = {
    "type": "code_interpreter_call",
    "id": "ci_0123456789abcdef0123",
    "status": "completed",
    "code": "print(1)",
    "container_id": "cntr_1",
    "outputs": None,
}
SEARCH_ITEM = {
    "type": "file_search_call",
    "id": "fs_0123456789abcdef0123",
    "status": "completed",
    "queries": ["who?"],
    "results": [
        {"file_id": "file_1", "filename": "a.txt", "score": 0.5, "text": "It was me.", "attributes": {}}
    ],
}
IMAGE_ITEM = {
    "type": "image_generation_call",
    "id": "ig_0123456789abcdef0123",
    "status": "completed",
    "result": "aW1hZ2U=",
    "revised_prompt": "A cat.",
}
ITEMS: list[dict[str, Any]] = [CODE_ITEM, SEARCH_ITEM, IMAGE_ITEM]
BEGUN: list[dict[str, Any]] = [
    {**CODE_ITEM, "status": "in_progress", "code": ""},
    {**SEARCH_ITEM, "status": "in_progress", "queries": [], "results": None},
    {**IMAGE_ITEM, "status": "in_progress", "result": None},
]
STAGES: list[list[tuple[str, dict[str, Any]]]] = [
    [
        ("code_interpreter_call.in_progress", {}),
        ("code_interpreter_call_code.delta", {"delta": "print"}),
        ("code_interpreter_call_code.delta", {"delta": "(1)"}),
        ("code_interpreter_call_code.done", {"code": "print(1)"}),
        ("code_interpreter_call.interpreting", {}),
        ("code_interpreter_call.completed", {}),
    ],
    [
        ("file_search_call.in_progress", {}),
        ("file_search_call.searching", {}),
        ("file_search_call.completed", {}),
    ],
    [
        ("image_generation_call.in_progress", {}),
        ("image_generation_call.generating", {}),
        (
            "image_generation_call.partial_image",
            {"partial_image_index": 0, "partial_image_b64": "cGFydA==", "size": "1024x1024", "self": 1},
        ),
        ("image_generation_call.completed", {}),
    ],
]


def hosted_answer(*, first: int = 7) -> bytes:
    """The stream of an answer with an item of each tool; its indexes begin with `first`."""
    out = [
        event("response.created", response={"id": "resp_9", "object": "response", "status": "in_progress"})
    ]
    for index, (begun, stages, item) in enumerate(zip(BEGUN, STAGES, ITEMS, strict=True), first):
        out.append(event("response.output_item.added", item=begun, output_index=index))
        place = {"item_id": begun["id"], "output_index": index, "sequence_number": 1000}
        out += (event(f"response.{name}", **fields, **place) for name, fields in stages)
        out.append(event("response.output_item.done", item=item, output_index=index))
    said = message("Done.")
    out.append(event("response.output_item.done", item=said, output_index=first + 3))
    response = {"id": "resp_9", "object": "response", "status": "completed", "output": [*ITEMS, said]}
    return b"".join([*out, event("response.completed", response=response)])


def response_with_items(*items: dict[str, Any]) -> bytes:
    response = {"id": "resp_9", "object": "response", "status": "completed", "output": list(items)}
    return event("response.completed", response=response)


@pytest.fixture
async def proxy(server: Upstream, tmp_path: Path) -> AsyncIterator[Proxy]:
    table = {"hosted_tools": HOSTED}
    async with proxy_before(server.url, tmp_path, agent="openai-responses", table=table) as running:
        yield running


def shown(item: Any) -> dict[str, Any]:
    given: dict[str, Any] = item.model_dump(exclude_unset=True)
    return given


async def test_tools_reach_the_model_server_as_they_were_given_and_their_items_the_client(
    client: AsyncOpenAI, server: Upstream
) -> None:
    server.script = [hosted_answer()]
    response = await client.responses.create(
        model="small",
        input="Hi",
        tools=[*TOOLS, RESPONSES_WEATHER],
        include=["file_search_call.results", "code_interpreter_call.outputs"],
        max_tool_calls=3,
    )
    (asked,) = server.requests
    assert asked.body["tools"][1:] == TOOLS
    assert asked.body["tools"][0]["name"] == "get_weather"
    assert asked.body["include"] == [
        *("reasoning.encrypted_content", "file_search_call.results", "code_interpreter_call.outputs")
    ]
    assert asked.body["max_tool_calls"] == 3
    assert "tool_choice" not in asked.body
    assert [shown(item) for item in response.output[:3]] == ITEMS
    assert response.output_text == "Done."
    assert [tool.type for tool in response.tools] == [*HOSTED, "function"]


async def test_events_of_hosted_tools_reach_the_client_with_this_answers_places(
    client: AsyncOpenAI, server: Upstream
) -> None:
    server.script = [hosted_answer()]
    events = [
        each
        async for each in await client.responses.create(model="small", input="Hi", tools=TOOLS, stream=True)
    ]
    assert [each.sequence_number for each in events] == list(range(len(events)))
    for index, (begun, stages, item) in enumerate(zip(BEGUN, STAGES, ITEMS, strict=True)):
        own: list[Any] = [each for each in events if getattr(each, "output_index", None) == index]
        assert (own[0].type, own[-1].type) == ("response.output_item.added", "response.output_item.done")
        assert (shown(own[0].item), shown(own[-1].item)) == (begun, item)
        names = [(f"response.{name}", fields) for name, fields in stages]
        assert [each.type for each in own[1:-1]] == [name for name, _ in names]
        for each, (_, fields) in zip(own[1:-1], names, strict=True):
            assert each.item_id == item["id"]
            assert shown(each).items() >= fields.items()
    last = events[-1]
    assert last.type == "response.completed"
    assert [shown(item) for item in last.response.output[:3]] == ITEMS


async def test_items_of_hosted_tools_are_stored_and_go_back_once(
    client: AsyncOpenAI, server: Upstream
) -> None:
    server.script = [hosted_answer(), response_with(message("Yes.")), response_with(message("Yes."))]
    first = await client.responses.create(model="small", input="Hi", tools=TOOLS)
    stored = await client.responses.retrieve(first.id)
    assert [shown(item) for item in stored.output[:3]] == ITEMS
    await client.responses.create(model="small", input="And?", previous_response_id=first.id)
    given: list[Any] = [shown(item) for item in first.output]
    await client.responses.create(
        model="small", store=False, input=[*given, {"role": "user", "content": "And?"}]
    )
    for request in server.requests[1:]:
        assert [item for item in request.body["input"] if item["type"].endswith("_call")] == ITEMS


async def test_an_answer_that_is_only_an_image_is_no_empty_answer(
    client: AsyncOpenAI, server: Upstream
) -> None:
    server.script = [response_with_items(IMAGE_ITEM)]
    raw = await client.responses.with_raw_response.create(model="small", input="Hi", tools=[IMAGE_TOOL])
    response = raw.parse()
    assert [shown(item) for item in response.output] == [IMAGE_ITEM]
    assert response.status == "completed"
    assert "x-codex-empty" not in raw.headers


async def test_an_item_that_never_ended_is_incomplete_in_a_cut_answer(
    client: AsyncOpenAI, server: Upstream
) -> None:
    begun = event("response.output_item.added", item=BEGUN[0], output_index=0)
    cut: dict[str, Any] = {"id": "resp_9", "object": "response", "status": "incomplete", "output": []}
    cut["incomplete_details"] = {"reason": "max_output_tokens"}
    server.script = [begun + event("response.incomplete", response=cut)]
    response = await client.responses.create(model="small", input="Hi", tools=[CODE_TOOL])
    assert response.status == "incomplete"
    assert [shown(item) for item in response.output] == [{**BEGUN[0], "status": "incomplete"}]


@pytest.mark.parametrize(
    ("choice", "tools", "sent", "sent_choice"),
    [
        ("required", [CODE_TOOL], [CODE_TOOL], {"type": "code_interpreter"}),
        ("required", TOOLS, TOOLS, "required"),
        ({"type": "image_generation"}, TOOLS, [IMAGE_TOOL], {"type": "image_generation"}),
        ("none", [*TOOLS, RESPONSES_WEATHER], [], None),
        (
            {
                "type": "allowed_tools",
                "mode": "required",
                "tools": [{"type": "function", "name": "get_weather"}, {"type": "file_search"}],
            },
            [*TOOLS, RESPONSES_WEATHER],
            ["get_weather", SEARCH_TOOL],
            "required",
        ),
        (
            {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "file_search"}]},
            TOOLS,
            [SEARCH_TOOL],
            None,
        ),
    ],
)
async def test_a_choice_limits_hosted_tools(
    choice: Any, tools: Any, sent: list[Any], sent_choice: Any, client: AsyncOpenAI, server: Upstream
) -> None:
    server.script = [hosted_answer()]
    response = await client.responses.create(model="small", input="Hi", tools=tools, tool_choice=choice)
    assert response.output_text == "Done."
    (asked,) = server.requests
    given = [tool.get("name", tool) for tool in asked.body.get("tools", [])]
    assert (given, asked.body.get("tool_choice")) == (sent, sent_choice)


async def test_a_function_is_called_beside_a_hosted_tool(client: AsyncOpenAI, server: Upstream) -> None:
    server.script = [response_with_items(CODE_ITEM, CALL_ITEM)]
    tools: Any = [CODE_TOOL, RESPONSES_WEATHER]
    response = await client.responses.create(model="small", input="Hi", tools=tools, tool_choice="required")
    assert [item.type for item in response.output] == ["code_interpreter_call", "function_call"]


async def test_items_that_nobody_asked_for_stay_hidden(client: AsyncOpenAI, server: Upstream) -> None:
    server.script = [hosted_answer()]
    response = await client.responses.create(model="small", input="Hi", tools=[CODE_TOOL])
    assert [item.type for item in response.output] == ["code_interpreter_call", "message"]


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ({}, {}),
        ({"id": 5, "status": ["in_progress"], "code": {"a": [None]}}, {"status": "completed"}),
        (
            {"id": "ci_1", "self": 1, "status": None, "call_id": "x"},
            {"self": 1, "status": "completed", "call_id": "x"},
        ),
    ],
)
async def test_an_item_of_any_form_is_passed_on_with_the_types_that_clients_expect(
    given: dict[str, Any], shown: dict[str, Any], client: AsyncOpenAI, server: Upstream
) -> None:
    item = {"type": "code_interpreter_call", **given}
    stray = event("response.code_interpreter_call_code.delta", delta="x", item_id="other", output_index=9)
    done = event("response.output_item.done", item=item, output_index=0)
    server.script = [stray + done + response_with_items(item, message("Done."))]
    answer = await client.responses.with_raw_response.create(model="small", input="Hi", tools=[CODE_TOOL])
    first = answer.http_response.json()["output"][0]
    assert first == {"type": item["type"], "id": first["id"], "status": first["status"], **shown}
    assert first["id"].startswith("ci_")


@pytest.mark.parametrize("depth", [100, 5000])
async def test_a_tool_of_any_depth_is_passed_on_or_a_400(depth: int, proxy: Proxy, server: Upstream) -> None:
    deep = "[" * depth + "]" * depth
    body = '{"model":"small","input":"Hi","tools":[{"type":"code_interpreter","x":' + deep + "}]}"
    server.script = [response_with(message("Yes."))]
    headers = {"Content-Type": "application/json"}
    async with proxy.session.post(f"{proxy.url}/v1/responses", data=body, headers=headers) as answer:
        assert answer.status == (200 if depth == 100 else 400)


# --- where they are refused -----------------------------------------------------------------------


async def refused(client: AsyncOpenAI, status: int = 400, **fields: Any) -> dict[str, Any]:
    with pytest.raises(openai.APIStatusError) as raised:
        await client.responses.create(**({"model": "small", "input": "Hi"} | fields))
    assert raised.value.status_code == status
    body: Any = raised.value.body
    return dict(body)


@pytest.mark.parametrize("listed", [[], ["file_search"]])
@pytest.mark.parametrize("way", ["whole", "stream", "background"])
async def test_a_tool_that_the_table_does_not_list_is_refused(
    listed: list[str], way: str, server: Upstream, tmp_path: Path
) -> None:
    asked = {} if way == "whole" else {way: True}
    async with (
        proxy_before(server.url, tmp_path, agent="openai-responses", table={"hosted_tools": listed}) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        error = await refused(client, tools=[RESPONSES_WEATHER, CODE_TOOL], **asked)
        assert (error["param"], error["code"]) == ("tools[1]", "unsupported_tool")
        for path in ("/v1/responses/input_tokens", "/v1/responses/compact"):
            answer = await proxy.send("POST", path, {"model": "small", "input": "Hi", "tools": [CODE_TOOL]})
            assert (answer.status, answer.error["param"]) == (400, "tools[0]")
    assert server.requests == []


async def test_the_tokens_of_an_input_with_hosted_tools_are_counted(proxy: Proxy) -> None:
    body = {"model": "small", "input": "Hi", "tools": TOOLS}
    answer = await proxy.send("POST", "/v1/responses/input_tokens", body)
    assert answer.status == 200


async def test_tools_of_openais_models_are_refused_wherever_they_are_listed(client: AsyncOpenAI) -> None:
    error = await refused(client, tools=[{"type": "computer_use_preview"}])
    assert (error["param"], error["code"]) == ("tools[0]", "unsupported_tool")


@pytest.mark.parametrize(
    ("tool", "param"),
    [
        (SEARCH_TOOL, "vector_store_ids"),
        ({"type": "code_interpreter", "container": "cntr_1"}, "container"),
        (
            {"type": "code_interpreter", "container": {"type": "auto", "file_ids": ["file_1"]}},
            "container.file_ids",
        ),
        (
            {"type": "image_generation", "input_image_mask": {"file_id": "file_1"}},
            "input_image_mask.file_id",
        ),
    ],
)
async def test_objects_of_the_operators_account_are_not_a_keys(
    tool: dict[str, Any], param: str, server: Upstream, tmp_path: Path
) -> None:
    table = {"hosted_tools": HOSTED}
    made = proxy_before(
        server.url, tmp_path, agent="openai-responses", table=table, api_key="a-key-of-a-client"
    )
    async with made as proxy, AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="a-key-of-a-client") as client:
        error = await refused(client, 403, tools=[CODE_TOOL, tool])
        assert error["param"] == f"tools[1].{param}"
        assert server.requests == []
        server.script = [response_with(message("Yes."))]
        plain: Any = [CODE_TOOL, {"type": "image_generation", "input_image_mask": {"image_url": "data:,x"}}]
        await client.responses.create(model="small", input="Hi", tools=plain)
    assert server.requests[0].body["tools"] == plain


async def test_secrets_of_a_container_are_passed_on_and_not_shown(
    client: AsyncOpenAI, server: Upstream
) -> None:
    secrets = [{"domain": "a.example", "name": "KEY", "value": "very-secret"}]
    policy = {"type": "allowlist", "allowed_domains": ["a.example"], "domain_secrets": secrets}
    tool: Any = {"type": "code_interpreter", "container": {"type": "auto", "network_policy": policy}}
    server.script = [response_with(message("Yes."))]
    response = await client.responses.create(model="small", input="Hi", tools=[tool])
    assert server.requests[0].body["tools"] == [tool]
    assert "very-secret" not in response.to_json()
    assert "a.example" in response.to_json()


async def test_a_fallback_that_does_not_run_the_tools_is_not_asked(
    a: Upstream, b: Upstream, tmp_path: Path
) -> None:
    a.models = b.models = [{"id": "small"}]
    table = {"wire": "responses", "retries": 0}
    upstreams = {
        "one": {**table, "url": a.url, "hosted_tools": HOSTED, "fallback": ["two"]},
        "two": {**table, "url": b.url},
    }
    async with several(tmp_path, upstreams=upstreams) as proxy:
        a.key = "other"
        body = {"model": "one/small", "input": "Hi", "tools": [CODE_TOOL]}
        answer = await proxy.send("POST", "/v1/responses", body)
    assert answer.status >= 400
    assert b.requests == []


async def test_hosted_tools_of_an_upstream_without_the_responses_api_are_a_wrong_setting(
    server: Upstream, tmp_path: Path
) -> None:
    with pytest.raises(Exception, match=r"hosted_tools of \[upstreams.default\] needs"):
        async with proxy_before(server.url, tmp_path, table={"hosted_tools": HOSTED}):
            pass


async def test_a_websocket_passes_hosted_tools_on(proxy: Proxy, server: Upstream) -> None:
    server.script = [hosted_answer()]
    async with proxy.session.ws_connect(f"{proxy.url}/v1/responses") as socket:
        await socket.send_json({"type": "response.create", "model": "small", "input": "Hi", "tools": TOOLS})
        kinds: list[str] = []
        while not kinds or kinds[-1] not in ("response.completed", "error"):
            kinds.append(json.loads((await socket.receive()).data)["type"])
    assert "response.image_generation_call.partial_image" in kinds
