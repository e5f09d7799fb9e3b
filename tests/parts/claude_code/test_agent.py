"""What the agent `claude-code` knows of its program without a turn."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.agents.process_pool.pool import RECHECK_SECONDS
from codex_proxy.parts.claude_code import agent as claude_code
from codex_proxy.parts.claude_code.agent import ClaudeCodeAgent, ClaudeProcesses, InitializeResult
from codex_proxy.parts.claude_code.launch import LaunchKey
from codex_proxy.process.child import Command
from tests.http.serving import Hands
from tests.runs.virtual import settle


async def test_a_sign_in_is_noticed_however_often_there_was_none_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [False, False, False, True]

    async def request_initialize(command: Command) -> InitializeResult:
        return InitializeResult(signed_in=answers.pop(0))

    monkeypatch.setattr(claude_code, "request_initialize", request_initialize)
    processes = ClaudeProcesses(
        name="claude-code",
        version="",
        command=lambda key: Command((sys.executable,), {}, str(tmp_path)),
        confinement=PlainConfinement("It", None),
        empty_folder=str(tmp_path),
        warm=LaunchKey("agent", str(tmp_path)),
    )
    clock = Hands()
    agent = ClaudeCodeAgent(processes, clock)
    agent._initialized = InitializeResult(signed_in=answers.pop(0))
    for _ in range(3):
        clock.now += RECHECK_SECONDS + 1
        agent.trouble()
        await settle()
    assert (agent.trouble(), answers) == (None, [])
    await agent.close()
