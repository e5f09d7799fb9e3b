"""Both APIs in front of an upstream that only knows Chat Completions, with the official SDK as the client."""

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
from tests.model_server import (
    CASES,
    DONE,
    USAGE,
    Case,
    Upstream,
    call,
    chunk,
    event,
    proxy_before,
    stream,
    text,
    upstream,
)
from tests.parts.upstream.test_scenarios import mcp_config
from tests.waiting import eventually, poll
from tests.weather_tool import CHAT_WEATHER, RESPONSES_WEATHER

PARIS = '{"city":"Paris"}'


@pytest.fixture
async def server() -> AsyncIterator[Upstream]:
    async with upstream() as served:
        served.models += [{"id": name} for name in CASES]
        yield served


def expected_text(case: Case) -> str:
    """What of a case is the answer's text."""
    return "".join(text for kind, _, text in case.items if kind == "Message")


def calls(case: Case) -> list[Any]:
    return [[name, json.loads(text)] for kind, name, text in case.items if kind == "ToolCall"]


# --- every dialect, on each endpoint --------------------------------------------------------------


@pytest.mark.sampled(every=8)
@pytest.mark.parametrize("name", CASES)
async def test_chat_streams_what_the_upstream_means(name: str, client: AsyncOpenAI) -> None:
    case, text, finish, usage = CASES[name], "", None, None
    made: dict[int, list[str]] = {}
    try:
        answer = await client.chat.completions.create(
            model=name, messages=[{"role": "user", "content": "weather?"}], tools=[CHAT_WEATHER], stream=True,
            stream_options={"include_usage": True},
        )  # fmt: skip
        async for part in answer:
            usage = part.usage or usage
            for choice in part.choices:
                text += choice.delta.content or choice.delta.refusal or ""
                finish = choice.finish_reason or finish
                for each in choice.delta.tool_calls or ():
                    assert each.function is not None
                    found = made.setdefault(each.index, ["", ""])
                    found[0] += each.function.name or ""
                    found[1] += each.function.arguments or ""
    except openai.APIError:
        assert case.stop == "failed"
        assert finish is None, "a failed answer is never a whole one"
    else:
        assert finish == case.stop
        assert [[tool, json.loads(given)] for tool, given in made.values()] == calls(case)
        if case.usage:
            assert usage is not None
            assert (usage.prompt_tokens, usage.completion_tokens) == case.usage
    if case.status == 200 and case.fault is None:
        assert text == expected_text(case)


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("name", CASES)
async def test_responses_streams_what_the_upstream_means(name: str, client: AsyncOpenAI) -> None:
    case, last, text = CASES[name], None, ""
    try:
        answer = await client.responses.create(
            model=name, input="weather?", tools=[RESPONSES_WEATHER], stream=True
        )
        async for event in answer:
            last = event
            if event.type in ("response.output_text.delta", "response.refusal.delta"):
                text += event.delta
    except openai.APIError:
        assert case.stop == "failed"
        return
    assert last is not None
    response: Any = getattr(last, "response", None)
    status = {"length": "incomplete", "content_filter": "incomplete", "failed": "failed"}
    assert response.status == status.get(case.stop, "completed")
    assert text == expected_text(case)
    made = [
        [item.name, json.loads(item.arguments)] for item in response.output if item.type == "function_call"
    ]
    assert made == calls(case)
    if case.usage and case.stop != "failed":
        assert (response.usage.input_tokens, response.usage.output_tokens) == case.usage


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", CASES)
async def test_a_whole_answer_has_the_content_of_the_upstreams_answer(name: str, proxy: Proxy) -> None:
    case = CASES[name]
    chat = await proxy.ask(user("weather?", tools=[CHAT_WEATHER]) | {"model": name})
    body = {"model": name, "input": "weather?", "tools": [RESPONSES_WEATHER]}
    response = await proxy.send("POST", "/v1/responses", body)
    if case.fault is not None:
        assert chat.status >= 400
        assert case.message in chat.error["message"]
        assert response.status >= 400 or response.body["status"] == "failed"
        return
    message = chat.body["choices"][0]
    assert message["finish_reason"] == case.stop
    assert (message["message"].get("content") or message["message"].get("refusal") or "") == expected_text(
        case
    )
    made = [each["function"] for each in message["message"].get("tool_calls") or ()]
    assert [[each["name"], json.loads(each["arguments"])] for each in made] == calls(case)
    assert response.body["status"] in ("completed", "incomplete")


