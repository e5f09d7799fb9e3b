"""MCP servers on the fake agent: the contract's examples as written, the other profile, and both surfaces."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import sys
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from tests.http.serving import Proxy, fake_proxy, user
from tests.http_responses.asking import create, events_of, types_of
from tests.http_responses.test_websocket import answer_to, open_socket
from tests.mcp.serving import PROGRAM, web_server
from tests.waiting import eventually, poll

CALLS = {"FAKE_CODEX_MODE": "tool_call", "FAKE_CODEX_MODELS": "any"}
"""The agent calls the first tool that it is offered, and then says what the tool said."""

WORKFLOW = """
from openai import OpenAI
client = OpenAI(
    base_url="http://localhost:30000/v1",
    api_key="your-api-key"
)
# Create a response with MCP tools
response = client.responses.create(
    model="meta-llama/Llama-3.1-8B-Instruct",
    input="Search for the weather in San Francisco and summarize it",
    tools=[
        {
            "type": "mcp",
            "server_url": "http://localhost:8080/mcp",
            "server_label": "weather-service"
        }
    ],
    tool_choice="auto"
)
# The response includes tool calls and final answer
for output in response.output:
    if output.type == "mcp_call":
        print(f"Tool called: {output.name}")
        print(f"Result: {output.output}")
    elif output.type == "message":
        for content in output.content:
            if content.type == "output_text":
                print(f"Answer: {content.text}")
"""

CONVERSATION = """
from openai import OpenAI
client = OpenAI(
    base_url="http://localhost:30000/v1",
    api_key="your-api-key"
)
# Create a conversation
conversation = client.conversations.create(
    metadata={"session": "support-123"}
)
# First turn
response1 = client.responses.create(
    model="meta-llama/Llama-3.1-8B-Instruct",
    input="I need help with my order #12345",
    conversation=conversation.id,
    tools=[
        {
            "type": "mcp",
            "server_url": "http://localhost:8080/mcp",
            "server_label": "order-service"
        }
    ]
)
print(f"First response: {response1.id}")
# Second turn - continues the conversation
response2 = client.responses.create(
    model="meta-llama/Llama-3.1-8B-Instruct",
    input="Can you also check if there are any discounts available?",
    conversation=conversation.id,
    tools=[
        {
            "type": "mcp",
            "server_url": "http://localhost:8080/mcp",
            "server_label": "order-service"
        }
    ]
)
print(f"Second response: {response2.id}")
# List conversation history
items = client.conversations.items.list(conversation.id)
for item in items.data:
    print(f"{item.role}: {item.content}")
"""

STREAMING = """
from openai import OpenAI
client = OpenAI(
    base_url="http://localhost:30000/v1",
    api_key="your-api-key"
)
# Stream a response
with client.responses.create(
    model="meta-llama/Llama-3.1-8B-Instruct",
    input="Explain quantum computing",
    stream=True
) as stream:
    for event in stream:
        if event.type == "response.output_text.delta":
            print(event.delta, end="", flush=True)
        elif event.type == "response.mcp_call.in_progress":
            print(f"\\n[Calling tool: {event.item_id}]")
        elif event.type == "response.completed":
            print(f"\\n\\nTokens used: {event.response.usage.total_tokens}")
"""


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with web_server("http", "--only", "get_weather") as (port, _):
        yield port


def settings(port: int) -> dict[str, Any]:
    return {
        "fake_dialect": "app-server",
        "mcp_allowed_urls": f"http://localhost:{port}/mcp",
        "model_aliases": "meta-llama/Llama-3.1-8B-Instruct=codex-5",
    }


@pytest.fixture
async def proxy(tmp_path: Path, port: int) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, CALLS, **settings(port)) as running:
        yield running


def weather(port: int, **more: Any) -> dict[str, Any]:
    url = f"http://localhost:{port}/mcp"
    return {"type": "mcp", "server_label": "weather", "server_url": url, **more}


def operators(folder: Path, tool: str = "get_weather", *options: str) -> Path:
    """The operator's file, with the same server over stdio."""
    server = {"command": sys.executable, "args": [PROGRAM, "stdio", "--only", tool, *options]}
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"desk": server}}))
    return file


