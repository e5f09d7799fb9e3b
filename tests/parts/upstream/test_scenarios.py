"""The five scenarios of open-responses-server over an upstream of Chat Completions, in its profile and in OpenAI's
events, and its tool loop on both endpoints. Source: docs/contract.md#the-profile-of-open-responses-server.
"""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import frames_of, user
from tests.mcp.serving import PROGRAM
from tests.model_server import DONE, call, chunk, event, proxy_before, stream, text, upstream
from tests.parts.upstream.test_connections import two_folders
from tests.response_events import CALL_ITEM as CALLED_ITEM
from tests.response_events import message, response_with
from tests.weather_tool import CHAT_WEATHER, RESPONSES_WEATHER

PARIS = '{"city":"Paris"}'
LEGACY: list[dict[str, Any]] = [
    {"function_call": {"name": "get_weather", "arguments": ""}},
    *({"function_call": {"arguments": piece}} for piece in (PARIS[:5], PARIS[5:])),
]
BEGIN = ["response.created", "response.in_progress"]
TEXT, ARGUMENTS = "response.output_text", "response.function_call_arguments"

CALLED = ["response.in_progress", f"{ARGUMENTS}.delta", f"{ARGUMENTS}.done"]
LEGACY_CALLED = ["response.tool_calls.created", f"{ARGUMENTS}.delta"]
SCENARIOS: dict[str, tuple[bytes, list[str], str]] = {
    "1 text": (text("Hello."), [f"{TEXT}.delta"], "Hello."),
    "2 calls": (stream(call("get_weather", PARIS), finish="tool_calls"), CALLED, ""),
    "3 a legacy call": (stream(*LEGACY, finish="function_call"), LEGACY_CALLED, ""),
    "4 done without a reason": (event(chunk({"content": "Hello."})) + DONE, [f"{TEXT}.delta"], "Hello."),
    "5 a fault": (event(chunk({"content": "Hel"})) + event({"error": {"message": "It broke."}}), [], "Hel"),
}
"""What the upstream sends, the events between the first two and the last, and the text."""


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
        body = {"model": "small", "input": "?", "tools": [RESPONSES_WEATHER], "stream": True}
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


@pytest.mark.exhaustive
async def test_a_legacy_call_of_a_tool_that_runs_here_is_reported_as_one_and_then_its_result(
    tmp_path: Path,
) -> None:
    settings: dict[str, Any] = {
        "mcp_config": mcp_config(tmp_path),
        "responses_profile": "open-responses-server",
    }
    legacy = {"function_call": {"name": "files__echo", "arguments": '{"text":"hello.txt"}'}}
    async with upstream() as server, proxy_before(server.url, tmp_path, **settings) as proxy:
        server.script = [stream(legacy, finish="function_call"), text("It is there.")]
        body = {"model": "small", "input": "?", "stream": True}
        *frames, _ = frames_of((await proxy.send("POST", "/v1/responses", body)).text)
    assert types_of(frames) == [*BEGIN, *LEGACY_CALLED, f"{TEXT}.delta", "response.completed"]
    [created] = [frame for frame in frames if frame["type"] == LEGACY_CALLED[0]]
    assert created["tool_call"]["name"] == "echo"
    kinds = [item["type"] for item in frames[-1]["response"]["output"]]
    assert kinds == ["function_call", "function_call_output", "message"]


@pytest.mark.exhaustive
async def test_a_client_of_tools_gets_a_legacy_call_in_the_form_that_it_knows(tmp_path: Path) -> None:
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        server.script = [stream(*LEGACY, finish="function_call")]
        answer = await proxy.ask(user("?", tools=[CHAT_WEATHER]))
    choice = answer.body["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    assert choice["message"]["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": PARIS}


@pytest.mark.parametrize("name", SCENARIOS)
async def test_a_scenario_has_openais_events(name: str, tmp_path: Path) -> None:
    sent, _, said = SCENARIOS[name]
    async with upstream() as server, proxy_before(server.url, tmp_path) as proxy:
        server.script = [sent]
        body = {"model": "small", "input": "?", "tools": [RESPONSES_WEATHER], "stream": True}
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


def question_for(path: str) -> dict[str, Any]:
    return user("?") if path.endswith("completions") else {"model": "small", "input": "?"}


def answer_with_call(agent: str, name: str, arguments: str, id: str = "call_a") -> bytes:
    """An upstream's answer with this call, in the API of the agent."""
    if agent == "openai-chat":
        return stream(call(name, arguments, id), finish="tool_calls")
    return response_with(
        {**CALLED_ITEM, "id": f"fc_{id}", "call_id": id, "name": name, "arguments": arguments}
    )


def answer_with_text(agent: str, said: str) -> bytes:
    return text(said) if agent == "openai-chat" else response_with(message(said))


def outputs_in(asked: dict[str, Any]) -> dict[str, str]:
    """The outputs of calls in a request to the upstream, by call id."""
    messages = asked.get("messages") or asked["input"]
    found = {each.get("tool_call_id") or each.get("call_id"): each for each in messages}
    texts = {id: each.get("content", each.get("output")) for id, each in found.items() if id}
    return {id: json.dumps(text) for id, text in texts.items() if text is not None}


BOTH = [
    (agent, path)
    for agent in ("openai-chat", "openai-responses")
    for path in ("/v1/chat/completions", "/v1/responses")
]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("agent", "path"), BOTH)
async def test_a_model_that_never_stops_calling_gets_an_error_and_then_the_turn_ends(
    agent: str, path: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"mcp_config": mcp_config(tmp_path), "max_tool_call_iterations": 2}
    async with upstream() as server, proxy_before(server.url, tmp_path, agent=agent, **settings) as proxy:
        server.script = [
            answer_with_call(agent, "files__echo", '{"text":"x"}', f"call_{number}") for number in range(9)
        ]
        answer = await proxy.send("POST", path, question_for(path))
        outputs = [outputs_in(each.body) for each in server.requests]
    assert (answer.status, answer.error["code"]) == (502, "tool_call_limit")
    assert len(outputs) <= 5
    assert ["limit" in said for said in outputs[-1].values()] == [False, False, True, True]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("agent", "path"), BOTH)
