"""Sessions that ask their client before calls of MCP servers, which this server makes for every agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.turn import McpPermissions, Toolset
from codex_proxy.parts.sessions.approvals import Choice
from tests.http.serving import fake_proxy
from tests.mcp.serving import web_server
from tests.parts.sessions.approving import ASKING, KEY
from tests.parts.sessions.driving import AgentsClient, message
from tests.parts.sessions.test_approvals import WAITS
from tests.parts.sessions.test_folders import hosted
from tests.parts.sessions.toolsets import answer, give_toolset

CALLS = {"FAKE_CODEX_MODE": "tool_call", "FAKE_CODEX_MODELS": "any"}


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    with web_server("http", "--only", "get_weather") as (port, _):
        yield port


@pytest.mark.parametrize(
    ("decision", "words", "told"),
    [
        ("approve", "", ("completed", None)),
        ("deny", "It is a secret.", ("failed", "It is a secret.")),
    ],
)
async def test_a_call_waits_for_the_answer_and_is_one_item(
    tmp_path: Path, port: int, decision: Choice, words: str, told: tuple[str, str | None]
) -> None:
    url = f"http://localhost:{port}/mcp"
    more = {**ASKING, "approvals": "decline", "mcp_allowed_urls": url}
    async with fake_proxy(tmp_path, CALLS, **more) as proxy:
        client = AgentsClient(proxy, KEY)
        tool = {"type": "mcp", "server_label": "weather", "transport": {"type": "http", "server_url": url}}
        agent: dict[str, Any] = {"model": "codex-5", "tools": [tool]}
        body = hosted(Path(proxy.server.settings.workdir), agent=agent)
        id = (await client.post("/sessions", body))["id"]
        await give_toolset(proxy.server, id, Toolset(mcp=(McpPermissions("weather", "always_ask"),)))
        async with client.following(id) as reader:
            await client.send(id, message("How is it?"))
            (action,) = (await reader.until(WAITS))["session"]["required_actions"]
            assert action["request"]["server_label"] == "weather"
            assert (action["request"]["name"], action["request"]["arguments"]) == (
                "get_weather",
                {"city": "Paris"},
            )
            assert not [
                event
                for event in reader.events
                if event["type"].endswith("item.done") and "mcp" in str(event)
            ]
            await answer(proxy.server, id, action["request_id"], decision, words)
            await reader.until("agent.session.idle")
        (call,) = [each for each in await client.all(f"/sessions/{id}/items") if each["type"] == "mcp_call"]
        assert (call["status"], call["error"]) == told
        (last,) = [
            event["item"]["content"][0]["text"]
            for event in reader.events
            if event["type"].endswith("item.done") and event["item"].get("role") == "assistant"
        ]
        assert (words or "Sunny in Paris.") in last
