"""The five scenarios of open-responses-server over an upstream of Chat Completions, in its profile and in OpenAI's
events, and its tool loop on both endpoints. Source: docs/contract.md#the-profile-of-open-responses-server.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import WEATHER, frames_of, user
from tests.mcp.serving import PROGRAM
from tests.upstreams.cases import DONE, call, chunk, event, stream, text
from tests.upstreams.serving import proxy_before, upstream
from tests.upstreams.test_connections import two_folders

CHAT_TOOL: Any = WEATHER
TOOL: Any = {"type": "function", **CHAT_TOOL["function"], "strict": False}
PARIS = '{"city":"Paris"}'
LEGACY = {"function_call": {"name": "get_weather", "arguments": PARIS}}
BEGIN = ["response.created", "response.in_progress"]
TEXT, ARGUMENTS = "response.output_text", "response.function_call_arguments"

CALLED = ["response.in_progress", f"{ARGUMENTS}.delta", f"{ARGUMENTS}.done"]
SCENARIOS: dict[str, tuple[bytes, list[str], str]] = {
    "1 text": (text("Hello."), [f"{TEXT}.delta"], "Hello."),
    "2 calls": (stream(call("get_weather", PARIS), finish="tool_calls"), CALLED, ""),
    "3 a legacy call": (stream(LEGACY, finish="function_call"), CALLED, ""),
    "4 done without a reason": (event(chunk({"content": "Hello."})) + DONE, [f"{TEXT}.delta"], "Hello."),
    "5 a fault": (event(chunk({"content": "Hel"})) + event({"error": {"message": "It broke."}}), [], "Hel"),
}
"""What the upstream sends, the events between the first two and the last, and the text. A call in the legacy form is
one like any other: the client has offered `tools`, and gets what it knows."""


def types_of(frames: list[Any]) -> list[str]:
    """The types, each run of deltas once."""
    types: list[str] = []
    for frame in frames:
        if not (types and types[-1] == frame["type"] and types[-1].endswith(".delta")):
            types.append(frame["type"])
    return types


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_scenario_has_the_profiles_events(name: str, tmp_path: Path) -> None:
    sent, between, said = SCENARIOS[name]
    async with (
        upstream() as server,
        proxy_before(server.url, tmp_path, responses_profile="open-responses-server") as proxy,
    ):
        server.script = [sent]
        body = {"model": "small", "input": "?", "tools": [TOOL], "stream": True}
        *frames, done = frames_of((await proxy.send("POST", "/v1/responses", body)).text)
    assert done == "[DONE]"
    response = frames[-1]["response"]
    assert frames[-1]["type"] == "response.completed", "always the last"
    assert "".join(frame["delta"] for frame in frames if frame["type"] == f"{TEXT}.delta") == said
    if name.startswith("5"):
        assert "It broke." in json.dumps(response["error"])
        return
    assert types_of(frames) == [*BEGIN, *between, "response.completed"]
    if said:
        assert response["output"][0]["content"][0]["text"] == said
    else:
        called = response["output"][0]
        assert (called["type"], called["name"], called["arguments"]) == (
            "function_call",
            "get_weather",
            PARIS,
        )
        assert called["status"] == "ready"


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_scenario_has_openais_events(name: str, tmp_path: Path) -> None:
    sent, _, said = SCENARIOS[name]
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        server.script = [sent]
        body = {"model": "small", "input": "?", "tools": [TOOL], "stream": True}
        answer = await proxy.send("POST", "/v1/responses", body)
    lines = [line[6:] for line in answer.text.split("\n") if line.startswith("data: {")]
    frames = [frame for frame in map(json.loads, lines) if "type" in frame]
    types = types_of(frames)
    assert types[:2] == BEGIN
    assert types[-1] == ("response.failed" if name.startswith("5") else "response.completed")
    assert "".join(frame["delta"] for frame in frames if frame["type"] == f"{TEXT}.delta") == said
    assert (f"{ARGUMENTS}.done" in types) == (not said)


# --- the tool loop --------------------------------------------------------------------------------


def mcp_config(folder: Path) -> Path:
    config = folder / "mcp.json"
    command = {"command": sys.executable, "args": [PROGRAM, "stdio"]}
    config.write_text(json.dumps({"mcpServers": {"files": command}}))
    return config


def asking(path: str) -> dict[str, Any]:
    return user("?") if path.endswith("completions") else {"model": "small", "input": "?"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_model_that_never_stops_calling_is_told_and_then_given_up(path: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"mcp_config": mcp_config(tmp_path), "max_tool_call_iterations": 2}
    async with upstream() as server, proxy_before(server.url, tmp_path, **settings) as proxy:
        server.script = [
            stream(call("files__echo", '{"text":"x"}', f"call_{number}"), finish="tool_calls")
            for number in range(9)
        ]
        answer = await proxy.send("POST", path, asking(path))
        asked = [each.body["messages"][-1]["content"] for each in server.asked]
    assert (answer.status, answer.error["code"]) == (502, "tool_call_limit")
    assert len(asked) <= 5
    assert "limit" in asked[3]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_tool_that_no_server_has_is_told_to_the_model(path: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"mcp_config": mcp_config(tmp_path)}
    async with upstream() as server, proxy_before(server.url, tmp_path, **settings) as proxy:
        server.script = [stream(call("files__gone", "{}"), finish="tool_calls"), text("Sorry.")]
        answer = await proxy.send("POST", path, asking(path))
        told = server.asked[1].body["messages"][-1]
    assert "Sorry." in answer.text
    assert (told["role"], told["tool_call_id"]) == ("tool", "call_a")
    assert "not a registered MCP tool" in told["content"]


# --- this server as its own upstream --------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_server_of_responses_stands_before_another_of_these_servers(
    path: str, tmp_path: Path
) -> None:
    a, b = two_folders(tmp_path)
    async with (
        upstream() as server,
        proxy_before(server.url, a) as inner,
        proxy_before(f"{inner.url}/v1", b, agent="openai-responses") as outer,
    ):
        server.script = [stream(call("get_weather", PARIS), finish="tool_calls"), text("Hello there.")]
        tool = WEATHER if path.endswith("completions") else TOOL
        called = await outer.send("POST", path, asking(path) | {"model": "small", "tools": [tool]})
        assert "Paris" in called.text
        answer = await outer.send("POST", path, asking(path) | {"model": "small"})
    assert answer.status == 200
    assert "Hello there." in answer.text
    assert '"input_tokens":11' in answer.text or '"prompt_tokens":11' in answer.text
