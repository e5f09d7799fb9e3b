"""What a server writes holds nothing of what clients and agents say, and no key: in whatever goes well or wrong."""

from __future__ import annotations

import asyncio
import json
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from codex_proxy.parts import absent_part
from tests.missing import require
from tests.secrecy.planting import METRICS_KEY, PLANTED, WEBHOOK_SECRET, Scene, picture, planted_server
from tests.web_application import serve_application

FUNCTION: dict[str, Any] = {
    "name": "planted-tool",
    "description": "planted-description",
    "parameters": {"type": "object", "properties": {"planted-property": {"type": "string"}}},
}
MCP: dict[str, Any] = {
    "type": "mcp",
    "server_label": "planted-label",
    "server_url": "https://planted-host.example/planted-path",
    "authorization": "planted-mcp-key",
    "headers": {"X-Key": "planted-mcp-header"},
}


def chat(prompt: str, **more: Any) -> dict[str, Any]:
    return {
        "model": "codex-5",
        "messages": [
            {"role": "system", "content": "planted-system"},
            {"role": "user", "content": f"planted-prompt {prompt}"},
        ],
        "metadata": {"planted-name": "planted-value"},
        "user": "planted-user",
        **more,
    }


ALLOWED_MCP = {**MCP, "server_url": "http://localhost:1/planted-path"}
HAS_MCP = not absent_part("tools", "mcp")
MCP_PROGRAM = Path(__file__).parents[1] / "mcp" / "program.py"

CALL = """[[fake:tool_call name=planted-tool args='{"planted-property": "planted-argument"}']]"""


def own_call(tool: str, text: str) -> str:
    """A prompt whose model calls a tool of the operator's MCP server."""
    return f"""planted-prompt [[fake:tool_call name=desk__{tool} args='{{"text": "{text}"}}']]"""


CHATS: list[dict[str, Any]] = [
    chat("[[fake:text say=planted-answer]]"),
    chat("[[fake:text say=planted-answer]]", stream=True),
    chat("[[fake:reasoning say=planted-answer]]", stream=True),
    chat("[[fake:activity say=planted-answer]]", stream=True),
    chat(CALL, tools=[{"type": "function", "function": FUNCTION}]),
    chat(CALL, tools=[{"type": "function", "function": FUNCTION}], stream=True),
    chat("[[fake:error_500 message=planted-fault]]"),
    chat("[[fake:invalid_prompt message=planted-fault code=invalid_prompt]]", stream=True),
    chat("[[fake:error_mid_text message=planted-fault]]", stream=True),
    chat("[[fake:retry_before_text message=planted-fault]]", stream=True),
    chat("[[fake:planted-scenario]]"),
    chat("[[fake:text misbehave=garbage,bad_utf8]]"),
    {**chat("", stream=True), "messages": [{"role": "user", "content": [
        {"type": "text", "text": "planted-text"},
        {"type": "image_url", "image_url": {"url": picture("planted-picture")}},
    ]}]},
    {**chat(""), "messages": [{"role": "user", "content": [
        {"type": "image_url", "image_url": {"url": "https://planted-host.example/planted-image?planted-query"}},
    ]}]},
    {**chat(""), "messages": [
        {"role": "user", "content": "planted-question"},
        {"role": "assistant", "tool_calls": [{"id": "planted-call", "type": "function", "function": {
            "name": "planted-tool", "arguments": '{"path": "planted-argument"}'}}]},
        {"role": "tool", "tool_call_id": "planted-call", "content": "planted-output"},
    ]},
    chat("", response_format={"type": "json_schema", "json_schema": {
        "name": "planted-schema", "schema": {"type": "planted-type"}}}),
    chat("", tools=[{"type": "function", "function": {"name": "planted-tool", "parameters": {"type": 7}}}]),
    chat("", tools=[{"type": "planted-type"}], tool_choice="planted-choice"),
    chat("", workdir="/planted-folder"),
    {"model": "codex-5", "messages": "planted-messages"},
    {"model": "codex-5", "messages": [{"role": "planted-role", "content": "planted-content"}]},
    {"model": "codex-5", "planted-field": {"planted": "planted-value"}, "messages": []},
]  # fmt: skip

CRASHES: list[tuple[str, dict[str, Any]]] = [
    (
        "/v1/chat/completions",
        chat("[[fake:count n=50 misbehave=crash at=6 words='Error: planted-last-words']]"),
    ),
    (
        "/v1/chat/completions",
        chat("[[fake:count n=50 misbehave=crash at=6 words=planted-words]]", stream=True),
    ),
    (
        "/v1/responses",
        {"model": "codex-5", "input": "[[fake:count n=50 misbehave=crash at=6 words=planted-words]]"},
    ),
]
"""They take along what else runs on their process, so they come last."""

