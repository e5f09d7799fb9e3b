"""The clients of Anthropic's API for JavaScript: its official SDK and Vercel's AI SDK, installed by npm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import fake_proxy
from tests.npm import run_beside

pytestmark = pytest.mark.exhaustive
"""npm has to install them first."""

PACKAGES = ("@anthropic-ai/sdk@1.12.0", "@ai-sdk/anthropic@4.0.105", "ai@7.0.173")
PROGRAM = Path(__file__).with_name("anthropic_clients.mjs")
TEXT = "Hello from the deterministic fake agent."
CALLS = [["get_weather", {"city": "Paris"}], ["get_weather", {"city": "Rome"}]]


@pytest.mark.parametrize("dialect", ["proto", "app-server"])
async def test_both_sdks_read_every_answer_streamed_as_whole(tmp_path: Path, dialect: str) -> None:
    async with fake_proxy(tmp_path, fake_dialect=dialect) as proxy:
        told: dict[str, Any] = json.loads(
            await run_beside(PACKAGES, PROGRAM.read_text(), tmp_path, proxy.url)
        )
    for answer in told["sdk"].values():
        assert answer["streamed"] == answer["whole"]
    called = [block for block in told["sdk"]["tool_calls"]["whole"]["content"] if block["type"] == "tool_use"]
    assert [[block["name"], block["input"]] for block in called] == CALLS
    assert told["sdk"]["reasoning"]["whole"]["content"][0]["type"] == "thinking"
    assert "sunny" in told["loop"]["content"][0]["text"]
    assert "sunny" in told["ran"]["content"][0]["text"]
    assert told["ran"]["stop_reason"] == "end_turn"
    assert told["errors"] == {
        "context_length": "BadRequestError",
        "error_rate_limit": "RateLimitError",
        "error_500": "InternalServerError",
        "error_mid_text": "APIError",
    }
    assert {"codex-5", "claude-codex-5"} <= set(told["models"])
    assert told["counted"] > 0
    ai = told["ai"]
    assert ai["whole"] == ai["streamed"] == TEXT
    assert ai["finish"] == ["stop", "stop"]
    assert ai["calls"] == CALLS
    assert "sunny" in ai["told"]
    assert ai["thought"]


@pytest.mark.part("clients")
async def test_the_javascript_that_connect_prints_gets_an_answer(tmp_path: Path) -> None:
    from codex_proxy.parts.clients.clients import BY_NAME  # it needs the part
    from codex_proxy.parts.clients.connect import NO_KEY, ServerAccess

    async with fake_proxy(tmp_path) as proxy:
        target = ServerAccess(base_url=f"{proxy.url}/v1", model="codex-5", key=NO_KEY)
        out = await run_beside(PACKAGES, target.fill(BY_NAME["anthropic-node"].text), tmp_path)
    assert out == f"{TEXT}\n"