# --- what reaches the upstream --------------------------------------------------------------------


async def test_sampling_reaches_the_upstream_as_it_is(proxy: Proxy, server: Upstream) -> None:
    sampling: dict[str, Any] = {
        "temperature": 0.2,
        "top_p": 0.9,
        "seed": 7,
        "logit_bias": {"5": -1},
        "top_k": 3,
    }
    answer = await proxy.ask(user(**sampling, max_tokens=5, stop=["x"], tools=[CHAT_WEATHER]))
    assert "x-codex-ignored-params" not in answer.headers
    assert {name: server.requests[-1].body[name] for name in sampling} == sampling
    assert (server.requests[-1].body["max_tokens"], server.requests[-1].body["stop"]) == (5, ["x"])
    body = {"model": "small", "input": "Hi", "temperature": 0.3, "top_p": 0.8, "max_output_tokens": 6}
    answer = await proxy.send("POST", "/v1/responses", body)
    assert "x-codex-ignored-params" not in answer.headers
    asked = server.requests[-1].body
    assert (asked["temperature"], asked["top_p"], asked["max_tokens"]) == (0.3, 0.8, 6)


async def test_tool_choice_is_a_parameter_and_not_part_of_the_prompt(proxy: Proxy, server: Upstream) -> None:
    server.script = [stream(call("get_weather", PARIS), finish="tool_calls")]
    await proxy.ask(user(tools=[CHAT_WEATHER], tool_choice="required"))
    asked = server.requests[-1].body
    assert asked["tool_choice"] == {"type": "function", "function": {"name": "get_weather"}}
    assert [message["role"] for message in asked["messages"]] == ["user"]


async def test_a_model_that_does_not_make_a_required_call_is_asked_once_more(
    proxy: Proxy, server: Upstream
) -> None:
    server.script = [text("Sunny."), stream(call("get_weather", PARIS), finish="tool_calls")]
    answer = await proxy.ask(user(tools=[CHAT_WEATHER], tool_choice="required"))
    assert answer.body["choices"][0]["finish_reason"] == "tool_calls"
    assert "get_weather" in server.requests[1].body["messages"][-1]["content"]


@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("mode", ["auto", "required"])
async def test_a_call_of_a_tool_that_is_not_allowed_is_hidden_and_the_model_gets_an_error(
    mode: str, streamed: bool, proxy: Proxy, server: Upstream
) -> None:
    other = {"type": "function", "function": {"name": "other", "parameters": {"type": "object"}}}
    allowed = {"mode": mode, "tools": [{"type": "function", "function": {"name": "get_weather"}}]}
    server.script = [
        stream(call("other", "{}"), finish="tool_calls"),
        stream(call("get_weather", '{"city":"Paris"}', "call_b"), finish="tool_calls"),
    ]
    asked = user(tools=[CHAT_WEATHER, other], stream=streamed) | {"model": "small"}
    choice = {"type": "allowed_tools", "allowed_tools": allowed}
    answer = await proxy.ask({**asked, "tool_choice": choice})
    assert answer.status == 200
    assert '"get_weather"' in answer.text
    assert '"other"' not in answer.text
    first, second = (each.body for each in server.requests)
    assert [tool["function"]["name"] for tool in first["tools"]] == ["get_weather"]
    assert "no other tool that is offered" in second["messages"][-1]["content"]


@pytest.mark.parametrize("kind", ["json_schema", "json_object"])
async def test_a_format_reaches_the_upstream_and_is_kept(kind: str, proxy: Proxy, server: Upstream) -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
    wanted = {"type": kind} | (
        {"json_schema": {"name": "x", "schema": schema}} if kind == "json_schema" else {}
    )
    server.script = [text("no"), text('{"a": 1}')]
    answer = await proxy.ask(user("JSON!", response_format=wanted))
    assert json.loads(answer.body["choices"][0]["message"]["content"]) == {"a": 1}
    asked = server.requests[0].body["response_format"]
    assert asked["type"] == kind
    if kind == "json_schema":
        assert asked["json_schema"]["name"] == "x"
        assert asked["json_schema"]["schema"].items() >= schema.items()