RESPONSES: list[dict[str, Any]] = [
    {"input": "planted-input [[fake:text say=planted-answer]]", "instructions": "planted-instructions"},
    {"input": "planted-input [[fake:text say=planted-answer]]", "stream": True, "store": False},
    {"input": "[[fake:text say=planted-answer]]", "metadata": {"planted-name": "planted-value"}},
    {"input": CALL, "tools": [{"type": "function", **FUNCTION}]},
    {"input": "[[fake:error_500 message=planted-fault]]", "stream": True},
    {"input": "[[fake:text say=planted-answer]]", "background": True, "stream": True},
    {"input": "planted-input", "previous_response_id": "resp_planted-id"},
    {"input": "planted-input", "conversation": "conv_planted-id"},
    {"input": "planted-input", "tools": [MCP]},
    {"input": "planted-input", "tools": [ALLOWED_MCP]},
    {"input": own_call("echo", "planted-argument")},
    {"input": own_call("refuse", "planted-argument")},
    {"input": own_call("die", "planted-argument")},
    {"input": "planted-input", "tools": [{"type": "planted-type"}]},
    {"input": [{"type": "planted-type", "planted": "planted-value"}]},
    {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": picture("planted-picture")}]}]},
    {"input": [{"type": "function_call_output", "call_id": "planted-call", "output": "planted-output"}]},
    {"input": [{"type": "reasoning", "id": "planted-id", "encrypted_content": "planted-reasoning", "summary": []}]},
]  # fmt: skip

MESSAGES: list[dict[str, Any]] = [
    {"messages": [{"role": "user", "content": "planted-input [[fake:text say=planted-answer]]"}], "system": "planted"},
    {"messages": [{"role": "user", "content": "[[fake:error_mid_text message=planted-fault]]"}], "stream": True},
    {"messages": [{"role": "user", "content": "[[fake:invalid_prompt message=planted-fault code=invalid_prompt]]"}]},
    {"messages": [
        {"role": "planted-role", "content": [{"type": "planted-type", "planted": "planted-value"}]},
        {"role": "assistant", "content": [
            {"type": "redacted_thinking", "data": "planted-state"},
            {"type": "tool_use", "id": "planted-call", "name": "planted-tool", "input": {"planted": "planted-x"}},
        ]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "planted-call", "content": "planted-output", "is_error": True},
            {"type": "document", "title": "planted-title", "source": {
                "type": "base64", "media_type": "planted/type", "data": "cGxhbnRlZA=="}},
        ]},
    ], "metadata": {"user_id": "planted-user"}},
    {"messages": [{"role": "user", "content": "planted"}], "tools": [{"type": "planted-type", "name": "planted-tool"}]},
    {"messages": [{"role": "user", "content": [{"type": "image", "source": {
        "type": "url", "url": "https://planted-host.example/planted-image?planted-query"}}]}]},
]  # fmt: skip

BROKEN = [
    b'{"model": "codex-5", "messages": [{"role": "user", "content": "planted-broken',
    b"planted-no-json",
    b'{"model": "planted-\xff\xfe", "messages": []}',
    b'["planted-list"]',
    b'{"planted-deep": ' + b"[" * 100_000,
    b'{"model": "codex-5", "messages": [], "messages": "planted-twice"}',
]

RAW = [
    b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nplanted header: planted-value\r\n\r\n",
    b"planted-method planted-target planted-version\r\n\r\n",
    b"GET /v1/models?planted-query=%zz HTTP/9.planted-version\r\nHost: 127.0.0.1\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: planted-length\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer planted-key\r\n"
    b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    b"planted-chunk\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer planted-key\r\n"
    b"Content-Type: application/json\r\nContent-Encoding: gzip\r\nContent-Length: 12\r\nConnection: close\r\n\r\n"
    b"planted-gzip",
    b"GET /v1/models HTTP/1.1\r\nHost: planted-host\r\nConnection: close\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nOrigin: https://planted-origin\r\nConnection: close\r\n\r\n",
    b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"planted-long" * 20_000 + b"\r\n\r\n",
]


async def send_every_request(scene: Scene) -> list[tuple[int, str]]:
    """Every kind of request, in whatever order they get through. The answers to those with a body."""
    answers = await asyncio.gather(
        *(scene.post("/v1/chat/completions?planted-query=planted-value", body) for body in CHATS),
        *(scene.post("/v1/responses", {"model": "codex-5", **body}) for body in RESPONSES),
        *(
            scene.post(
                "/v1/messages",
                {"model": "codex-5", **body},
                **{"x-claude-code-session-id": "planted-session"},
            )
            for body in MESSAGES
        ),
        *(scene.post(path, body) for body in BROKEN for path in ("/v1/chat/completions", "/v1/responses")),
        *(scene.post("/v1/conversations", body) for body in BROKEN),
        scene.post("/v1/chat/completions", chat(""), **{"X-Codex-Workdir": "/planted-folder"}),
        scene.post("/v1/chat/completions", chat(""), **{"X-Codex-Mode": "planted-mode"}),
        scene.post("/v1/chat/completions", chat(""), **{"Content-Type": "planted/type"}),
        scene.post("/v1/chat/completions", chat(""), Authorization="Bearer planted-wrong-key"),
        scene.post("/v1/chat/completions", chat(""), Authorization="Basic planted-basic"),
        scene.get("/v1/models?planted-query=planted-value"),
        scene.get("/nowhere?planted-query"),
        scene.get("/v1/models", **{"X-Request-Id": "no clean id: planted-id"}),
    )
    await asyncio.gather(
        _conversation(scene), _socket(scene), _leaver(scene), *(scene.raw(data) for data in RAW)
    )
    crashed = await asyncio.gather(*(scene.post(path, body) for path, body in CRASHES))
    return [*answers, *crashed]