async def output_of_example(example: str, proxy: Proxy, port: int) -> str:
    """What an example prints, with nothing changed but where the servers are."""
    text = example.replace("http://localhost:30000", proxy.url).replace("localhost:8080", f"localhost:{port}")
    out = io.StringIO()

    await asyncio.to_thread(exec, text, {"print": partial(print, file=out)})
    return out.getvalue()


@pytest.mark.exhaustive
async def test_the_agentic_workflow_of_the_contract_runs_as_written(proxy: Proxy, port: int) -> None:
    assert await output_of_example(WORKFLOW, proxy, port) == (
        "Tool called: get_weather\nResult: Sunny in Paris.\nAnswer: The tool said: Sunny in Paris.\n"
    )


async def test_the_conversation_with_tools_of_the_contract_runs_as_written(proxy: Proxy, port: int) -> None:
    lines = (await output_of_example(CONVERSATION, proxy, port)).splitlines()
    assert lines[0].startswith("First response: resp_")
    assert lines[1].startswith("Second response: resp_")
    roles = [line.partition(":")[0] for line in lines[2:]]
    assert roles == ["assistant", "assistant", "user", "assistant", "assistant", "assistant", "user"]
    assert "order #12345" in lines[-1]


@pytest.mark.exhaustive
async def test_the_streaming_of_the_contract_runs_as_written_and_has_the_calls(
    tmp_path: Path, port: int
) -> None:
    more = settings(port) | {"mcp_config": operators(tmp_path), "builtin_tools": "never"}
    async with fake_proxy(tmp_path, CALLS, **more) as proxy:
        lines = (await output_of_example(STREAMING, proxy, port)).splitlines()
    assert lines[1].startswith("[Calling tool: mcp_")
    assert lines[2] == "The tool said: Sunny in Paris."
    assert lines[-1].startswith("Tokens used: ")


async def test_a_stream_of_mcp_is_valid_event_by_event(proxy: Proxy, port: int) -> None:
    answer = await create(proxy, tools=[weather(port)], stream=True)
    assert types_of(events_of(answer.text))[2:14] == [
        "response.output_item.added",
        "response.mcp_list_tools.in_progress",
        "response.mcp_list_tools.completed",
        "response.output_item.done",
        "response.output_item.added",
        "response.mcp_call.in_progress",
        "response.mcp_call_arguments.delta",
        "response.mcp_call_arguments.done",
        "response.mcp_call.completed",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
    ]


@pytest.mark.parametrize(
    ("allowed", "offered"), [(["get_weather"], 1), (["other"], 0), ({"read_only": True}, 0)]
)
async def test_only_the_tools_that_a_request_allows_are_listed_and_run(
    proxy: Proxy, port: int, allowed: Any, offered: int
) -> None:
    body = {"model": "codex-5", "input": "Paris", "tools": [weather(port, allowed_tools=allowed)]}
    output = (await proxy.send("POST", "/v1/responses", body)).body["output"]
    assert [len(item["tools"]) for item in output if item["type"] == "mcp_list_tools"] == [offered]
    assert sum(item["type"] == "mcp_call" for item in output) == offered


async def test_secrets_of_a_server_are_neither_shown_nor_stored(tmp_path: Path, port: int) -> None:
    async with fake_proxy(tmp_path, CALLS, **settings(port)) as proxy:
        tool = weather(port, headers={"X-Token": "planted-secret"}, authorization="planted-too")
        answer = await create(proxy, tools=[tool])
        assert answer.status == 200
        kept = await proxy.send("GET", f"/v1/responses/{answer.body['id']}")
    stored = b"".join(file.read_bytes() for file in (tmp_path / "state").glob("store*"))
    for secret in ("planted-secret", "planted-too"):
        assert secret not in answer.text + kept.text
        assert secret.encode() not in stored