async def test_a_call_of_a_tool_that_no_server_has_gives_the_model_an_error(
    agent: str, path: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"mcp_config": mcp_config(tmp_path)}
    async with upstream() as server, proxy_before(server.url, tmp_path, agent=agent, **settings) as proxy:
        server.script = [answer_with_call(agent, "files__gone", "{}"), answer_with_text(agent, "Sorry.")]
        answer = await proxy.send("POST", path, question_for(path))
        told = outputs_in(server.requests[1].body)
    assert "Sorry." in answer.text
    assert list(told) == ["call_a"]
    assert "not a registered MCP tool" in told["call_a"]


@pytest.mark.exhaustive
@pytest.mark.parametrize(("agent", "path"), BOTH)
async def test_the_answer_behind_a_tool_that_runs_here_streams_while_the_upstream_writes(
    agent: str, path: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"mcp_config": mcp_config(tmp_path)}
    async with upstream() as server, proxy_before(server.url, tmp_path, agent=agent, **settings) as proxy:
        server.script = [
            answer_with_call(agent, "files__echo", '{"text":"x"}'),
            answer_with_text(agent, "Early words." + " " * 40 + "And much later"),
        ]
        server.held.clear()

        async def let_the_call_pass() -> None:
            await server.is_held.wait()
            server.held.set()
            server.held.clear()  # the answer behind it stops in its middle

        passing = asyncio.create_task(let_the_call_pass())
        body = question_for(path) | {"stream": True}
        async with proxy.session.post(f"{proxy.url}{path}", json=body) as response:
            seen = b""
            while b"Early" not in seen:
                seen += await response.content.readany()
            server.held.set()
            seen += await response.content.read()
        await passing
    assert b"much later" in seen
    assert [len(outputs_in(each.body)) for each in server.requests] == [0, 1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("agent", ["openai-chat", "openai-responses"])
async def test_a_call_of_the_clients_streams_also_where_other_tools_run_here(
    agent: str, tmp_path: Path
) -> None:
    settings: dict[str, Any] = {"mcp_config": mcp_config(tmp_path)}
    arguments = json.dumps({"city": "x" * 4000})
    async with upstream() as server, proxy_before(server.url, tmp_path, agent=agent, **settings) as proxy:
        server.script = [
            answer_with_call(agent, "files__echo", '{"text":"x"}', "call_mcp"),
            answer_with_call(agent, "get_weather", arguments, "call_own"),
            answer_with_text(agent, "Sunny."),
        ]
        asked: dict[str, Any] = user("?", tools=[CHAT_WEATHER], stream=True)
        answer = await proxy.ask(asked)
        frames = [frame for frame in frames_of(answer.text) if frame != "[DONE]"]
        deltas = [each for frame in frames for each in frame["choices"][0]["delta"].get("tool_calls", ())]
        assert "".join(each["function"].get("arguments", "") for each in deltas) == arguments
        assert frames[-1]["choices"][0]["finish_reason"] == "tool_calls"
        function = {"name": "get_weather", "arguments": arguments}
        made = {
            "role": "assistant",
            "tool_calls": [{"id": "call_own", "type": "function", "function": function}],
        }
        output = {"role": "tool", "tool_call_id": "call_own", "content": "sunny"}
        await proxy.ask(user("?", tools=[CHAT_WEATHER]) | {"messages": [*asked["messages"], made, output]})
        assert list(outputs_in(server.requests[-1].body)) == ["call_mcp", "call_own"], (
            "what ran here is remembered"
        )


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
        tool = CHAT_WEATHER if path.endswith("completions") else RESPONSES_WEATHER
        called = await outer.send("POST", path, question_for(path) | {"model": "small", "tools": [tool]})
        assert "Paris" in called.text
        answer = await outer.send("POST", path, question_for(path) | {"model": "small"})
    assert answer.status == 200
    assert "Hello there." in answer.text
    assert '"input_tokens":11' in answer.text or '"prompt_tokens":11' in answer.text
