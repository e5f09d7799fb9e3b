"""Sessions of the Agents API on stored sessions of the real Claude Code."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI

from tests.real.anthropic_model import AnthropicModel, anthropic_model, script
from tests.real.claude_proxy import claude_proxy
from tests.real.shared import living_on

pytestmark = [pytest.mark.part("sessions"), pytest.mark.part("claude_code"), pytest.mark.exhaustive]

HELLO = f"I am Rumpel. {script({'text': 'Hello.'})}"
WHO = f"Who am I? {script({'text': 'Rumpel.'})}"


@living_on()
async def model() -> AsyncIterator[AnthropicModel]:
    async with anthropic_model() as running:
        yield running


@asynccontextmanager
async def served(folder: Path, model: AnthropicModel, **settings: Any) -> AsyncIterator[AsyncOpenAI]:
    async with claude_proxy(folder, model, **settings) as (client, _):
        yield client


async def new_session(client: AsyncOpenAI, folder: Path, input: str = HELLO, **agent: Any) -> str:
    environment: Any = {
        "type": "self_hosted",
        "workspace_directory": str(folder / "work"),
        "remote_url": "",
    }
    settings: Any = {"model": "codex-5", **agent}
    stream = await client.beta.agents.sessions.create(
        environment=environment, agent=settings, input=input, stream=True
    )
    id: str = (await stream.get_final_result()).session_id
    return id


async def run(client: AsyncOpenAI, session: str, input: str) -> str:
    async with client.beta.agents.sessions.stream(session, input=input) as stream:
        answer: str = (await stream.get_final_result()).output_text
        return answer


async def thread_of(client: AsyncOpenAI, session: str) -> str | None:
    answer = await client.beta.agents.sessions.with_raw_response.retrieve(session)
    return answer.headers.get("x-codex-thread")


def files_of(folder: Path) -> list[str]:
    """The ids of the stored sessions."""
    return [file.stem for file in folder.glob("home/.claude/projects/*/*.jsonl")]


def spoken(model: AnthropicModel) -> list[tuple[str, str]]:
    """What the model was given last, without what Claude Code adds."""
    return [
        (role, text.rpartition("</system-reminder>\n")[2].strip()) for role, text in model.texts_for_model()
    ]


async def test_a_session_goes_on_with_claude_codes_own_after_a_restart(
    tmp_path: Path, model: AnthropicModel
) -> None:
    async with served(tmp_path, model) as client:
        session = await new_session(client, tmp_path, instructions="Be brief.")
        thread = await thread_of(client, session)
        assert files_of(tmp_path) == [thread]
        assert await run(client, session, WHO) == "Rumpel."
    async with served(tmp_path, model) as client:
        assert await run(client, session, WHO) == "Rumpel."
        assert await thread_of(client, session) == thread
        assert spoken(model) == [
            ("user", HELLO),
            ("assistant", "Hello."),
            ("user", WHO),
            ("assistant", "Rumpel."),
            ("user", WHO),
        ]
        assert "Be brief." in str(model.last["system"])
        assert files_of(tmp_path) == [thread]
        await client.beta.agents.sessions.delete(session)
        assert files_of(tmp_path) == []


async def test_a_session_whose_file_is_gone_begins_another_with_the_whole_conversation(
    tmp_path: Path, model: AnthropicModel
) -> None:
    async with served(tmp_path, model) as client:
        session = await new_session(client, tmp_path)
        thread = await thread_of(client, session)
    for file in tmp_path.glob("home/.claude/projects/*/*.jsonl"):
        file.unlink()
    async with served(tmp_path, model) as client:
        assert await run(client, session, WHO) == "Rumpel."
        assert await thread_of(client, session) not in (thread, None)
        assert spoken(model) == [("user", HELLO), ("assistant", "Hello."), ("user", WHO)]
    async with served(tmp_path, model) as client:
        assert await run(client, session, WHO) == "Rumpel."
        assert len(spoken(model)) == 5, "what was replayed is stored, too"


async def test_a_conversation_without_a_folder_is_not_stored(tmp_path: Path, model: AnthropicModel) -> None:
    async with served(tmp_path, model) as client:
        stream = await client.beta.agents.sessions.create(
            environment={"type": "none"}, agent={"model": "codex-5"}, input=HELLO, stream=True
        )
        session = (await stream.get_final_result()).session_id
        assert await thread_of(client, session) is None
    assert files_of(tmp_path) == []
