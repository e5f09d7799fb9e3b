"""OpenAI's SDK for JavaScript, whose types tell which fields may be absent, as a client of sessions."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.http.serving import fake_proxy
from tests.npm import run_beside

pytestmark = pytest.mark.exhaustive
"""npm has to install it first."""

PROGRAM = Path(__file__).with_name("openai_sessions.mjs")


async def test_the_sdk_for_javascript_runs_a_session_with_a_function(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        given = (proxy.url, "codex-5", "hi", "[[fake:tool_calls]]")
        printed = await run_beside(("openai@7.59.0",), PROGRAM.read_text(), tmp_path, *given)
    told = json.loads(printed)
    assert [told["types"][0], *told["types"][-2:]] == [
        "agent.session.created",
        "agent.session.turn.completed",
        "agent.session.idle",
    ]
    assert told["asked"] == [{"city": "Paris"}, {"city": "Rome"}]
    assert told["text"] == "It is sunny."
    assert told["items"] == [
        *("message", "message", "message", "function_call", "function_call"),
        *("function_call_output", "function_call_output", "message"),
    ]
    assert told["deleted"] is True
