"""Turns with tools that the model server runs are recorded, and replayed without it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.model_server import Upstream, upstream
from tests.parts.cassettes.talking import openai_client, running_server
from tests.parts.upstream.test_hosted_tools import CODE_TOOL, TOOLS, hosted_answer, shown
from tests.parts.upstream.test_hosted_turns import TABLE


@pytest.fixture
async def server() -> AsyncIterator[Upstream]:
    async with upstream() as running:
        yield running


async def test_a_recorded_turn_is_replayed_with_its_items_and_events(
    server: Upstream, tmp_path: Path
) -> None:
    server.script = [hosted_answer(), hosted_answer()]
    folder = tmp_path / "cassettes"
    secret = [{"domain": "a.example", "name": "KEY", "value": "very-secret"}]
    policy = {"type": "allowlist", "allowed_domains": ["a.example"], "domain_secrets": secret}
    tools: Any = [CODE_TOOL | {"container": {"type": "auto", "network_policy": policy}}, *TOOLS[1:]]

    async def ask(client: AsyncOpenAI) -> Any:
        asked: Any = {"model": "small", "input": "Hi", "tools": tools}
        response = await client.responses.create(**asked)
        events = [each.type async for each in await client.responses.create(**asked, stream=True)]
        return [{**shown(item), "id": ""} for item in response.output], events

    settings: Any = {"agent": "openai-responses", "upstream_url": server.url, "upstreams": {"default": TABLE}}
    async with (
        running_server(tmp_path, cassettes={"record": folder}, **settings) as recording,
        openai_client(recording) as client,
    ):
        recorded = await ask(client)
    assert [file for file in folder.iterdir() if "very-secret" in file.read_text()] == []
    async with (
        running_server(tmp_path, cassettes={"replay": folder}) as replaying,
        openai_client(replaying) as client,
    ):
        assert await ask(client) == recorded
        with pytest.raises(openai.APIStatusError) as raised:
            await client.responses.create(model="small", input="Hi", tools=tools, tool_choice="required")
    assert raised.value.status_code >= 400
