"""The tool server by itself, over real sockets: who gets in, what is answered, and what becomes of a call."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import sys
import urllib.parse
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import psutil
import pytest

from codex_proxy.core.items import Tool
from codex_proxy.parts.acp import tool_server
from codex_proxy.parts.acp.messages import Input, ToolCalled, ToolDropped, ToolsListed, ToolsSettled
from codex_proxy.parts.acp.tool_server import ToolEndpoint, ToolServer
from tests.waiting import PATIENCE, eventually

TOOLS = (Tool("get_weather", "Weather of a city"), Tool("odd name!", "A custom one", kind="custom"))


@pytest.fixture
async def server() -> AsyncIterator[ToolServer]:
    server = ToolServer()
    yield server
    await server.close()


@pytest.fixture
async def http() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


def inputs_of(endpoint: ToolEndpoint) -> list[Input]:
    heard: list[Input] = []
    endpoint.sink = heard.append
    return heard


async def ask(
    http: aiohttp.ClientSession,
    server: ToolServer,
    endpoint: ToolEndpoint,
    method: str,
    params: Any = None,
    id: Any = 1,
) -> Any:
    body = {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}
    async with http.post(
        server.url, json=body, headers={"Authorization": f"Bearer {endpoint.token}"}
    ) as reply:
        return await reply.json()


def call(name: str = "get_weather", **meta: Any) -> dict[str, Any]:
    return {"name": name, "arguments": {"city": "Oslo"}, "_meta": meta}


async def test_the_tool_server_listens_on_loopback_only(server: ToolServer) -> None:
    await server.open(TOOLS)
    assert server.url.startswith("http://127.0.0.1:")


async def test_sessions_that_open_at_once_share_one_port(server: ToolServer) -> None:
    before = listening_ports()
    await asyncio.gather(server.open(TOOLS), server.open(TOOLS))
    assert len(listening_ports() - before) == 1


def listening_ports() -> set[int]:
    connections = psutil.Process().net_connections("tcp")
    return {each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN}


async def test_an_agent_gets_the_greeting_and_the_tools(
    server: ToolServer, http: aiohttp.ClientSession
) -> None:
    endpoint = await server.open(TOOLS)
    heard = inputs_of(endpoint)
    greeting = await ask(http, server, endpoint, "initialize", {"protocolVersion": "2025-06-18"})
    assert greeting["result"]["protocolVersion"] == "2025-06-18"
    for _ in range(2):
        listed = (await ask(http, server, endpoint, "tools/list"))["result"]["tools"]
    assert listed[0]["name"] == "get_weather"
    assert listed[1]["inputSchema"]["required"] == ["input"]
    assert all(tool["annotations"]["readOnlyHint"] for tool in listed)
    assert heard == [ToolsListed()]
    assert (await ask(http, server, endpoint, "server/discover"))["error"]["code"] == -32601
    assert (await ask(http, server, endpoint, "prompts/list"))["result"] == {"prompts": []}


async def test_the_tools_are_on_their_way_to_the_agent_before_the_prompt_is_sent(server: ToolServer) -> None:
    endpoint = await server.open(TOOLS)
    body = b'{"jsonrpc":"2.0","id":1,"method":"tools/list"}'
    head = f"POST /mcp HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {endpoint.token}\r\nContent-Length: {len(body)}"
    url = urllib.parse.urlsplit(server.url)
    loop = asyncio.get_running_loop()
    received: asyncio.Future[bytes] = loop.create_future()
    with socket.create_connection((url.hostname, url.port)) as agent:
        agent.setblocking(False)

        def receive(_: Input) -> None:
            with contextlib.suppress(BlockingIOError):
                received.set_result(agent.recv(65_536))

        endpoint.sink = receive
        await loop.sock_sendall(agent, head.encode() + b"\r\n\r\n" + body)
        await eventually(lambda: endpoint.was_listed)
        assert received.done()
    assert b"get_weather" in received.result()


async def test_an_endpoint_accepts_only_its_own_token(
    server: ToolServer, http: aiohttp.ClientSession
) -> None:
    one, other = await server.open(TOOLS), await server.open(TOOLS[:1])
    assert len((await ask(http, server, other, "tools/list"))["result"]["tools"]) == 1
    token = other.token
    other.close()
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    for headers in ({}, {"Authorization": f"Bearer {token}"}, {"Authorization": f"Basic {one.token}"}):
        for method in ("POST", "GET", "DELETE"):
            async with http.request(method, server.url, json=body, headers=headers) as reply:
                assert reply.status == 401


async def test_a_message_that_is_no_request_is_refused(
    server: ToolServer, http: aiohttp.ClientSession
) -> None:
    endpoint = await server.open(TOOLS)
    headers = {"Authorization": f"Bearer {endpoint.token}"}
    for body, status in ((b"{", 400), (b"[]", 400), (b'{"method": "notifications/initialized"}', 202)):
        async with http.post(server.url, data=body, headers=headers) as reply:
            assert reply.status == status
    async with http.get(server.url, headers=headers) as reply:
        assert reply.status == 405


CALL = b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"get_weather","arguments":{"city":"Oslo"}}}'
READ: dict[str, tuple[bytes, str]] = {
    "half of a pair": (CALL.replace(b"Oslo", rb"Oslo \ud83d"), "Oslo \ufffd"),
    "no UTF-8": (CALL.replace(b"Oslo", b"Oslo \xff"), "Oslo \ufffd"),
    "a byte order mark": (b"\xef\xbb\xbf" + CALL, "Oslo"),
    "a control character": (CALL.replace(b"Oslo", b"Os\tlo"), "Os\tlo"),
    "NaN in a field": (CALL.replace(b'"params"', b'"zz":[NaN,Infinity],"params"'), "Oslo"),
    "a list": (b"[" + CALL + b"]", "Oslo"),
    "no version": (CALL.replace(b'"jsonrpc":"2.0",', b""), "Oslo"),
}
"""Damaged calls, and the city that is read."""
DEEP = b"[" * 300 + b"]" * 300
REFUSED: dict[str, tuple[bytes, int]] = {
    **{f"cut at byte {place}": (CALL[:place], -32700) for place in range(24, len(CALL))},
    "a bad escape": (CALL.replace(b"Oslo", rb"O\slo"), -32700),
    "too deep": (CALL.replace(b'"Oslo"', DEEP), -32700),
    "a method of another type": (CALL.replace(b'"tools/call"', b"7"), -32600),
    "no method": (CALL.replace(b'"method":"tools/call",', b""), -32600),
    "parameters in a list": (CALL.replace(b'{"name"', b'[{"name"').replace(b"}}}", b"}}]}"), -32602),
    "no name": (CALL.replace(b'"name"', b'"title"'), -32602),
    "a name of another type": (CALL.replace(b'"get_weather"', b"7"), -32602),
    "two in a list": (b"[" + CALL + b"," + CALL.replace(b'"id":5,', b"") + b"]", -32600),
}
"""Calls that cannot be read, and the error."""


@pytest.mark.parametrize("damage", READ)
async def test_a_damaged_call_is_read(server: ToolServer, http: aiohttp.ClientSession, damage: str) -> None:
    endpoint = await server.open(TOOLS)
    heard = inputs_of(endpoint)
    body, city = READ[damage]
    headers = {"Authorization": f"Bearer {endpoint.token}"}
    async with http.post(server.url, data=body, headers=headers) as reply:
        [called] = [each for each in heard if isinstance(each, ToolCalled)]
        assert json.loads(called.arguments) == {"city": city}
        endpoint.set_result(called.key, {})
        assert b'"id":5' in await reply.read()


async def test_a_call_that_cannot_be_read_gets_an_error_with_its_id(
    server: ToolServer, http: aiohttp.ClientSession
) -> None:
    endpoint = await server.open(TOOLS)
    headers = {"Authorization": f"Bearer {endpoint.token}"}
    for name, (body, code) in REFUSED.items():
        async with http.post(server.url, data=body, headers=headers) as reply:
            answer = await reply.json()
            [answer] = answer if isinstance(answer, list) else [answer]
            assert (reply.status, answer["id"], answer["error"]["code"]) == (200, 5, code), name


async def test_a_call_is_kept_alive_with_progress_until_its_result_is_given(
    server: ToolServer, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_server, "PROGRESS_SECONDS", 0.01)
    endpoint = await server.open(TOOLS)
    heard = inputs_of(endpoint)
    body = {
        "jsonrpc": "2.0",
        "id": 7,
        "method": "tools/call",
        "params": call(progressToken=5, callId="toolu_1"),
    }
    async with http.post(
        server.url, json=body, headers={"Authorization": f"Bearer {endpoint.token}"}
    ) as reply:
        assert reply.headers["Content-Type"] == "text/event-stream"
        seen = b""
        while b"notifications/progress" not in seen:
            seen += await reply.content.readline()
        assert heard[0] == ToolCalled("call-1", "toolu_1", "get_weather", '{"city":"Oslo"}')
        endpoint.set_result("call-1", {"content": [], "isError": False})
        rest = (seen + await reply.read()).decode()
    messages = [
        json.loads(line.removeprefix("data: ")) for line in rest.splitlines() if line.startswith("data: ")
    ]
    assert messages[0]["params"]["progressToken"] == 5
    assert messages[-1] == {"jsonrpc": "2.0", "id": 7, "result": {"content": [], "isError": False}}


async def test_calls_that_come_together_settle_once(
    server: ToolServer, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_server, "SETTLE_SECONDS", PATIENCE)
    monkeypatch.setattr(tool_server, "UNREPORTED_SECONDS", PATIENCE)
    endpoint = await server.open(TOOLS)
    heard = inputs_of(endpoint)
    asked = [asyncio.ensure_future(ask_stream(http, server, endpoint))]
    await eventually(lambda: heard)
    timers = list(endpoint._timers)
    monkeypatch.setattr(tool_server, "SETTLE_SECONDS", 0.05)
    monkeypatch.setattr(tool_server, "UNREPORTED_SECONDS", 0.1)
    asked.append(asyncio.ensure_future(ask_stream(http, server, endpoint)))
    await eventually(lambda: ToolsSettled(last=True) in heard)
    assert all(timer.cancelled() for timer in timers)
    assert [type(each).__name__ for each in heard] == [
        "ToolCalled",
        "ToolCalled",
        "ToolsSettled",
        "ToolsSettled",
    ]
    endpoint.set_result("call-1", {})
    endpoint.set_result("call-2", {})
    assert all("result" in text for text in await asyncio.gather(*asked))


async def ask_stream(http: aiohttp.ClientSession, server: ToolServer, endpoint: ToolEndpoint) -> str:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call()}
    async with http.post(
        server.url, json=body, headers={"Authorization": f"Bearer {endpoint.token}"}
    ) as reply:
        return await reply.text()


async def test_a_call_whose_agent_closes_the_connection_is_dropped(
    server: ToolServer, http: aiohttp.ClientSession
) -> None:
    endpoint = await server.open(TOOLS)
    heard = inputs_of(endpoint)
    asked = asyncio.ensure_future(ask_stream(http, server, endpoint))
    await eventually(lambda: bool(heard))
    asked.cancel()
    await eventually(lambda: ToolDropped("call-1") in heard)
    endpoint.set_result("call-1", {})  # a late output goes nowhere


async def test_calls_that_wait_end_without_a_result_when_the_endpoint_is_closed(
    server: ToolServer, http: aiohttp.ClientSession
) -> None:
    endpoint = await server.open(TOOLS)
    heard = inputs_of(endpoint)
    asked = asyncio.ensure_future(ask_stream(http, server, endpoint))
    await eventually(lambda: bool(heard))
    endpoint.close()
    with contextlib.suppress(aiohttp.ClientError):  # the connection may end before the stream does
        assert "result" not in await asked
    assert not server._endpoints


async def test_too_many_calls_at_a_time_are_refused(
    server: ToolServer, http: aiohttp.ClientSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tool_server, "MAX_CALLS", 1)
    endpoint = await server.open(TOOLS)
    heard = inputs_of(endpoint)
    asked = asyncio.ensure_future(ask_stream(http, server, endpoint))
    await eventually(lambda: bool(heard))
    assert "error" in await ask(http, server, endpoint, "tools/call", call())
    endpoint.set_result("call-1", {})
    await asked


def test_the_token_of_a_forwarder_is_in_no_command_line() -> None:
    endpoint = ToolEndpoint(ToolServer(), TOOLS)
    entry = endpoint.server_entry(http=False)
    assert endpoint.token not in " ".join((entry["command"], *entry["args"]))
    assert entry["env"] == [{"name": "TOOL_SERVER_TOKEN", "value": endpoint.token}]


@pytest.fixture
async def forwarder(server: ToolServer) -> AsyncIterator[tuple[ToolEndpoint, asyncio.subprocess.Process]]:
    endpoint = await server.open(TOOLS)
    entry = endpoint.server_entry(http=False)
    env = {each["name"]: each["value"] for each in entry["env"]}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        sys.executable, *entry["args"], stdin=pipe, stdout=pipe, env=env
    )
    yield endpoint, process
    process.kill()
    await process.communicate()


async def forward(process: asyncio.subprocess.Process, method: str, params: Any) -> Any:
    assert process.stdin is not None
    assert process.stdout is not None
    for message in ({"id": 5}, {}):  # a notification is not answered
        process.stdin.write(json.dumps({**message, "method": method, "params": params}).encode() + b"\n")
    async with asyncio.timeout(PATIENCE):
        return json.loads(await process.stdout.readline())


async def test_a_forwarder_prints_the_answer_of_the_tool_server(
    forwarder: tuple[ToolEndpoint, asyncio.subprocess.Process],
) -> None:
    answer = await forward(forwarder[1], "tools/list", {})
    assert len(answer["result"]["tools"]) == len(TOOLS)


async def test_a_forwarder_answers_a_request_of_a_session_that_has_ended_with_an_error(
    forwarder: tuple[ToolEndpoint, asyncio.subprocess.Process],
) -> None:
    forwarder[0].close()
    answer = await forward(forwarder[1], "tools/list", {})
    assert (answer["id"], answer["error"]["code"]) == (5, -32603)
    assert "session has ended" in answer["error"]["message"]


async def test_a_forwarder_answers_a_call_with_an_error_if_the_session_ends_meanwhile(
    forwarder: tuple[ToolEndpoint, asyncio.subprocess.Process],
) -> None:
    endpoint, process = forwarder
    heard = inputs_of(endpoint)
    asked = asyncio.ensure_future(forward(process, "tools/call", call()))
    await eventually(lambda: bool(heard))
    endpoint.close()
    answer = await asked
    assert (answer["id"], answer["error"]["code"]) == (5, -32603)


async def test_a_forwarder_answers_a_request_with_an_error_if_the_tool_server_is_gone(
    server: ToolServer, forwarder: tuple[ToolEndpoint, asyncio.subprocess.Process]
) -> None:
    await server.close()
    answer = await forward(forwarder[1], "tools/list", {})
    assert "ConnectionRefusedError" in answer["error"]["message"]


async def test_a_forwarder_answers_each_damaged_call_with_its_id(
    forwarder: tuple[ToolEndpoint, asyncio.subprocess.Process],
) -> None:
    endpoint, process = forwarder
    assert process.stdin is not None
    assert process.stdout is not None
    endpoint.sink = lambda each: endpoint.set_result(each.key, {}) if isinstance(each, ToolCalled) else None
    for name, (line, _) in (READ | REFUSED).items():
        process.stdin.write(line + b"\n")
        async with asyncio.timeout(PATIENCE):
            answer = json.loads(await process.stdout.readline())
        [answer] = answer if isinstance(answer, list) else [answer]
        assert answer["id"] == 5, name


async def test_a_forwarder_answers_a_call_that_is_too_large_with_an_error(
    monkeypatch: pytest.MonkeyPatch, forwarder: tuple[ToolEndpoint, asyncio.subprocess.Process]
) -> None:
    endpoint, process = forwarder
    runner = endpoint._server._runner
    assert runner is not None
    monkeypatch.setattr(runner.app, "_client_max_size", 1000)
    answer = await forward(process, "tools/call", {"name": "get_weather", "arguments": {"city": "x" * 2000}})
    assert (answer["id"], answer["error"]["code"]) == (5, -32603)
    assert "413" in answer["error"]["message"]
