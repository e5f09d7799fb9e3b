"""Turns of Codex and Claude Code whose commands change files at random: each is taken back bit by bit, links and modes
included. The models are scripted.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.parts.snapshots.random_files import command, files_in
from tests.real.anthropic_model import anthropic_model, script
from tests.real.claude_proxy import claude_proxy
from tests.real.codex_home import CodexHome
from tests.real.model_plans import call, plan, say
from tests.real.proxy import proxy

pytestmark = [pytest.mark.part("snapshots"), pytest.mark.exhaustive]

TURNS = 25
SETTINGS: dict[str, Any] = {"sandbox": "danger-full-access", "snapshots": "sessions"}


async def check_turns(client: AsyncOpenAI, folder: Path, prompt: Callable[[str], str]) -> None:
    """Runs turns whose commands change the folder, and takes them back. `prompt`: makes one of a command."""
    choose = random.Random(1)
    sessions = client.beta.agents.sessions
    environment: Any = {"type": "self_hosted", "workspace_directory": str(folder), "remote_url": ""}
    session = (await sessions.create(environment=environment, agent={"model": "codex-5"})).id
    states = [files_in(folder)]
    for _ in range(TURNS):
        async with sessions.stream(session, input=prompt(command(choose))) as stream:
            await stream.get_final_result()
        states.append(files_in(folder))
    assert sum(one != other for one, other in pairwise(states)) > TURNS // 2
    turns = [turn async for turn in sessions.turns.list(session, order="desc")]
    assert len(turns) == TURNS
    headers = {"OpenAI-Beta": "agents=v1"}
    for turn, before in zip(turns, reversed(states[:-1]), strict=True):
        path = f"/agents/sessions/{session}/turns/{turn.id}/revert"
        await client.post(path, cast_to=object, body={}, options={"headers": headers})
        assert files_in(folder) == before


async def test_turns_of_codex_are_taken_back_bit_by_bit(codex_home: CodexHome) -> None:
    async with proxy(codex_home, **SETTINGS) as server:
        await check_turns(
            server.client,
            codex_home.workdir,
            lambda command: f"{plan([call('exec_command', cmd=command)], [say('Done.')])} Do it.",
        )


@pytest.mark.part("claude_code")
async def test_turns_of_claude_code_are_taken_back_bit_by_bit(tmp_path: Path) -> None:
    def prompt(command: str) -> str:
        use = {"tools": [{"name": "Bash", "args": {"command": command, "description": "x"}}]}
        return f"Do it. {script(use, {'text': 'Done.'})}"

    async with anthropic_model() as model, claude_proxy(tmp_path, model, **SETTINGS) as (client, _):
        await check_turns(client, tmp_path / "work", prompt)
