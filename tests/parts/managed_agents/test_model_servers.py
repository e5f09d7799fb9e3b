"""A model server behind whole sessions of the Managed Agents API, with custom tools."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model_server import USAGE, Case, call, proxy_before, stream, text, upstream
from tests.parts.managed_agents.driving import TOOLSET, WEATHER
from tests.parts.managed_agents.following import (
    IDLE,
    RUNNING,
    STEP,
    ManagedClient,
    kinds,
    message,
    result,
    said,
)

pytestmark = pytest.mark.part("upstream")


def roles(messages: list[dict[str, Any]]) -> list[str]:
    return [each["role"] for each in messages]


async def test_a_session_on_a_model_server_calls_a_tool_and_remembers_the_conversation(
    tmp_path: Path,
) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        client = ManagedClient(proxy)
        agent = await client.new_agent(WEATHER, model="small", system="Be brief.")
        id = await client.new_session(agent=agent)
        arguments = json.dumps({"city": "Paris"})
        server.script = [stream(call("get_weather", arguments), finish="tool_calls"), text("It is rainy.")]
        async with client.stream(id) as events:
            await client.send(id, message("What is the weather?"))
            (use,) = (await events.until(IDLE))["stop_reason"]["event_ids"]
            (asked,) = (each for each in events.events if each["type"] == "agent.custom_tool_use")
            assert (asked["id"], asked["name"], asked["input"]) == (use, "get_weather", {"city": "Paris"})
            await client.send(id, result(use, "rainy"))
            told = await client.until_rest(id, events)
            assert kinds(told) == [
                *("user.message", RUNNING, STEP[0], "agent.custom_tool_use", STEP[2], IDLE),
                *("user.custom_tool_result", RUNNING, *STEP, IDLE),
            ]
            spent = [each["model_usage"] for each in told if each["type"] == STEP[2]]
            assert [each["output_tokens"] for each in spent] == [USAGE["completion_tokens"]] * 2
            server.script = [text("Paris.")]
            await client.send(id, message("Which city?"))
            await events.until(IDLE)
            assert said(events.events) == ["It is rainy.", "Paris."]
            assert events.events == await client.events(id)
        first, second, third = (each.body for each in server.requests)
        assert first["model"] == "small"
        assert "Be brief." in json.dumps(first["messages"][0])
        assert second["messages"][-1] == {**second["messages"][-1], "role": "tool", "content": "rainy"}
        assert roles(third["messages"])[-4:] == ["assistant", "tool", "assistant", "user"]


async def test_a_turn_that_the_model_server_refuses_fails_and_the_next_goes_on(tmp_path: Path) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        client = ManagedClient(proxy)
        id = await client.new_session(agent=await client.new_agent(model="small"))
        server.script = [Case(429, {}, ['{"error": {"message": "Slower."}}'], [], "")]
        told = await client.turn(id, message("Hello."))
        assert [each["error"]["type"] for each in told if each["type"] == "session.error"] == [
            "model_rate_limited_error"
        ]
        assert told[-1]["stop_reason"]["type"] == "retries_exhausted"
        assert said(await client.turn(id, message("Again."))) == ["Hello."]
        assert roles(server.requests[-1].body["messages"]).count("user") == 2


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        (
            {"tools": [TOOLSET]},
            "tools[0].default_config: the agent openai-chat has no tools of its own. Leave the toolset out.",
        ),
        (
            {"multiagent": {"type": "coordinator", "agents": [{"type": "self"}]}},
            "multiagent: the agent openai-chat cannot run threads. Leave it out, or use a model of another agent.",
        ),
    ],
)
async def test_what_a_model_server_cannot_have_is_refused_with_what_to_do(
    tmp_path: Path, fields: dict[str, Any], message: str
) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        body = {"name": "a", "model": "small", **fields}
        assert await ManagedClient(proxy).refused(400, "/agents", body) == message