DETAILS: dict[str, Any] = {"service_tier": "flex", "system_fingerprint": "fp_1"}
CITATION = {
    "type": "url_citation",
    "url_citation": {"url": "https://example.com", "start_index": 0, "end_index": 5},
}
USAGE_DETAILS: dict[str, Any] = {
    **USAGE,
    "prompt_tokens_details": {"cached_tokens": 3, "audio_tokens": 0, "cache_write_tokens": 4},
    "completion_tokens_details": {
        "reasoning_tokens": 2,
        "audio_tokens": 1,
        "accepted_prediction_tokens": 5,
        "rejected_prediction_tokens": 6,
    },
}
DETAILED = [
    *(
        chunk({"role": "assistant", "content": "Hello"}, **DETAILS),
        chunk({"annotations": [CITATION]}, **DETAILS),
    ),
    *(chunk({}, "stop", **DETAILS), {**chunk({}), "choices": [], "usage": USAGE_DETAILS}),
]


@pytest.mark.parametrize("streamed", [False, True])
async def test_an_answer_that_is_reported_anew_keeps_what_openais_wire_has(
    streamed: bool, proxy: Proxy, server: Upstream
) -> None:
    server.script = [b"".join(map(event, DETAILED)) + DONE]
    asked = user("Hi", tools=[CHAT_WEATHER]) | {"model": "small"}
    if not streamed:
        body = (await proxy.ask(asked)).body
        [message] = [each["message"] for each in body["choices"]]
        assert (message["content"], message["annotations"]) == ("Hello", [CITATION])
        tops, usage = [body], body["usage"]
    else:
        options = {"stream": True, "stream_options": {"include_usage": True}}
        *frames, _ = (await proxy.ask({**asked, **options})).frames
        deltas = [each["delta"] for frame in frames for each in frame["choices"]]
        assert [delta["annotations"] for delta in deltas if "annotations" in delta] == [[CITATION]]
        assert [each["finish_reason"] for frame in frames for each in frame["choices"]][-2:] == [None, "stop"]
        tops, usage = frames, frames[-1]["usage"]
        assert all("usage" in frame for frame in frames)
    assert all({name: top[name] for name in DETAILS} == DETAILS for top in tops)
    for field in ("prompt_tokens_details", "completion_tokens_details"):
        assert usage[field] == USAGE_DETAILS[field]


@pytest.mark.parametrize("place", ["before", "beside", "behind"])
async def test_sources_that_a_text_cites_reach_clients_of_responses(
    place: str, proxy: Proxy, server: Upstream
) -> None:
    said = {"content": "Hello"} | ({"annotations": [CITATION, 7]} if place == "beside" else {})
    apart = [chunk({"annotations": [CITATION]}), chunk({"annotations": [7]})]
    chunks = [*(apart if place == "before" else ()), chunk(said), *(apart if place == "behind" else ())]
    server.script = [b"".join(map(event, [*chunks, chunk({}, "stop")])) + DONE] * 2
    flat = {"type": "url_citation", **CITATION["url_citation"]}  # type: ignore[dict-item]
    whole = (await proxy.send("POST", "/v1/responses", {"model": "small", "input": "Hi"})).body
    [told] = [item for item in whole["output"] if item["type"] == "message"]
    assert told["content"] == [
        {"type": "output_text", "text": "Hello", "annotations": [flat], "logprobs": []}
    ]
    going_on = {"model": "small", "input": "And?", "previous_response_id": whole["id"]}
    streamed = await proxy.send("POST", "/v1/responses", {**going_on, "stream": True})
    lines = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith("data: {")]
    frames = [json.loads(line) for line in lines]
    kinds = [frame["type"] for frame in frames if "annotation" in frame]
    assert kinds == ["response.output_text.annotation.added"]
    assert frames[-1]["response"]["output"][0]["content"] == told["content"]