async def _conversation(scene: Scene) -> None:
    item = {"type": "message", "role": "user", "content": "planted-item"}
    _, text = await scene.post(
        "/v1/conversations", {"metadata": {"planted-name": "planted-value"}, "items": [item]}
    )
    conversation = json.loads(text)["id"]
    await scene.post(f"/v1/conversations/{conversation}/items", {"items": [item]})
    await scene.post(
        "/v1/responses", {"model": "codex-5", "input": "planted-input", "conversation": conversation}
    )
    await scene.get(f"/v1/conversations/{conversation}/items?after=planted-cursor&include=planted-include")


async def _socket(scene: Scene) -> None:
    async with scene.session.ws_connect(f"{scene.url}/v1/responses") as socket:
        await socket.send_str("planted-frame")
        await socket.receive_str()
        frame = {
            "type": "response.create",
            "model": "codex-5",
            "input": "planted-input [[fake:text say=planted-answer]]",
        }
        await socket.send_json(frame)
        while "response.completed" not in await socket.receive_str():
            pass


async def _leaver(scene: Scene) -> None:
    """A client that goes in the middle of an answer."""
    body = chat("[[fake:count n=500 delay=20]]", stream=True)
    async with scene.session.post(f"{scene.url}/v1/chat/completions", json=body) as reply:
        await reply.content.readline()
        reply.close()


@pytest.mark.sampled(every=2, first=1)
@pytest.mark.parametrize(("format", "dialect"), [("json", "app-server"), ("console", "proto")])
async def test_nothing_that_a_server_writes_holds_what_was_said_to_it(
    tmp_path: Path, format: str, dialect: str
) -> None:
    require("mcp")
    hooks: list[str] = []

    async def hook(request: web.Request) -> web.Response:
        hooks.append(await request.text())
        return web.Response(status=500, text="planted-hook")

    app = web.Application()
    app.router.add_post("/planted-hook", hook)
    server = {
        "command": sys.executable,
        "args": [str(MCP_PROGRAM), "stdio"],
        "env": {"SECRET": "planted-secret"},
    }
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"desk": server}}))
    environment = {
        "PROXY_FAKE_DIALECT": dialect,
        "PROXY_WEBHOOKS_SECRET": WEBHOOK_SECRET,
    }
    if HAS_MCP:
        environment["PROXY_MCP_CONFIG"] = str(tmp_path / "mcp.json")
        environment["PROXY_MCP_ALLOWED_URLS"] = "http://localhost:1"
    arguments = ("--log-level", "debug", "--log-format", format)
    async with AsyncExitStack() as stack:
        port = await stack.enter_async_context(serve_application(app))
        hook_url = f"http://planted-user:planted-password@127.0.0.1:{port}/planted-hook?planted-query"
        environment["PROXY_WEBHOOKS_URLS"] = hook_url
        scene = await stack.enter_async_context(planted_server(tmp_path, *arguments, **environment))
        answers = await send_every_request(scene)
        open_to_all = [await scene.get(path, Authorization="") for path in ("/healthz", "/readyz", "/livez")]
        metrics = await scene.get("/metrics", Authorization=f"Bearer {METRICS_KEY}")
        assert await scene.stop() == 0
        written, logged = scene.written, scene.log.read_text("utf-8")
    assert PLANTED.findall(written) == []
    if format == "json":
        assert [line for line in logged.splitlines() if not line.startswith("{")] == []
    assert PLANTED.findall(str([*open_to_all, metrics])) == []
    # The test is worth something only where all of it happened.
    assert any("planted-answer" in text for _, text in answers)
    assert any("planted-argument" in text for _, text in answers)
    assert {status for status, _ in answers} >= {200, 400, 401, 404, 415, 500, 502}
    assert written.count("sse_guard") > 10
    assert written.count("chat/completions") > len(CHATS)
    assert hooks
    assert "webhook_failed" in written
    assert ("mcp_call_failed" in written) is (HAS_MCP and dialect == "app-server")
    assert metrics[0] == 200
