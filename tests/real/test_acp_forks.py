"""Forks of sessions of the Agents API on the real programs that speak ACP and copy their own sessions."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.real.acp_proxy import AGENTS, acp_proxy
from tests.real.scripted_apis import ScriptedApis, script, scripted_apis
from tests.real.shared import living_on

FORKS = frozenset({"opencode", "codex-acp", "claude-acp", "kilo"})
pytestmark = [
    pytest.mark.exhaustive,
    pytest.mark.part("sessions"),
    pytest.mark.parametrize("agent", [each for each in AGENTS if each.values[0] in FORKS]),
]


@living_on(scope="module")
async def apis() -> AsyncIterator[ScriptedApis]:
    async with scripted_apis() as apis:
        yield apis


async def run(client: AsyncOpenAI, session: str, text: str, answer: str) -> str:
    """Runs a turn in which the model gives this answer; returns what the agent has told the client of it."""
    asked = f"{text} {script({'text': answer})}"
    async with client.beta.agents.sessions.stream(session, input=asked) as stream:
        told: str = (await stream.get_final_result()).output_text
        return told


async def thread_of(client: AsyncOpenAI, session: str) -> str | None:
    """Returns the program's id of the session's own session."""
    raw = await client.beta.agents.sessions.with_raw_response.retrieve(session)
    return raw.headers.get("x-codex-thread")


async def test_a_fork_goes_on_in_a_copy_of_the_programs_own_session(
    agent: str, apis: ScriptedApis, tmp_path: Path
) -> None:
    def told(text: str) -> Any:
        return next(body for body in map(json.dumps, reversed(apis.bodies)) if text in body)

    async with acp_proxy(agent, tmp_path, apis.url) as (client, _):
        environment: Any = {
            "type": "self_hosted",
            "workspace_directory": str(tmp_path / "work"),
            "remote_url": "",
        }
        created = await client.beta.agents.sessions.create(
            environment=environment, agent={"model": "codex-5"}
        )
        assert await run(client, created.id, "First question.", "First answer.") == "First answer."
        fork: Any = await client.post(
            f"/agents/sessions/{created.id}/fork",
            cast_to=object,
            body={},
            options={"headers": {"OpenAI-Beta": "agents=v1"}},
        )
        copy = await thread_of(client, fork["id"])
        assert copy not in (None, await thread_of(client, created.id))
        assert await run(client, created.id, "In the session.", "One.") == "One."
        assert await run(client, fork["id"], "In the fork.", "Two.") == "Two."
        assert await thread_of(client, fork["id"]) == copy
        asked = told("In the fork.")
        assert (asked.count("First question."), asked.count('"First answer."')) == (1, 1), "no replay"
        assert "In the session." not in asked
        assert await run(client, created.id, "Again.", "Three.") == "Three."
        assert "In the fork." not in told("Again.")
