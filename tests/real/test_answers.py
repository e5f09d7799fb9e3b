"""Answers of a person on the real agents, on a server without keys: to what was shown, with the key of this start, once
and for the session.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import openai
import pytest
from openai import AsyncOpenAI

from codex_proxy.core.keys import digest_of
from tests.real.anthropic_model import anthropic_model, script
from tests.real.claude_proxy import claude_proxy
from tests.real.model_plans import plan, say
from tests.real.release import needs
from tests.real.shared import Proxies
from tests.real.test_approvals import AGENT, WAITS, shell
from tests.real.test_approvals_of_claude import tool

pytestmark = [pytest.mark.part("sessions")]

START_KEY: Final = "cpx_the-key-of-this-start"
WITHOUT_KEYS: Final[dict[str, Any]] = {"approvals": "ask", "start_digest": digest_of(START_KEY)}
OPTIONS: Final[Any] = {"headers": {"OpenAI-Beta": "agents=v1"}}


class Person:
    """Who has the key of this start, and is shown what the agent asks in sessions of a program that has none."""

    def __init__(self, program: AsyncOpenAI, folder: Path) -> None:
        self.program = program
        self.own = program.with_options(api_key=START_KEY)
        self.folder = folder
        self.id = ""
        self.asked: list[dict[str, Any]] = []

    async def turn(self, text: str, **answer: Any) -> list[Any]:
        """Runs a turn, whose questions get the answer. Returns its events."""
        sessions, environment = self.program.beta.agents.sessions, {"type": "self_hosted", "remote_url": ""}
        given: Any = environment | {"workspace_directory": str(self.folder)}
        if not self.id:
            stream: Any = await sessions.create(environment=given, agent=AGENT, input=text, stream=True)
            return [event async for event in self._answering(stream, answer)]
        async with sessions.stream(self.id, input=text) as stream:
            return [event async for event in self._answering(stream, answer)]

    async def _answering(self, stream: Any, answer: dict[str, Any]) -> Any:
        async for event in stream:
            if event.type == WAITS:
                self.id = event.session.id
                await self._answer(answer)
            yield event

    async def _answer(self, answer: dict[str, Any]) -> None:
        path, headers = f"/agents/sessions/{self.id}", OPTIONS
        summary: Any = await self.own.get(f"{path}/summary", cast_to=object, options=headers)
        assert summary["may_approve"]
        for ask in summary["asks"]:
            self.asked.append(ask)
            url, body = f"{path}/asks/{ask['request_id']}", {"digest": ask["digest"], **answer}
            with pytest.raises(openai.PermissionDeniedError):
                await self.program.post(url, cast_to=object, body=body, options=headers)
            await self.own.post(url, cast_to=object, body=body, options=headers)


@needs("confined_reads")
async def test_a_command_of_codex_is_permitted_for_the_session(proxies: Proxies) -> None:
    proxy = await proxies.of(sandbox="workspace-write", **WITHOUT_KEYS)
    person, made = Person(proxy.client, proxies.home.workdir), proxies.home.workdir / "made"
    text = f"{plan([shell('echo once >> made')], [say('Done.')])} Do it."
    await person.turn(text, decision="approve", for_session=True)
    assert [ask["name"] for ask in person.asked] == ["run_command"]
    assert "exactly this command" in person.asked[0]["rule"]
    assert made.read_text() == "once\n"
    await person.turn(text, decision="deny")
    assert len(person.asked) == 1  # it was not asked again
    assert made.read_text() == "once\nonce\n"
    await person.turn(f"{plan([shell('echo other >> made')], [say('Done.')])} Do it.", decision="deny")
    assert len(person.asked) == 2
    assert "other" not in made.read_text()


@pytest.mark.exhaustive
async def test_changes_of_files_of_claude_code_are_permitted_for_the_session(tmp_path: Path) -> None:
    async with (
        anthropic_model() as model,
        claude_proxy(tmp_path, model, sandbox="workspace-write", **WITHOUT_KEYS) as (client, server),
    ):
        folder = Path(server.settings.workdir)
        person = Person(client, folder)
        for name in ("one", "two"):
            change = tool("Write", file_path=str(folder / f"{name}.txt"), content="hello\n")
            text = f"Do it. {script(change, {'text': 'Done.'})}"
            await person.turn(text, decision="approve", for_session=True)
            assert (folder / f"{name}.txt").read_text() == "hello\n"
        assert [ask["name"] for ask in person.asked] == ["apply_patch"]