async def test_the_profile_of_open_responses_server_sends_a_call_as_that_server_does(
    tmp_path: Path, port: int
) -> None:
    more = settings(port) | {"responses_profile": "open-responses-server"}
    async with fake_proxy(tmp_path, CALLS, **more) as proxy:
        answer = await proxy.send(
            "POST",
            "/responses",
            {"model": "codex-5", "input": "Hi.", "tools": [weather(port)], "stream": True},
        )
    text = answer.text.removesuffix("event: done\ndata: [DONE]\n\n").removesuffix("data: [DONE]\n\n")
    frames = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: {")]
    types = [frame["type"] for frame in frames]
    assert list(dict.fromkeys(types)) == [
        "response.created",
        "response.in_progress",  # once more when the call's name is known
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_text.delta",
        "response.completed",
    ]
    called = next(frame["response"]["output"] for frame in frames[2:] if "response" in frame)
    assert [(item["type"], item["status"]) for item in called] == [("function_call", "in_progress")]
    done = types.index("response.function_call_arguments.done")
    assert frames[done + 1]["type"] == "response.output_text.delta"
    assert frames[done + 1]["delta"] == '["Sunny in Paris."]'
    kinds = [item["type"] for item in frames[-1]["response"]["output"]]
    assert kinds == ["function_call", "function_call_output", "message"]
    assert frames[-1]["response"]["output"][2]["content"][0]["text"] == "The tool said: Sunny in Paris."


@pytest.mark.exhaustive
async def test_a_chat_shows_calls_of_the_operator_s_tools_as_reasoning_only(tmp_path: Path) -> None:
    more: dict[str, Any] = {"fake_dialect": "app-server", "mcp_config": operators(tmp_path)}
    async with fake_proxy(tmp_path, CALLS, **more) as proxy:
        answer = await proxy.ask(
            {"model": "codex-5", "messages": [{"role": "user", "content": "Hi."}], "stream": True}
        )
    choices = [frame["choices"][0] for frame in answer.frames[:-1]]
    said = "".join(choice["delta"].get("content") or "" for choice in choices)
    thought = "".join(choice["delta"].get("reasoning_content") or "" for choice in choices)
    assert said == "The tool said: Sunny in Paris."
    assert "[mcp_call] desk.get_weather" in thought
    assert not [choice for choice in choices if "tool_calls" in choice["delta"]]
    assert [choice["finish_reason"] for choice in choices if choice["finish_reason"]] == ["stop"]


@pytest.mark.exhaustive
async def test_a_server_that_is_still_starting_is_waited_for_as_long_as_the_setting_says(
    tmp_path: Path,
) -> None:
    ready, file = tmp_path / "ready", operators(tmp_path, "get_weather", "--until", str(tmp_path / "ready"))
    async with fake_proxy(
        tmp_path, CALLS, fake_dialect="app-server", mcp_config=file, queue_wait=0.05
    ) as proxy:

        async def called() -> bool:
            return "Sunny in Paris" in (await proxy.ask(user())).text

        answer = await proxy.ask(user())
        assert "Sunny in Paris" not in answer.text
        assert int(answer.headers["openai-processing-ms"]) < 9000, "without the setting it is half a minute"
        ready.touch()
        await poll(called)


@pytest.mark.exhaustive
async def test_a_stream_is_kept_alive_while_a_call_runs(tmp_path: Path) -> None:
    more: dict[str, Any] = {"fake_dialect": "app-server", "heartbeat_interval": 0.02}
    more["mcp_config"] = operators(tmp_path, "hang")
    prompt = f"[[fake:tool_call args='{json.dumps({'folder': str(tmp_path)})}']]"
    body = {"model": "codex-5", "messages": [{"role": "user", "content": prompt}], "stream": True}
    async with (
        fake_proxy(tmp_path, **more) as proxy,
        proxy.session.post(f"{proxy.url}/v1/chat/completions", json=body) as answer,
    ):
        await eventually((tmp_path / "called").exists)
        comments = 0
        async for line in answer.content:
            comments += line.startswith(b": ")
            if comments == 3:
                break


@pytest.mark.exhaustive
async def test_an_approval_on_a_socket_runs_its_call_without_a_store(proxy: Proxy, port: int) -> None:
    tools = [weather(port, require_approval="always")]
    async with open_socket(proxy) as socket:
        first = await answer_to(socket, "Weather?", store=False, tools=tools)
        request = first["output"][-1]
        assert request["type"] == "mcp_approval_request"
        approval = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
        last = await answer_to(socket, [approval], store=False, tools=tools, previous_response_id=first["id"])
    made, message = last["output"]
    assert (made["type"], made["output"]) == ("mcp_call", "Sunny in Paris.")
    assert message["content"][0]["text"] == "The tool said: Sunny in Paris."


@pytest.mark.exhaustive
async def test_a_background_response_that_is_cancelled_ends_its_call(tmp_path: Path) -> None:
    more: dict[str, Any] = {"fake_dialect": "app-server", "mcp_config": operators(tmp_path, "hang")}
    prompt = f"[[fake:tool_call args='{json.dumps({'folder': str(tmp_path)})}']]"
    async with fake_proxy(tmp_path, **more) as proxy:
        queued = (await create(proxy, prompt, background=True)).body
        await eventually((tmp_path / "called").exists)
        cancelled = await proxy.send("POST", f"/v1/responses/{queued['id']}/cancel")
        assert cancelled.body["status"] == "cancelled"
        await eventually((tmp_path / "cancelled").exists)
        await eventually(lambda: proxy.server.runs.running == 0)
        kept = (await proxy.send("GET", f"/v1/responses/{queued['id']}")).body
    assert [(item["type"], item["status"]) for item in kept["output"]] == [("mcp_call", "incomplete")]


def processes_of(program: str) -> list[psutil.Process]:
    """The processes below this one that were started with this argument."""
    found = []
    for each in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if program in each.cmdline():
                found.append(each)
    return found


@pytest.mark.exhaustive
async def test_a_server_that_stops_ends_a_list_under_way(tmp_path: Path) -> None:
    never = str(tmp_path / "never")
    slow = {"command": sys.executable, "args": [PROGRAM, "stdio", "--until", never]}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"slow": slow}}))
    body = {"model": "codex-5", "messages": [{"role": "user", "content": "Hi."}]}
    async with aiohttp.ClientSession() as session:
        async with fake_proxy(tmp_path, fake_dialect="app-server", mcp_config=file) as proxy:
            url = f"{proxy.url}/v1/chat/completions"
            asking = asyncio.ensure_future(session.post(url, json=body))
            runner = proxy.server.runner
            assert runner is not None
            # The MCP server starts with this server: the request may come later.
            await eventually(lambda: runner.has_connections and bool(processes_of(never)))
        async with await asking as answer:
            assert answer.status == 503, await answer.text()
    assert processes_of(never) == []


@pytest.mark.exhaustive
async def test_an_agent_that_ends_its_turn_with_calls_takes_no_servers(tmp_path: Path, port: int) -> None:
    async with fake_proxy(tmp_path, CALLS, **settings(port) | {"fake_dialect": "proto"}) as proxy:
        answer = await create(proxy, tools=[weather(port)])
    assert (answer.status, answer.error["code"], answer.error["param"]) == (
        400,
        "unsupported_by_agent",
        "tools[0]",
    )


@pytest.mark.exhaustive
async def test_a_request_for_approval_may_be_brought_by_its_id(proxy: Proxy, port: int) -> None:
    """As the AI SDK does: no chain, but references to what is stored."""
    tools = [weather(port, require_approval="always")]
    first = await create(proxy, "Sunny?", tools=tools)
    request = first.body["output"][-1]
    reference = {"type": "item_reference", "id": request["id"]}
    approval = {"type": "mcp_approval_response", "approval_request_id": request["id"], "approve": True}
    last = await create(proxy, [{"role": "user", "content": "Sunny?"}, reference, approval], tools=tools)
    assert [item["type"] for item in last.body["output"]] == ["mcp_list_tools", "mcp_call", "message"]
    assert last.body["output"][1]["approval_request_id"] == request["id"]