async def test_the_input_of_a_custom_tool_reaches_both_apis_as_the_upstream_writes_it(
    proxy: Proxy, server: Upstream
) -> None:
    pieces = ['{"input": "*** Begin', " Patch\\n+", 'x"}']
    first, *others = pieces
    function = {"name": "patch", "arguments": first}
    begun = {"index": 0, "id": "call_a", "type": "function", "function": function}
    deltas = [begun, *({"index": 0, "function": {"arguments": each}} for each in others)]
    chunks = [*(chunk({"tool_calls": [each]}) for each in deltas), chunk({}, "tool_calls")]
    server.script = [b"".join(map(event, chunks)) + DONE] * 2
    said = ["*** Begin", " Patch\n+", "x"]
    async with AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none") as client:
        stream = await client.responses.create(
            model="small", input="?", stream=True, tools=[{"type": "custom", "name": "patch"}]
        )
        events = [each async for each in stream]
        assert [each.delta for each in events if each.type == "response.custom_tool_call_input.delta"] == said
        [done] = [each.input for each in events if each.type == "response.custom_tool_call_input.done"]
        assert done == "".join(said)
        told: Any = await client.chat.completions.create(
            model="small",
            messages=[{"role": "user", "content": "?"}],
            tools=[{"type": "custom", "custom": {"name": "patch"}}],
            stream=True,
        )
        calls = [
            each async for part in told for choice in part.choices for each in choice.delta.tool_calls or ()
        ]
    assert [each.model_extra["custom"].get("input") for each in calls] == ["", *said]


@pytest.mark.exhaustive
async def test_counts_of_all_requests_of_a_turn_are_added_and_the_last_answer_names_itself(
    server: Upstream, tmp_path: Path
) -> None:
    first = [
        chunk(call("files__echo", '{"text":"x"}'), **DETAILS),
        chunk({}, "tool_calls", usage=USAGE_DETAILS),
    ]
    last = [chunk({"content": "Hi"}, "stop", system_fingerprint="fp_2", usage=USAGE_DETAILS)]
    server.script = [b"".join(map(event, each)) + DONE for each in (first, last)]
    async with proxy_before(server.url, tmp_path, mcp_config=mcp_config(tmp_path)) as proxy:
        body = (await proxy.ask(user("Hi") | {"model": "small"})).body
    assert (body["system_fingerprint"], body.get("service_tier")) == ("fp_2", None)
    assert body["usage"]["completion_tokens_details"]["rejected_prediction_tokens"] == 12


async def test_fields_that_are_the_upstreams_own_reach_it_where_the_answer_is_reported_anew(
    proxy: Proxy, server: Upstream
) -> None:
    fields: dict[str, Any] = {
        "web_search_options": {"search_context_size": "low"},
        "service_tier": "scale",
        "metadata": {"a": "b"},
        "user": "u",
        "x_own": {"a": 1.0},
        "temperature": 0.25,
        "stop": ["END"],
        "seed": 7,
    }
    answer = await proxy.ask(user(tools=[CHAT_WEATHER], **fields) | {"model": "small"})
    assert answer.status == 200
    assert answer.headers["x-codex-passed-params"] == "x_own"
    assert "x-codex-ignored-params" not in answer.headers
    assert {name: server.requests[-1].body[name] for name in fields} == fields


async def test_usage_that_the_upstream_does_not_report_is_an_estimate_that_says_so(
    proxy: Proxy, server: Upstream
) -> None:
    server.script = [CASES[name] for name in ("no_usage", "good_text")]
    for estimated in (True, False):
        usage = (await proxy.send("POST", "/v1/responses", {"model": "small", "input": "Hi"})).body["usage"]
        assert usage.get("estimated", False) is estimated
        assert usage["output_tokens"] > 0


async def test_an_agent_is_not_to_be_had(proxy: Proxy) -> None:
    answer = await proxy.ask(user(), headers={"X-Codex-Mode": "agent"})
    assert (answer.status, answer.error["code"]) == (403, "not_allowed")
    assert "from a model server" in answer.error["message"]


async def test_a_client_that_asked_for_no_usage_gets_none_though_the_upstream_was_asked(
    proxy: Proxy, server: Upstream
) -> None:
    frames = (await proxy.ask(user(stream=True))).frames
    assert not any(frame.get("usage") for frame in frames[:-1])
    assert server.requests[-1].body["stream_options"] == {"include_usage": True}


# --- models ---------------------------------------------------------------------------------------


async def test_the_models_are_the_upstreams(client: AsyncOpenAI, proxy: Proxy) -> None:
    names = [model.id async for model in client.models.list()]
    assert names[:2] == ["small", "large"]
    assert not any(name.startswith("codex") for name in names)
    small = (await proxy.send("GET", "/v1/models/small")).body
    assert (small["context_window"], small["owned_by"]) == (8192, "upstream")


