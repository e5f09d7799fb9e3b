"""Names that the agent forbids or swallows, and custom tools: there and back through the real binary."""

from __future__ import annotations

import json
from typing import Any

import pytest

from codex_proxy.agents.codex_app_server.calls import agent_name
from tests.real.model_plans import call_with, plan, say
from tests.real.model_scenarios import tools_of
from tests.real.model_server import ModelServer
from tests.real.shared import EVERY_WAY, Proxies
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
