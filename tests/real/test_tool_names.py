"""Names that the agent forbids or swallows, and custom tools: there and back through the real binary."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from anthropic import AsyncAnthropic

from codex_proxy.agents.codex.plain_home import published_models
from codex_proxy.agents.codex_app_server.calls import agent_name, agent_names, javascript_name
from codex_proxy.core.items import Tool
from tests.missing import require
from tests.ollama_client import client_of
from tests.real.codex_home import MODEL, bundled_catalog
from tests.real.model_plans import PutOut, call_with, plan, say
from tests.real.model_scenarios import tools_of
from tests.real.model_server import ModelServer, Request
from tests.real.proxy import Proxy
from tests.real.shared import EVERY_WAY, Proxies
from tests.real.test_codex_as_client import DEFERRED, LITE, MCP_PROGRAM, tools_in
from tests.real.tool_loop import (
    FORGETTING,
    WEATHER,
    assert_grows,
    call_ids,
    function,
    functions_called,
    input_of,
    loop_of,
    outputs_of,
)

NAMES = [
    "exec_command",
    "shell_command",
    "mcp__files__read",
    "functions",
    "client_x",
    "apply_patch",
    "shell",
    "local_shell",
    "view_image",
    "mcp",
]
PATCH = {"type": "custom", "custom": {"name": "edit", "description": "Edits a file."}}


@pytest.mark.exhaustive
@FORGETTING
@pytest.mark.parametrize("name", NAMES)
async def test_a_name_that_the_agent_does_not_take_is_the_client_s_all_the_same(
    proxies: Proxies, model_server: ModelServer, way: str, name: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.request["tools"] = [function(name, x={"type": "string"}), WEATHER]
        loop.say(plan([call_with(agent_name(name), '{"x": "1"}')], [say("Done.")]))
        [called] = functions_called(await loop.ask())
        assert (called.name, called.arguments) == (name, '{"x": "1"}')
        loop.output(call_ids(loop.answers[0])[0], "made")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    assert sorted(tools_of(model_server.calls[0].body)) == sorted([agent_name(name), "get_weather"])
    [seen] = [item for item in input_of(model_server.calls[1]) if item["type"] == "function_call"]
    assert seen["name"] == agent_name(name), "the model sees the name that it called"
    assert outputs_of(model_server.calls[1]) == [("call_0_0", "made")]
    assert_grows(model_server.calls[:1] if way == "forgotten" else model_server.calls)


# --- beside the agent's own tools -----------------------------------------------------------------

AGENT = {"X-Codex-Mode": "agent"}
OWN = [
    *("apply_patch", "exec_command", "request_user_input", "shell"),
    *("tool_search", "update_plan", "view_image", "write_stdin"),
]
"""Names of Codex's own tools for the model `DEFERRED`, in some release."""
OF_SCRIPTS = [
    "apply_patch",
    "apply-patch",
    "clock__curr_time",
    "exec",
    "exec_command",
    "exec-command",
    "read_mcp_resource",
    "wait",
]
"""The same for `LITE`, which calls tools from JavaScript, where `-` is `_`."""
ARGUMENTS = '{"x": "1"}'


def name_beside_own(name: str) -> str:
    return agent_name(name, plain=False)


def call_of_script(*names: str) -> PutOut:
    """Calls from the JavaScript of a newer model, one after the other."""
    script = "".join(f"text(await tools.{javascript_name(name)}({ARGUMENTS}));" for name in names)
    return {"call": "exec", "text": script, "kind": "custom"}


def own_tools(call: Request) -> set[str]:
    """The tools that the model was offered, by their names in calls and in JavaScript."""
    found = {
        f"{space}__{tool['name']}" if space else tool["name"]
        for space, tool in tools_in(call.body)
        if "name" in tool
    }
    script = tools_of(call.body).get("exec", {}).get("description", "")
    found |= set(re.findall(r"declare const tools: { (\w+)\(", script))
    return {name.removeprefix("functions__") for name in found}