async def test_a_name_that_the_upstream_does_not_list_never_reaches_it(
    proxy: Proxy, server: Upstream
) -> None:
    answer = await proxy.ask(user() | {"model": "smal"})
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert server.requests == []


async def test_the_default_model_is_the_first_that_is_listed(proxy: Proxy, server: Upstream) -> None:
    await proxy.ask(user())
    assert server.requests[-1].body["model"] == "small"


async def test_new_models_of_the_upstream_are_found_while_the_server_runs(
    server: Upstream, tmp_path: Path
) -> None:
    async with proxy_before(server.url, tmp_path, table={"health_interval": 0.01}) as proxy:
        server.models.append({"id": "new"})
        listed = server.listed
        await eventually(lambda: server.listed > listed + 1)
        assert (await proxy.ask(user() | {"model": "new"})).status == 200


# --- loops of tools -------------------------------------------------------------------------------


async def test_a_tool_loop_of_chat_goes_round(client: AsyncOpenAI, server: Upstream) -> None:
    server.script = [stream({"content": "Let me see."}, call("get_weather", PARIS), finish="tool_calls")]
    messages: list[Any] = [{"role": "user", "content": "weather?"}]
    first = await client.chat.completions.create(model="small", messages=messages, tools=[CHAT_WEATHER])
    message = first.choices[0].message
    assert message.tool_calls is not None
    messages += [message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}]
    second = await client.chat.completions.create(model="small", messages=messages, tools=[CHAT_WEATHER])
    assert second.choices[0].message.content == "Hello."
    asked = server.requests[-1].body["messages"]
    assert [each["role"] for each in asked] == ["user", "assistant", "tool"]
    assert asked[1]["content"] == "Let me see."
    assert asked[1]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": PARIS}


SIGNED: Any = {"extra_content": {"google": {"thought_signature": "SIG123"}}}
"""What Gemini wants back with a call."""


@pytest.mark.parametrize("sent_back", [True, False])
async def test_a_call_keeps_the_fields_that_only_its_server_knows(
    sent_back: bool, server: Upstream, tmp_path: Path
) -> None:
    called = call("get_weather", PARIS)
    called["tool_calls"][0] |= SIGNED
    server.models, server.script = [{"id": "small"}, {"id": "big"}], [stream(called, finish="tool_calls")] * 2
    asked = user("weather?") | {"model": "small", "tools": [CHAT_WEATHER]}
    memory = "off" if sent_back else "ram"  # what remembers a call for clients that do not send all of it
    async with proxy_before(server.url, tmp_path, tool_memory=memory) as proxy:
        assert (await proxy.ask(asked | {"stream": True})).text.count('"thought_signature":"SIG123"') == 1
        message = (await proxy.ask(asked)).body["choices"][0]["message"]
        made = message["tool_calls"][0]
        assert made.items() >= SIGNED.items()
        if not sent_back:
            del made["extra_content"]
        messages = [*asked["messages"], message, {"role": "tool", "tool_call_id": made["id"], "content": "1"}]
        for model in ("small", *(() if sent_back else ("big",))):
            assert (await proxy.ask(asked | {"messages": messages, "model": model})).status == 200
            told = server.requests[-1].body["messages"][1]["tool_calls"][0]
            assert ("extra_content" in told) == (model == "small")


@pytest.mark.parametrize("strict", [False, True])
async def test_a_tool_loop_of_responses_goes_on_from_what_is_stored(
    strict: bool, client: AsyncOpenAI, server: Upstream
) -> None:
    server.script = [stream(call("get_weather", PARIS), finish="tool_calls")]
    tool = RESPONSES_WEATHER | {"strict": strict}
    first = await client.responses.create(model="small", input="weather?", tools=[tool])
    [made] = [item for item in first.output if item.type == "function_call"]
    output: Any = {"type": "function_call_output", "call_id": made.call_id, "output": "sunny"}
    second = await client.responses.create(
        model="small", input=[output], previous_response_id=first.id, tools=[tool]
    )
    assert second.output_text == "Hello."
    asked = server.requests[-1].body["messages"]
    assert [each["role"] for each in asked] == ["user", "assistant", "tool"]
    assert asked[2] == {"role": "tool", "tool_call_id": made.call_id, "content": "sunny"}
    assert (await client.responses.retrieve(first.id)).output[0].type == "function_call"


