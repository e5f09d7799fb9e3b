"""MCP clients of a proxy, by the real SDK."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx2
from mcp.client import Client
from mcp.client.streamable_http import streamable_http_client

from tests.http.serving import Proxy
from tests.waiting import PATIENCE

OLD, NEW = "legacy", "2026-07-28"
"""How the SDK connects: with the handshake of 2025, or without one."""


@asynccontextmanager
async def mcp_client(
    proxy: Proxy, key: str = "", *, mode: str = OLD, headers: dict[str, str] | None = None, **more: Any
) -> AsyncIterator[Client]:
    """A client that is connected. `more`: what the SDK's `Client` takes."""
    given = dict(headers or {}) | ({"Authorization": f"Bearer {key}"} if key else {})
    async with httpx2.AsyncClient(headers=given, timeout=PATIENCE * 2, trust_env=False) as http:
        transport = streamable_http_client(f"{proxy.url}/mcp", http_client=http)
        async with Client(transport, mode=mode, **more) as client:
            yield client


async def called(client: Client, tool: str, /, progress: Any = None, **arguments: Any) -> Any:
    """What a tool returns: the value of its JSON, or its text."""
    result: Any = await client.call_tool(tool, arguments, progress_callback=progress)
    (part,) = result.content
    text: str = part.text
    assert not result.is_error, text
    return json.loads(text) if text.startswith("{") else text


async def refused(client: Client, tool: str, /, **arguments: Any) -> str:
    """What a tool says that refuses a call."""
    result: Any = await client.call_tool(tool, arguments)
    (part,) = result.content
    assert result.is_error, part
    text: str = part.text
    return text
