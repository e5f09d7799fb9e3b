"""Calls that a model server has run: other servers get them as calls of a function. The ids of containers get to the
account that has them alone, and only for the key whose items they are in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.model_server import Upstream, proxy_before, text, upstream
from tests.parts.upstream.serving import several
from tests.parts.upstream.test_hosted_tools import (
    CODE_TOOL,
    HOSTED,
    SEARCH_ITEM,
    SEARCH_TOOL,
    response_with_items,
)
from tests.parts.upstream.test_hosted_turns import AS_FUNCTION, RUN_ITEM, TABLE, calls_in, with_keys
from tests.response_events import CALL_ITEM, message, response_with
from tests.weather_tool import RESPONSES_WEATHER

RAN = response_with_items(RUN_ITEM, message("1"))
YES = response_with(message("Yes."))
ASKED: Any = {"model": "small", "input": "?"}
USER: Any = {"role": "user", "content": "?"}


def expect_function(given: list[Any]) -> None:
    """The items of a request have code and output as a call of a function, and no container."""
    assert "cntr" not in json.dumps(given)
    call, output = calls_in(given)
    assert call["call_id"] == output["call_id"]
    assert [call | AS_FUNCTION[0], output | AS_FUNCTION[1]] == [call, output]


@pytest.mark.parametrize("last", ["reference", "other type", "trigger", "user"])
async def test_an_item_with_the_id_of_a_stored_one_is_not_that_item(
    last: str, server: Upstream, tmp_path: Path
) -> None:
    server.script = [RAN, YES]
    async with with_keys(server, tmp_path) as (one, _):
        first = await one.responses.create(model="small", input="Hi", tools=[CODE_TOOL])
        id = first.output[0].id
        named: Any = RUN_ITEM | {"id": id, "container_id": "cntr_of_others"}
        given: list[Any] = [named, {"type": "item_reference", "id": id}, USER]
        if last == "other type":
            given[0] = {"type": "web_search_call", "id": id, "status": "completed", "container_id": "cntr_2"}
        elif last == "trigger":
            given.append({"type": "compaction_trigger"})
        elif last == "user":
            given.pop(1)
        await one.responses.create(model="small", input=given, tools=[CODE_TOOL])
    told = calls_in(server.requests[1].body["input"])
    assert "cntr_of_others" not in json.dumps(told)
    own = [item for item in told if item["type"] == "code_interpreter_call"]
    assert [each["container_id"] for each in own] == ([] if last == "user" else ["cntr_1"])


async def test_a_compaction_names_no_container_that_a_key_only_names(
    server: Upstream, tmp_path: Path
) -> None:
    server.script = [YES]
    async with with_keys(server, tmp_path) as (one, _):
        given: list[Any] = [RUN_ITEM, USER]
        raw = await one.responses.with_raw_response.compact(model="small", input=given)
    expect_function(server.requests[0].body["input"])
    assert raw.headers["x-codex-ignored-params"] == "input[].container_id"


@pytest.mark.parametrize("way", ["previous response", "reference", "beside a call"])
@pytest.mark.parametrize("agent", ["openai-responses", "openai-chat"])
async def test_an_agent_without_the_tool_gets_a_stored_call_as_one_of_a_function(
    agent: str, way: str, server: Upstream, tmp_path: Path
) -> None:
    """The agent of before ran the tool."""
    ran = response_with_items(RUN_ITEM, CALL_ITEM) if way == "beside a call" else RAN
    server.script = [ran, text("Yes.") if agent == "openai-chat" else YES]
    tools: Any = [RESPONSES_WEATHER] if way == "beside a call" else []
    made: Any = {"a": {"wire": "responses", **TABLE}, "b": {"wire": agent.removeprefix("openai-")}}
    upstreams = {name: {"url": server.url, **table} for name, table in made.items()}
    async with (
        several(tmp_path, upstreams=upstreams) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        first = await client.responses.create(model="a/small", input="Hi", tools=[CODE_TOOL, *tools])
        asked: Any = {"model": "b/small", "tools": tools, "previous_response_id": first.id, "input": [USER]}
        if way == "reference":
            asked["previous_response_id"] = None
            asked["input"] = [{"type": "item_reference", "id": first.output[0].id}, USER]
        elif way == "beside a call":
            output = {"type": "function_call_output", "call_id": "call_a", "output": "sunny"}
            asked |= {"previous_response_id": None, "store": False}
            asked["input"] = [USER, *(each.model_dump() for each in first.output), output]
        await client.responses.create(**asked)
    told = server.requests[1].body
    assert "cntr_1" not in json.dumps(told)
    if agent == "openai-chat":
        calls = [call for each in told["messages"] for call in each.get("tool_calls", ())]
        outputs = [each["content"] for each in told["messages"] if each["role"] == "tool"]
        function = {"name": "code_interpreter", "arguments": '{"code":"print(1)"}'}
        assert (calls[0]["function"], outputs[0]) == (function, "1\n")
    elif way == "beside a call":
        kinds = [each["type"] for each in calls_in(told["input"])]
        assert sorted(kinds) == ["function_call"] * 2 + ["function_call_output"] * 2
    else:
        expect_function(told["input"])


async def test_an_agent_from_which_the_tool_was_taken_gets_stored_calls_as_those_of_a_function(
    server: Upstream, tmp_path: Path
) -> None:
    server.script = [RAN, YES]
    previous: Any = None
    for hosted in (HOSTED, []):
        made = proxy_before(
            server.url,
            tmp_path,
            agent="openai-responses",
            table={"hosted_tools": hosted},
            store="sqlite",
        )
        async with made as proxy, AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none") as client:
            tools: Any = [CODE_TOOL] if hosted else []
            asked: Any = ASKED | {"tools": tools, "previous_response_id": previous}
            previous = (await client.responses.create(**asked)).id
    expect_function(server.requests[1].body["input"])


@pytest.mark.parametrize("listed", [[], HOSTED])
async def test_a_fallback_gets_no_container_of_the_first_upstream(
    listed: list[str], server: Upstream, tmp_path: Path
) -> None:
    async with upstream() as other:
        first: Any = {"url": server.url, "retries": 0, "breaker_failures": 0, "fallback": ["b"], **TABLE}
        second: Any = {"url": other.url, "hosted_tools": listed}
        tables = {name: {"wire": "responses", **each} for name, each in {"a": first, "b": second}.items()}
        async with (
            several(tmp_path, upstreams=tables) as proxy,
            AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
        ):
            server.script, other.script = [RAN], [YES]
            ran = await client.responses.create(model="a/small", input="Hi", tools=[CODE_TOOL])
            server.key = "another"  # from now on it refuses
            await client.responses.create(model="a/small", input="?", previous_response_id=ran.id)
    assert calls_in(server.requests[1].body["input"]) == [RUN_ITEM]
    expect_function(other.requests[0].body["input"])


@pytest.mark.parametrize(("model", "keeps"), [("a/small", False), ("b/small", True)])
async def test_a_container_that_a_fallback_has_made_is_the_fallbacks(
    model: str, keeps: bool, server: Upstream, tmp_path: Path
) -> None:
    async with upstream() as other:
        first: Any = {"url": server.url, "retries": 0, "breaker_failures": 0, "fallback": ["b"], **TABLE}
        tables = {"a": {"wire": "responses", **first}, "b": {"wire": "responses", "url": other.url, **TABLE}}
        async with (
            several(tmp_path, upstreams=tables) as proxy,
            AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
        ):
            key, server.key = server.key, "another"
            server.script, other.script = [YES], [RAN, YES]
            ran = await client.responses.create(model="a/small", input="Hi", tools=[CODE_TOOL])
            server.key = key  # from now on it answers again
            asked: Any = ASKED | {"model": model, "tools": [CODE_TOOL], "previous_response_id": ran.id}
            await client.responses.create(**asked)
    given = (other if keeps else server).requests[-1].body["input"]
    if keeps:
        assert calls_in(given) == [RUN_ITEM]
    else:
        expect_function(given)


SEARCH: Any = {"name": "file_search", "arguments": '{"queries":["who?"]}'}
FOUND = "[a.txt]\nIt was me."


@pytest.mark.parametrize("way", ["input", "stored", "compact", "trigger"])
@pytest.mark.parametrize("agent", ["openai-responses", "openai-chat"])
async def test_an_agent_without_file_search_gets_what_was_searched_and_found(
    agent: str, way: str, server: Upstream, tmp_path: Path
) -> None:
    told = text("Yes.") if agent == "openai-chat" else YES
    first: Any = {"url": server.url, "wire": "responses", **TABLE}
    tables = {"a": first, "b": {"url": server.url, "wire": agent.removeprefix("openai-")}}
    given: list[Any] = [SEARCH_ITEM, USER]
    if way == "trigger":
        given.append({"type": "compaction_trigger"})
    asked: Any = {"model": "b/small", "input": given}
    async with (
        several(tmp_path, upstreams=tables) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        if way == "stored":
            server.script = [response_with_items(SEARCH_ITEM, message("1"))]
            ran = await client.responses.create(model="a/small", input="Hi", tools=[SEARCH_TOOL])
            asked |= {"previous_response_id": ran.id, "input": [USER]}
        server.script = [told]
        if way == "compact":
            await client.responses.compact(**asked)
        else:
            await client.responses.create(**asked)
    body = server.requests[-1].body
    if agent == "openai-chat":
        calls = [call["function"] for each in body["messages"] for call in each.get("tool_calls", ())]
        outputs = [each["content"] for each in body["messages"] if each["role"] == "tool"]
        assert (calls, outputs) == ([SEARCH], [FOUND])
    else:
        call, output = calls_in(body["input"])
        assert (call["type"], call | SEARCH) == ("function_call", call)
        assert (output["type"], output["output"]) == ("function_call_output", FOUND)


@pytest.mark.parametrize("item", [{}, {"queries": 1, "results": [3, {"text": None}]}, {"results": []}])
async def test_a_search_call_of_any_form_is_told(item: Any, client: AsyncOpenAI, server: Upstream) -> None:
    given: Any = [{"type": "file_search_call", "id": "fs_1", **item}, USER]
    server.script = [text("Yes.")]
    await client.responses.create(model="small", input=given)
    call, output = calls_in(server.requests[0].body["messages"])[:2]
    assert call["tool_calls"][0]["function"]["name"] == "file_search"
    assert output["content"]


async def test_the_header_names_no_more_fields_than_clients_can_read(
    server: Upstream, tmp_path: Path
) -> None:
    orphan = {"type": "function_call_output", "call_id": "c", "output": "x"}
    given: Any = [*([RUN_ITEM] * 1500), *([orphan] * 1500), USER]
    server.script = [YES]
    profile: Any = {"responses_profile": "open-responses-server"}
    async with (
        proxy_before(server.url, tmp_path, agent="openai-responses", **profile) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        raw = await client.responses.with_raw_response.create(model="small", input=given)
    assert len(raw.headers["x-codex-ignored-params"]) < 500
