"""Large outputs of a client's tool, given to a call that waits for them, reach the models of real programs whole."""

from __future__ import annotations

import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI

from codex_proxy.app.server import Server
from tests.real.acp_proxy import AGENTS, acp_proxy
from tests.real.scripted_apis import ScriptedApis, script, scripted_apis
from tests.real.shared import living_on
from tests.weather_tool import CHAT_WEATHER

pytestmark = [pytest.mark.exhaustive, pytest.mark.parametrize("agent", AGENTS, scope="module")]
SIZES = [20, 60, 150, 400, 600]
"""In kilobytes."""


@living_on(scope="module")
async def apis() -> AsyncIterator[ScriptedApis]:
    async with scripted_apis() as apis:
        yield apis


@living_on(scope="module")
async def client_and_server(agent: str, apis: ScriptedApis) -> AsyncIterator[tuple[AsyncOpenAI, Server]]:
    with tempfile.TemporaryDirectory(prefix=f"codex-proxy-{agent}-", ignore_cleanup_errors=True) as folder:
        async with acp_proxy(agent, Path(folder), apis.url) as found:
            yield found


def output_of(size: int, *, lines: bool) -> str:
    """A text of so many bytes in which every piece is another one."""
    parts, length, number = [], 0, 0
    while length < size:
        part = f"piece {number} of it{chr(10) if lines else ' '}"
        parts.append(part)
        length, number = length + len(part), number + 1
    return "".join(parts).rstrip()


@pytest.mark.parametrize("lines", [True, False])
@pytest.mark.parametrize("size", SIZES)
async def test_an_output_reaches_the_model_whole(
    agent: str, client_and_server: tuple[AsyncOpenAI, Server], apis: ScriptedApis, size: int, lines: bool
) -> None:
    client, _ = client_and_server
    call = {"name": "get_weather", "args": {"city": "Oslo"}}
    prompt = f"Weather? {script({'text': 'I ask.', 'tools': [call]}, {'text': 'It is cold.'})}"
    messages: list[Any] = [{"role": "user", "content": prompt}]
    first = await client.chat.completions.create(model="codex-5", messages=messages, tools=[CHAT_WEATHER])
    said: Any = first.choices[0].message
    output = output_of(size * 1000, lines=lines)
    messages += [
        said.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": said.tool_calls[0].id, "content": output},
    ]
    apis.bodies.clear()
    if agent == "copilot" and size >= 400:  # more than its model's window takes
        with pytest.raises(openai.BadRequestError, match="prompt budget"):
            await client.chat.completions.create(model="codex-5", messages=messages, tools=[CHAT_WEATHER])
        return
    second = await client.chat.completions.create(model="codex-5", messages=messages, tools=[CHAT_WEATHER])
    assert second.choices[0].message.content
    whole = json.dumps(output)[1:-1]
    nested = json.dumps(whole)[1:-1]
    bodies = list(map(json.dumps, apis.bodies))
    assert any(whole in body or nested in body for body in bodies), [len(body) for body in bodies]