async def test_a_call_that_breaks_a_strict_schema_is_hidden_and_asked_for_again(
    client: AsyncOpenAI, server: Upstream
) -> None:
    wrong, right = (stream(call("get_weather", given), finish="tool_calls") for given in ("{}", PARIS))
    server.script = [wrong, right]
    answer = await client.responses.create(
        model="small", input="weather?", tools=[RESPONSES_WEATHER | {"strict": True}]
    )
    assert [item.arguments for item in answer.output if item.type == "function_call"] == [PARIS]
    assert "break the tool's schema" in server.requests[1].body["messages"][-1]["content"]
    assert answer.usage is not None
    assert answer.usage.input_tokens == 22, "of both steps"


async def test_a_background_response_is_answered_and_kept(client: AsyncOpenAI) -> None:
    queued = await client.responses.create(model="small", input="Hi", background=True)
    assert queued.status in ("queued", "in_progress")

    async def done() -> Any:
        found = await client.responses.retrieve(queued.id)
        return found if found.status == "completed" else None

    assert (await poll(done)).output_text == "Hello."


async def test_reasoning_of_the_upstream_is_shown_and_not_sent_back(
    client: AsyncOpenAI, server: Upstream
) -> None:
    first = await client.responses.create(model="reasoning_content", input="Hi")
    assert [item.type for item in first.output] == ["reasoning", "message"]
    await client.responses.create(model="small", input="And?", previous_response_id=first.id)
    assert [each["content"] for each in server.requests[-1].body["messages"]] == ["Hi", "Hello world", "And?"]


@pytest.mark.parametrize("strict", [False, True])
async def test_an_id_that_the_upstream_gives_again_or_that_is_too_long_becomes_another(
    strict: bool, client: AsyncOpenAI, server: Upstream
) -> None:
    tool = RESPONSES_WEATHER | {"strict": strict}
    ids = ("call_a", "call_a", "x" * 65)
    server.script = [stream(call("get_weather", PARIS, id), finish="tool_calls") for id in ids]
    items: list[Any] = [{"role": "user", "content": "weather?"}]
    for _ in ids:
        answer = await client.responses.create(model="small", input=items, tools=[tool], store=False)
        [made] = [item for item in answer.output if item.type == "function_call"]
        items += [made, {"type": "function_call_output", "call_id": made.call_id, "output": "sunny"}]
    answer = await client.responses.create(model="small", input=items, tools=[tool], store=False)
    assert answer.output_text == "Hello."
    told = [each["tool_call_id"] for each in server.requests[-1].body["messages"] if each["role"] == "tool"]
    assert told[0] == "call_a"
    assert len(set(told)) == 3
    assert max(map(len, told)) <= 64


# --- tools of MCP servers -------------------------------------------------------------------------


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("streamed", [False, True])
@pytest.mark.parametrize("surface", ["chat", "responses"])
async def test_tools_of_an_mcp_server_are_run_here(
    surface: str, streamed: bool, server: Upstream, tmp_path: Path
) -> None:
    config = tmp_path / "mcp.json"
    config.write_text(
        json.dumps({"mcpServers": {"files": {"command": sys.executable, "args": [PROGRAM, "stdio"]}}})
    )
    server.script = [
        stream(call("files__echo", '{"text":"hello.txt"}'), finish="tool_calls"),
        text("It is hello.txt."),
    ]
    async with (
        proxy_before(server.url, tmp_path, mcp_config=config) as proxy,
        AsyncOpenAI(base_url=f"{proxy.url}/v1", api_key="none", max_retries=0) as client,
    ):
        if surface == "chat":
            answer = await proxy.ask(user("read it") | {"stream": streamed})
            assert "It is he" in answer.text
            assert '"tool_calls"' not in answer.text
        elif streamed:
            kinds = [
                event.type
                async for event in await client.responses.create(model="small", input="?", stream=True)
            ]
            assert "response.mcp_call.completed" in kinds
            assert kinds[-1] == "response.completed"
        else:
            response = await client.responses.create(model="small", input="?")
            assert response.output_text == "It is hello.txt."
            assert "mcp_call" in [item.type for item in response.output]
    tool = server.requests[1].body["messages"][-1]
    assert (tool["role"], tool["tool_call_id"]) == ("tool", "call_a")
    assert "hello.txt" in tool["content"]
