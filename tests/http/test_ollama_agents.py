"""Ollama's package for Python does the same on every kind of agent: Codex, Claude Code, and a model server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.every_agent import proxy_of
from tests.http.serving import Proxy, until
from tests.ollama_client import SCHEMA, WEATHER, briefly, client_of
from tests.pictures import png_of


@pytest.fixture(params=["app-server", "claude-code", "openai-chat"])
async def proxy(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Proxy]:
    async with proxy_of(request.param, tmp_path) as made:
        yield made


@pytest.fixture
async def client(proxy: Proxy) -> AsyncIterator[ollama.AsyncClient]:
    async with client_of(proxy.url) as made:
        yield made


@pytest.mark.sampled(every=2)
async def test_text_tools_in_two_rounds_a_schema_and_errors(client: ollama.AsyncClient) -> None:
    pieces = [
        piece
        async for piece in await client.chat(
            "codex-5", briefly("[[fake:text say='Hello there.']]"), stream=True
        )
    ]
    assert "".join(piece.message.content or "" for piece in pieces) == "Hello there."
    messages: list[Any] = briefly("[[fake:tool_call rounds=2 say='It is {outputs}.']]")
    for _ in range(2):
        answer = await client.chat("codex-5", messages, tools=[WEATHER])
        assert answer.message.tool_calls
        output = {"role": "tool", "tool_name": "get_weather", "content": "sunny"}
        messages += [answer.message, output]
    assert "sunny" in ((await client.chat("codex-5", messages, tools=[WEATHER])).message.content or "")
    found = await client.chat("codex-5", briefly("Who?"), format=SCHEMA)
    assert set(json.loads(found.message.content or "")) == {"name"}
    with pytest.raises(ollama.ResponseError):
        await client.chat("codex-5", briefly("[[fake:error_500]]"))


@pytest.mark.sampled(every=2)
async def test_images_thinking_and_a_client_that_leaves(client: ollama.AsyncClient, proxy: Proxy) -> None:
    seen = await client.chat("codex-5", briefly("[[fake:echo]]", images=[png_of()]))
    assert '"images":1' in (seen.message.content or "").replace(" ", "")
    thought = await client.chat("codex-5", briefly("[[fake:reasoning]]"), think=True)
    assert thought.message.thinking
    body = {"model": "codex-5", "messages": briefly("[[fake:text n=20000 delay=5]]")}
    async with proxy.session.post(f"{proxy.url}/api/chat", json=body) as reply:
        assert not json.loads(await reply.content.readline())["done"]
        reply.close()
    await until(lambda: proxy.server.runs.running == 0)