@FORGETTING
@pytest.mark.parametrize(
    "name", ["apply_patch", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OWN[1:])]
)
async def test_a_tool_named_as_one_of_the_agent_s_own_is_called_and_answered_beside_it(
    proxies: Proxies, model_server: ModelServer, way: str, name: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.request |= {"model": DEFERRED, "extra_headers": AGENT}
        loop.request["tools"] = [function(name, x={"type": "string"}), WEATHER]
        called = [call_with(name_beside_own(name), ARGUMENTS)]
        loop.say(plan(called, called, [say("Done.")]))
        for _ in range(2):
            answer = await loop.ask()
            [function_called] = functions_called(answer)
            assert (function_called.name, function_called.arguments) == (name, ARGUMENTS)
            loop.output(call_ids(answer)[0], "made")
        assert (await loop.ask()).choices[0].message.content == "Done."
    offered = tools_of(model_server.calls[0].body)
    assert list(offered[name_beside_own(name)]["parameters"]["properties"]) == ["x"]
    for number, request in enumerate(model_server.calls):
        seen = [item["name"] for item in input_of(request) if item["type"] == "function_call"]
        assert seen == [name_beside_own(name)] * number
        assert [output for _, output in outputs_of(request)] == ["made"] * number


@pytest.mark.parametrize(
    "name", ["apply_patch", *(pytest.param(name, marks=pytest.mark.exhaustive) for name in OF_SCRIPTS[1:])]
)
async def test_a_script_of_a_newer_model_calls_the_clients_tool_beside_the_agent_s_own(
    proxies: Proxies, model_server: ModelServer, name: str
) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.request |= {"model": LITE, "extra_headers": AGENT}
        loop.request["tools"] = [function(name, x={"type": "string"}), WEATHER]
        loop.say(plan([call_of_script(name_beside_own(name))], [say("Done.")]))
        first = await loop.ask()
        assert [called.name for called in functions_called(first)] == [name]
        loop.output(call_ids(first)[0], "made")
        assert (await loop.ask()).choices[0].message.content == "Done."
    assert "made" in json.dumps(input_of(model_server.calls[-1])[-1]["output"])


@pytest.mark.parametrize("model", [DEFERRED, LITE, MODEL])
async def test_each_tool_that_the_agent_has_for_a_model_leaves_the_clients_its_name(
    proxies: Proxies, model_server: ModelServer, model: str
) -> None:
    await assert_own_tools_are_known(await proxies.of(), model_server, model)


@pytest.mark.exhaustive
async def test_each_tool_that_the_agent_has_for_any_model_leaves_the_clients_its_name(
    proxies: Proxies, model_server: ModelServer
) -> None:
    for model in published_models(bundled_catalog()):
        await assert_own_tools_are_known(await proxies.of(), model_server, model.id)


async def assert_own_tools_are_known(proxy: Proxy, model_server: ModelServer, model: str) -> None:
    messages: Any = [{"role": "user", "content": "[[model:text]]"}]
    await proxy.client.chat.completions.create(model=model, messages=messages, extra_headers=AGENT)
    own = own_tools(model_server.calls[-1])
    assert "exec_command" in own
    in_javascript = {name.replace("_", "-") for name in own}
    assert [name for name in sorted(own | in_javascript) if name_beside_own(name) == name] == []


async def test_a_required_tool_is_named_as_the_model_knows_it(
    proxies: Proxies, model_server: ModelServer
) -> None:
    choice = {"type": "function", "function": {"name": "view_image"}}
    async with loop_of(proxies, "kept") as loop:
        loop.request |= {"model": DEFERRED, "extra_headers": AGENT}
        loop.request["tools"] = [function("view_image", x={"type": "string"}), WEATHER]
        loop.say(plan([say("No.")], again=[call_with("client_view_image", ARGUMENTS)]))
        [called] = functions_called(await loop.ask(tool_choice=choice))
    assert called.name == "view_image"
    for request in model_server.calls:
        assert "`client_view_image`" in json.dumps(input_of(request)[-1])


async def test_a_tool_of_the_operators_mcp_server_and_one_of_the_client_may_have_one_name(
    own_proxies: Proxies, model_server: ModelServer
) -> None:
    require("mcp")
    config = own_proxies.home.config
    arguments = [str(MCP_PROGRAM), "stdio", "--only", "echo"]
    config.write_text(
        f"{config.read_text()}\n[mcp_servers.files]\nrequired = true\n"
        f"command = {json.dumps(sys.executable)}\nargs = {json.dumps(arguments)}\n"
    )
    async with loop_of(own_proxies, "kept") as loop:
        loop.request |= {"extra_headers": AGENT, "tools": [function("echo", text={"type": "string"})]}
        own = call_with("echo", '{"text": "of the server"}') | {"namespace": "mcp__files"}
        loop.say(plan([own], [call_with("echo", '{"text": "hi"}')], [say("Done.")]))
        first = await loop.ask()
        assert len(call_ids(first)) == 1
        loop.output(call_ids(first)[0], "of the client")
        assert (await loop.ask()).choices[0].message.content == "Done."
    outputs = [json.dumps(output) for _, output in outputs_of(model_server.calls[-1])]
    assert ["of the server" in outputs[0], "of the client" in outputs[1]] == [True, True]


Step = Callable[[Any], Any]
"""Sends what the client says next (None: the tool's output); returns the name it is to call, or the answer's text."""


def tools_named(names: tuple[str, ...]) -> list[Any]:
    return [function(name, x={"type": "string"}) for name in names]


@asynccontextmanager
async def chat_steps(proxy: Proxy, *names: str, model: str = DEFERRED) -> AsyncIterator[Step]:
    tools: Any = tools_named(names)
    messages: list[Any] = []

    async def step(text: str | None) -> str | None:
        if text is None:
            [call] = messages[-1]["tool_calls"]
            made = f"made by {call['function']['name']}"
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": made})
        else:
            messages.append({"role": "user", "content": text})
        answer = await proxy.client.chat.completions.create(
            model=model, messages=messages, tools=tools, extra_headers=AGENT
        )
        messages.append(answer.choices[0].message.model_dump(exclude_none=True))
        called = functions_called(answer)
        return called[0].name if called else answer.choices[0].message.content

    yield step


@asynccontextmanager
async def responses_steps(proxy: Proxy, *names: str, model: str = DEFERRED) -> AsyncIterator[Step]:
    tools: Any = [{**tool["function"], "type": "function"} for tool in tools_named(names)]
    said: list[Any] = []

    async def step(text: str | None) -> str:
        if text is None:
            made = {"call_id": said[-1]["call_id"], "output": f"made by {said[-1]['name']}"}
            said.append({"type": "function_call_output", **made})
        else:
            said.append({"role": "user", "content": text})
        answer = await proxy.client.responses.create(
            model=model, input=said, tools=tools, extra_headers=AGENT, store=False
        )
        said.extend(item.model_dump(exclude_none=True) for item in answer.output)
        called = [item.name for item in answer.output if item.type == "function_call"]
        return called[0] if called else answer.output_text

    yield step


@asynccontextmanager
async def messages_steps(proxy: Proxy, *names: str, model: str = DEFERRED) -> AsyncIterator[Step]:
    tools: Any = [
        {"name": tool["function"]["name"], "input_schema": tool["function"]["parameters"]}
        for tool in tools_named(names)
    ]
    messages: list[Any] = []
    async with AsyncAnthropic(base_url=proxy.url, api_key="none", max_retries=0) as client:

        async def step(text: str | None) -> str:
            last = messages[-1]["content"][-1] if messages else {}
            made = f"made by {last.get('name')}"
            result = [{"type": "tool_result", "tool_use_id": last.get("id"), "content": made}]
            messages.append({"role": "user", "content": result if text is None else text})
            answer = await client.messages.create(
                model=model,
                max_tokens=1000,
                messages=messages,
                tools=tools,
                extra_headers=AGENT,
            )
            messages.append(answer.model_dump(include={"role", "content"}, exclude_none=True))
            [block] = [block for block in answer.content if block.type in ("tool_use", "text")]
            return block.name if block.type == "tool_use" else getattr(block, "text", "")

        yield step


@asynccontextmanager
async def ollama_steps(proxy: Proxy, *names: str, model: str = DEFERRED) -> AsyncIterator[Step]:
    messages: list[Any] = []
    async with client_of(proxy.url, **AGENT) as client:

        async def step(text: str | None) -> str | None:
            if text is None:
                [call] = messages[-1].tool_calls
                name = call.function.name
                messages.append({"role": "tool", "tool_name": name, "content": f"made by {name}"})
            else:
                messages.append({"role": "user", "content": text})
            answer = await client.chat(model, messages, tools=tools_named(names))
            messages.append(answer.message)
            called = answer.message.tool_calls
            return called[0].function.name if called else answer.message.content

        yield step


APIS = {"chat": chat_steps, "responses": responses_steps, "messages": messages_steps, "ollama": ollama_steps}


@pytest.mark.parametrize(
    "kept", [True, pytest.param(False, marks=pytest.mark.exhaustive)], ids=["kept", "replayed"]
)
@pytest.mark.parametrize("api", APIS)
async def test_on_each_api_a_client_meets_its_own_names_alone(
    proxies: Proxies, model_server: ModelServer, api: str, kept: bool
) -> None:
    proxy = await proxies.of(**({} if kept else {"kept_threads": 0}))
    async with APIS[api](proxy, "apply_patch") as step:
        called = [call_with("client_apply_patch", ARGUMENTS)]
        assert await step(plan(called, called, [say("Done.")])) == "apply_patch"
        assert await step(None) == "apply_patch"
        assert await step(None) == "Done."
    for number, request in enumerate(model_server.calls):
        assert [output for _, output in outputs_of(request)] == ["made by apply_patch"] * number


MEETING = [("get-weather", "get_weather"), ("a-b_c", "a_b-c"), ("client-x", "client_x"), ("1x", "-x")]


@pytest.mark.parametrize(
    "names", [MEETING[0], *(pytest.param(each, marks=pytest.mark.exhaustive) for each in MEETING[1:])]
)
@pytest.mark.parametrize("api", APIS)
async def test_on_each_api_a_script_calls_both_of_two_tools_that_javascript_would_call_alike(
    proxies: Proxies, model_server: ModelServer, api: str, names: tuple[str, str]
) -> None:
    offered = agent_names(map(Tool, names), plain=False)
    async with APIS[api](await proxies.of(), *names, model=LITE) as step:
        called = [call_of_script(*(offered[name] for name in names))]
        assert await step(plan(called, [say("Done.")])) == names[0]
        assert await step(None) == names[1]
        assert await step(None) == "Done."
    told = [part["text"] for part in input_of(model_server.calls[-1])[-1]["output"]]
    assert told[-2:] == [f"made by {name}" for name in names]


async def test_as_many_tools_as_a_request_may_have_are_offered_as_they_are(
    proxies: Proxies, model_server: ModelServer
) -> None:
    async with loop_of(proxies, "kept") as loop:
        names = [f"tool_{number}" for number in range(128)]
        loop.request["tools"] = [function(name, x={"type": "string"}) for name in names]
        loop.say("[[model:text]]")
        await loop.ask()
    assert list(tools_of(model_server.calls[0].body)) == names


TEXTS = ['*** Begin Patch\n+"quoted" \\ and ü', "", '{"input": "looks like ours"}']


@pytest.mark.sampled(every=3)
@EVERY_WAY
@pytest.mark.parametrize("text", TEXTS, ids=["text", "empty", "JSON"])
async def test_a_custom_tool_travels_as_a_function_and_comes_back_as_what_it_is(
    proxies: Proxies, model_server: ModelServer, way: str, text: str
) -> None:
    async with loop_of(proxies, way) as loop:
        loop.request["tools"] = [PATCH, WEATHER]
        arguments = json.dumps({"input": text})
        loop.say(plan([call_with("edit", arguments)], [say("Done.")]))
        first = await loop.ask()
        [call] = first.choices[0].message.tool_calls or []
        assert call.type == "custom"
        assert (call.custom.name, call.custom.input) == ("edit", text)
        assert first.choices[0].finish_reason == "tool_calls"
        loop.output(call.id, "patched")
        last = await loop.ask()
    assert last.choices[0].message.content == "Done."
    offered: dict[str, Any] = tools_of(model_server.calls[0].body)["edit"]
    assert offered["type"] == "function"
    assert list(offered["parameters"]["properties"]) == ["input"]
    [seen] = [item for item in input_of(model_server.calls[1]) if item["type"] == "function_call"]
    assert (seen["name"], seen["arguments"]) == ("edit", arguments)
    assert outputs_of(model_server.calls[1]) == [(call.id, "patched")]
    assert_grows(model_server.calls)


async def test_a_custom_tool_can_be_required(proxies: Proxies, model_server: ModelServer) -> None:
    async with loop_of(proxies, "kept") as loop:
        loop.request["tools"] = [PATCH, WEATHER]
        loop.say(plan([say("No.")], again=[call_with("edit", '{"input": "x"}')]))
        answer = await loop.ask(tool_choice={"type": "custom", "custom": {"name": "edit"}})
        [call] = answer.choices[0].message.tool_calls or []
        assert call.type == "custom"
        assert call.custom.input == "x"
    assert list(tools_of(model_server.calls[0].body)) == ["edit"]
