"""What a client gets for each error of a model provider, with the real programs: the table of docs/agents.md.

Claude Code by its own protocol has the same in `test_claude_code`, with its own model server.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from tests.real.acp_proxy import AGENTS, acp_proxy
from tests.real.scripted_apis import ScriptedApis, script, scripted_apis
from tests.real.shared import living_on

pytestmark = [pytest.mark.exhaustive, pytest.mark.parametrize("agent", AGENTS)]

SECONDS = 12.0
"""The time to the first word here: less than some agents take with a provider that is too busy."""

ERRORS: dict[str, dict[str, Any]] = {
    "credentials": {"status": 401, "type": "authentication_error", "message": "invalid x-api-key"},
    "rate": {
        "status": 429,
        "type": "rate_limit_error",
        "message": "This request would exceed your rate limit",
    },
    "server": {"status": 500, "type": "api_error", "message": "Internal server error"},
    "length": {
        "status": 400,
        "type": "invalid_request_error",
        "message": "prompt is too long: 250000 tokens > 200000 maximum",
    },
    "model": {"status": 404, "type": "not_found_error", "message": "model: nonsense"},
}
EXPECTED = {
    "credentials": (401, "agent_not_authenticated"),
    "rate": (429, "rate_limit_exceeded"),
    "server": (502, "upstream_error"),
    "length": (400, "context_length_exceeded"),
    "model": (404, "model_not_found"),
}
SILENT = {("gemini", "rate"), ("gemini", "server"), ("qwen", "rate"), ("qwen", "server"), ("copilot", "rate")}
"""What an agent asks again for without a word: the time is up first, and the message says what that can mean."""
UNTOLD = {("kimi", "rate"), ("kimi", "server"), ("kimi", "model")}
"""What an agent ends its turn for without a word, as it ends a good one."""
SLOW = {("copilot", "server")}
"""What it asks again for and tells of, without the reason."""


@living_on()
async def apis() -> AsyncIterator[ScriptedApis]:
    async with scripted_apis() as apis:
        yield apis


async def failure(
    client: AsyncOpenAI, *steps: dict[str, Any], model: str = "codex-5"
) -> openai.APIStatusError:
    """The error that a request gets."""
    messages: Any = [{"role": "user", "content": f"Say. {script(*steps)}"}]
    with pytest.raises(openai.APIStatusError) as raised:
        await client.chat.completions.create(model=model, messages=messages)
    assert "127.0.0.1" not in str(raised.value)
    return raised.value


@pytest.mark.parametrize("error", ERRORS)
async def test_an_error_of_the_provider_is_its_status_in_time(
    agent: str, error: str, apis: ScriptedApis, tmp_path: Path
) -> None:
    if (agent, error) in {("opencode", "length"), ("kilo", "length"), ("kimi", "length")}:
        pytest.skip("it makes the conversation shorter, and asks again")
    async with acp_proxy(agent, tmp_path, apis.url, first_event_timeout=SECONDS) as (client, _):
        raised = await failure(client, *[{"error": ERRORS[error]}] * 30)
    told = (raised.status_code, raised.code)
    if (agent, error) in SILENT:
        assert told == (504, "request_timeout")
        assert "reports nothing while" in str(raised)
    elif (agent, error) in UNTOLD:
        assert told == (502, "upstream_error")
        assert "without an answer" in str(raised)
    elif (agent, error) in SLOW:
        assert told in (EXPECTED[error], (504, "request_timeout"))
    else:
        assert told == EXPECTED[error]


async def test_a_model_that_it_does_not_have_is_a_404(agent: str, apis: ScriptedApis, tmp_path: Path) -> None:
    async with acp_proxy(agent, tmp_path, apis.url) as (client, _):
        raised = await failure(client, {"text": "Hi."}, model="nonsense-model")
    assert (raised.status_code, raised.code) == (404, "model_not_found")


async def test_nobody_signed_in_is_a_401_that_says_what_to_do(
    agent: str, apis: ScriptedApis, tmp_path: Path
) -> None:
    if agent in ("opencode", "kilo"):
        pytest.skip("it asks a free model of its maker's then")
    async with acp_proxy(agent, tmp_path, apis.url, signed_in=False) as (client, _):
        before = len(apis.bodies)
        raised = await failure(client, {"text": "Hi."})
    assert (raised.status_code, raised.code) == (401, "agent_not_authenticated")
    assert "Run `" in str(raised)
    assert len(apis.bodies) == before


async def test_a_stream_that_breaks_off_is_an_error_and_no_answer(
    agent: str, apis: ScriptedApis, tmp_path: Path
) -> None:
    """The client may have got a part of it, but never a finish reason."""
    if agent == "kimi":
        pytest.skip("it ends such a turn as a good one: docs/agents.md says so")
    broken = {"text": "one two three four five six", "drop": 3, "delay": 0.02}
    messages: Any = [{"role": "user", "content": f"Say. {script(*[broken] * 30)}"}]
    said: list[str] = []

    async def read() -> None:
        stream = await client.chat.completions.create(model="codex-5", messages=messages, stream=True)
        async for chunk in stream:
            said.extend(choice.finish_reason or "" for choice in chunk.choices)

    async with acp_proxy(agent, tmp_path, apis.url, first_event_timeout=40.0) as (client, _):
        with pytest.raises(openai.APIError):
            await read()
    assert not any(said)
