"""Agent turns whose agent has subagents, on the APIs that do not show what these do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import fake_proxy, user

BUSY = "[[fake:subagent_left args='[[fake:text say=Hidden n=5 delay=50]]']]"
"""The agent says its last word while its subagent works."""
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": user(BUSY),
    "/v1/responses": {"model": "codex-5", "input": BUSY},
    "/v1/messages": {**user(BUSY), "max_tokens": 1000},
    "/api/chat": user(BUSY),
}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", BODIES)
async def test_a_turn_says_that_there_is_a_subagent_and_nothing_of_its_words(
    tmp_path: Path, path: str, stream: bool
) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server", thinking_blocks=True) as proxy:
        answer = await proxy.send("POST", path, {**BODIES[path], "stream": stream})
        assert answer.status == 200
        assert "work" in answer.text
        assert "Hidden" not in answer.text.replace(BUSY, "")
        assert path == "/v1/messages" or "[subagent] create" in answer.text
        await proxy.settled()


async def test_a_plain_turn_does_not_wait_for_a_subagent_that_it_does_not_read(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        answer = await proxy.ask(user(BUSY), headers={"X-Codex-Mode": "model"})
        assert answer.status == 200
        assert "A subagent is at work." in answer.text
        await proxy.settled()
