"""The same turns of a real program, recorded twice, give the same files: Codex, Claude Code, programs that speak ACP.

A program says some lines at the same time as others: their order does not count here. On a busy machine it may cut its
texts elsewhere: then each file of a third recording is that of the first or the second.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from codex_proxy.parts.acp import process
from tests.parts.cassettes.talking import FUNCTION
from tests.parts.cassettes.test_stable_values import without_ms
from tests.real import acp_proxy as acp
from tests.real import anthropic_model
from tests.real.claude_proxy import claude_proxy
from tests.real.codex_home import make_codex_home
from tests.real.model_plans import call, plan, say, think
from tests.real.model_server import ModelServer
from tests.real.proxy import proxy
from tests.real.scripted_apis import script, scripted_apis

pytestmark = pytest.mark.exhaustive

NAMES = ("first", "second", "third")
USED = re.compile(rb'"used":\d+')
"""What a program estimates of its own prompt, which has its process id and the like."""


def lines_in(folder: Path) -> dict[str, list[bytes]]:
    return {
        path.name: sorted(USED.sub(b"", without_ms(path.read_bytes())).splitlines())
        for path in folder.iterdir()
    }


def assert_same(found: list[dict[str, list[bytes]]]) -> None:
    first, *later = found
    for name, lines in first.items():
        others = [each[name] for each in later]
        assert lines in others or others[0] in others[1:], name


async def talk(client: AsyncOpenAI, *asked: str, tools: bool = False) -> None:
    """Asks one after the other; then calls the client's tools until the last answer has none."""
    more: Any = {"tools": [{"type": "function", "function": FUNCTION}]} if tools else {}
    for each in asked:
        messages: list[Any] = [{"role": "user", "content": each}]
        while True:
            try:
                answer = await client.chat.completions.create(model="codex-5", messages=messages, **more)
            except openai.APIStatusError:
                break  # it is recorded as well
            calls = answer.choices[0].message.tool_calls or ()
            messages.append(answer.choices[0].message)
            messages += [{"role": "tool", "tool_call_id": each.id, "content": "sunny"} for each in calls]
            if not calls:
                break


async def continue_response(client: AsyncOpenAI, first: str, second: str) -> None:
    before: Any = await client.responses.create(model="codex-5", input=first)
    async for _ in await client.responses.create(
        model="codex-5", input=second, previous_response_id=before.id, stream=True
    ):
        pass


@pytest.mark.real
async def test_turns_of_codex(tmp_path: Path, model_server: ModelServer) -> None:
    found = []
    for name in NAMES:
        shutil.rmtree(tmp_path / "home", ignore_errors=True)
        model_server.forget()
        home = make_codex_home(tmp_path / "home", model_server.base_url)
        async with proxy(home, cassettes={"record": tmp_path / name}) as running:
            client = running.client
            await talk(
                client,
                plan([think(), say("Let me see."), call(city="Paris")], [say("It is sunny.")]),
                tools=True,
            )
            await talk(
                client,
                "[[model:shell cmd='sleep 0.4; echo done; sleep 0.4' yield=5000]]",
                "[[model:reasoning parts=2 n=2]]",
                "[[model:drop n=2 times=1]]",
                "[[model:failed n=1 code=rate_limit_exceeded msg=slow]]",
                "[[model:http status=401 code=invalid_api_key msg=no]]",
                "[[model:limits]]",
            )
            await continue_response(client, plan([think(), say("One.")]), plan([say("Two.")]))
        found.append(lines_in(tmp_path / name))
        if found[0] == found[-1] and len(found) > 1:
            break
    assert len(found[0]) == 10
    assert_same(found)


async def talk_of_everything(client: AsyncOpenAI, tool: str, command: tuple[str, dict[str, Any]]) -> None:
    called = {"text": "Let me see.", "tools": [{"name": tool, "args": {"city": "Oslo"}}]}
    await talk(client, "Hello? " + script({"think": "Hm.", **called}, {"text": "It is sunny."}), tools=True)
    acts = {"tools": [{"name": command[0], "args": command[1]}]}
    refused = {"status": 400, "type": "invalid_request_error", "message": "no"}
    await talk(
        client,
        "Hello. " + script({"think": "Hm.", "text": "Hello from the model, word by word."}),
        "Act. " + script(acts, {"text": "done"}),
        "Fail. " + script({"error": refused}),
    )
    await continue_response(client, "Hello. " + script({"text": "One."}), "And? " + script({"text": "Two."}))


async def test_turns_of_claude_code(tmp_path: Path) -> None:
    found = []
    for name in NAMES:
        with_own_folder = _with_claude(tmp_path / "place", tmp_path / name)
        async with with_own_folder as client:
            command = {"command": "sleep 0.3; echo done", "description": "x"}
            await talk_of_everything(client, "mcp__client__get_weather", ("Bash", command))
        found.append(lines_in(tmp_path / name))
        if found[0] == found[-1] and len(found) > 1:
            break
    assert len(found[0]) == 7
    assert_same(found)


@asynccontextmanager
async def _with_claude(place: Path, recordings: Path) -> AsyncIterator[AsyncOpenAI]:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    async with (
        anthropic_model.anthropic_model() as model,
        claude_proxy(place, model, cassettes={"record": recordings}) as (client, _),
    ):
        yield client


@pytest.mark.parametrize("agent", acp.AGENTS)
async def test_turns_of_a_program_that_speaks_acp(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        process, "AHEAD_PAUSE_SECONDS", 3600.0
    )  # whether a session was opened ahead is a fact of it
    found = []
    for name in NAMES:
        place = tmp_path / "place"
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        async with (
            scripted_apis() as apis,
            acp.acp_proxy(agent, place, apis.url, cassettes={"record": tmp_path / name}) as (client, _),
        ):
            await talk_of_everything(client, "get_weather", acp.SHELL.get(agent, ("bash", {})))
        found.append(lines_in(tmp_path / name))
        if found[0] == found[-1] and len(found) > 1:
            break
    assert len(found[0]) == 7
    assert_same(found)
