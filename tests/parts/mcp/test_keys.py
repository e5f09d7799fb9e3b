"""Keys that may not use MCP servers: neither the operator's tools reach their turns, nor servers that they name."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.access.keyed import key_header, keyed_proxy, refusal_of
from tests.http.serving import Proxy, user
from tests.mcp.serving import PROGRAM
from tests.missing import require

CALLS = {"FAKE_CODEX_MODE": "tool_call"}
"""The agent calls the first tool that it is offered; without one it only talks."""


async def was_called(proxy: Proxy, path: str, name: str) -> bool:
    """Whether the server's tool was called for the key of this name."""
    body = user() if "chat" in path else {"model": "codex-5", "input": "Hi."}
    answer = await proxy.send("POST", path, body, headers=key_header(name))
    assert answer.status == 200, answer.text
    return "Sunny in Paris." in answer.text


@pytest.mark.exhaustive
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/responses"])
async def test_a_key_without_mcp_is_offered_no_tool_of_the_operator_s(tmp_path: Path, path: str) -> None:
    server = {"command": sys.executable, "args": [PROGRAM, "stdio", "--only", "get_weather"]}
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"desk": server}}))
    more: dict[str, Any] = {"fake_dialect": "app-server", "mcp_config": file}
    async with keyed_proxy(tmp_path, {"none": {"mcp": False}, "full": {}}, CALLS, **more) as proxy:
        assert not await was_called(proxy, path, "none")
        assert await was_called(proxy, path, "full")


async def test_a_key_without_mcp_may_name_no_server(tmp_path: Path) -> None:
    require("mcp")
    url = "http://127.0.0.1:9/mcp"
    more: dict[str, Any] = {"fake_dialect": "app-server", "mcp_allowed_urls": url}
    tool = {"type": "mcp", "server_label": "news", "server_url": url}
    async with keyed_proxy(tmp_path, {"none": {"mcp": False}, "full": {}}, **more) as proxy:
        for fields in ({}, {"background": True}):
            body = {"model": "codex-5", "input": "Hi.", "tools": [tool], **fields}
            answer = await proxy.send("POST", "/v1/responses", body, headers=key_header("none"))
            assert refusal_of(answer) == (403, "not_allowed", "tools[0]")
            assert (await proxy.send("POST", "/v1/responses", body, headers=key_header("full"))).status == 200
