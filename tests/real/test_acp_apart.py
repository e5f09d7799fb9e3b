"""Two clients at once on every real program that speaks ACP: nothing of one reaches the other. With two keys, the same
tool names, calls that wait, a turn without tools, and a client that leaves.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from openai import AsyncOpenAI

from codex_proxy.parts.acp.calls import REFUSED
from codex_proxy.parts.acp.presets import PRESETS
from codex_proxy.parts.acp.tool_server import ToolEndpoint, ToolServer
from tests.access.keyed import file_in, key_of, write_keys
from tests.real.acp_proxy import AGENTS, acp_proxy
from tests.real.scripted_apis import ScriptedApis, script, scripted_apis
from tests.real.shared import living_on
from tests.waiting import PATIENCE
from tests.weather_tool import CHAT_WEATHER

pytestmark = [pytest.mark.exhaustive, pytest.mark.parametrize("agent", AGENTS, scope="module")]
MODES = ["agent", "model"]
"""In `model` the folder of a turn does not matter."""


@living_on(scope="module")
async def apis() -> AsyncIterator[ScriptedApis]:
    async with scripted_apis() as apis:
        yield apis


@asynccontextmanager
async def two_keys(agent: str, folder: Path, url: str) -> AsyncIterator[tuple[AsyncOpenAI, AsyncOpenAI]]:
    """Clients with two keys of one server."""
    write_keys(folder, ann={}, bob={})
    async with acp_proxy(agent, folder, url, keys_file=file_in(folder)) as (client, _):
        yield client.with_options(api_key=key_of("ann")), client.with_options(api_key=key_of("bob"))


@living_on(scope="module")
async def two(agent: str, apis: ScriptedApis) -> AsyncIterator[tuple[AsyncOpenAI, AsyncOpenAI]]:
    """They share a server for all tests of an agent, which takes long to start."""
    with tempfile.TemporaryDirectory(prefix=f"codex-proxy-{agent}-", ignore_cleanup_errors=True) as folder:
        async with two_keys(agent, Path(folder), apis.url) as clients:
            yield clients


class Conversation:
    """A conversation of one client whose model calls the weather tool."""

    def __init__(self, client: AsyncOpenAI, city: str, mode: str) -> None:
        self._client = client
        self._headers = {"X-Codex-Mode": mode}
        call = {"name": "get_weather", "args": {"city": city}}
        text = f"Weather? {script({'text': 'I ask.', 'tools': [call]}, {'text': f'Said of {city}.'})}"
        self._messages: list[Any] = [{"role": "user", "content": text}]
        self.city = city

    async def ask(self) -> Any:
        answer = await self._client.chat.completions.create(
            model="codex-5", messages=self._messages, tools=[CHAT_WEATHER], extra_headers=self._headers
        )
        return answer.choices[0].message

    async def call(self) -> None:
        """The model calls the tool with this conversation's city."""
        message = await self.ask()
        calls: list[Any] = list(message.tool_calls or ())
        assert [json.loads(each.function.arguments) for each in calls] == [{"city": self.city}]
        output = {"role": "tool", "tool_call_id": calls[0].id, "content": f"cold in {self.city}"}
        self._messages += [message.model_dump(exclude_none=True), output]

    async def answer(self) -> None:
        """The model gets the output, and answers."""
        assert (await self.ask()).content == f"Said of {self.city}."


@pytest.mark.parametrize("mode", MODES)
async def test_two_clients_with_the_same_tool_get_their_own_calls_and_outputs(
    agent: str, two: tuple[AsyncOpenAI, AsyncOpenAI], apis: ScriptedApis, mode: str
) -> None:
    ann, bob = two
    apis.bodies.clear()
    oslo, rome = Conversation(ann, "Oslo", mode), Conversation(bob, "Rome", mode)
    await asyncio.gather(oslo.call(), rome.call())
    await asyncio.gather(rome.answer(), oslo.answer())
    for own, other in (("Oslo", "Rome"), ("Rome", "Oslo")):
        told = [body for body in map(json.dumps, apis.bodies) if f"cold in {own}" in body]
        assert told
        assert not any(other in body for body in told)


@pytest.mark.parametrize("mode", MODES)
async def test_a_turn_without_tools_is_offered_none_of_another_client(
    agent: str, two: tuple[AsyncOpenAI, AsyncOpenAI], apis: ScriptedApis, mode: str
) -> None:
    ann, bob = two
    waiting = Conversation(ann, "Oslo", mode)
    await waiting.call()
    apis.bodies.clear()
    prompt = f"Hi from Bob. {script({'text': 'Hello.'})}"
    headers = {"X-Codex-Mode": mode}
    plain: Any = {"model": "codex-5", "messages": [{"role": "user", "content": prompt}]}
    answer = await bob.chat.completions.create(**plain, extra_headers=headers)
    assert answer.choices[0].message.content == "Hello."
    bodies = [body for body in map(json.dumps, apis.bodies) if "Hi from Bob." in body]
    assert bodies
    assert not any("get_weather" in body or "Oslo" in body for body in bodies)
    await waiting.answer()


async def test_a_client_that_leaves_does_not_disturb_the_others_waiting_call(
    agent: str, two: tuple[AsyncOpenAI, AsyncOpenAI]
) -> None:
    ann, bob = two
    waiting = Conversation(ann, "Oslo", "agent")
    await waiting.call()
    prompt = f"Go. {script({'text': 'word ' * 400, 'delay': 0.05})}"
    leaving: Any = {
        "model": "codex-5",
        "messages": [{"role": "user", "content": prompt}],
        "tools": [CHAT_WEATHER],
    }
    stream = await bob.chat.completions.create(**leaving, stream=True)
    async for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    await stream.close()
    await waiting.answer()


async def test_a_call_at_the_sessions_tool_server_that_its_own_model_did_not_make_is_refused(
    agent: str, apis: ScriptedApis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the program had taken the tool server of one session for that of another."""
    if PRESETS[agent].apart != "sessions":
        pytest.skip("a process of it serves one session with tools: no call can be another's")
    endpoints: list[ToolEndpoint] = []
    opened = ToolServer.open

    async def recorded(server: ToolServer, tools: Any) -> ToolEndpoint:
        endpoints.append(await opened(server, tools))
        return endpoints[-1]

    monkeypatch.setattr(ToolServer, "open", recorded)
    async with acp_proxy(agent, tmp_path, apis.url) as (client, _):
        prompt = f"Go. {script({'text': 'word ' * 400, 'delay': 0.05})}"
        stream = await client.chat.completions.create(
            model="codex-5", messages=[{"role": "user", "content": prompt}], tools=[CHAT_WEATHER], stream=True
        )
        async for chunk in stream:
            if chunk.choices and chunk.choices[0].delta.content:
                break
        [endpoint] = [each for each in endpoints if each.was_listed]
        foreign = {"name": "get_weather", "arguments": {"city": "Oslo"}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": foreign}
        headers = {"Authorization": f"Bearer {endpoint.token}"}
        async with (
            asyncio.timeout(PATIENCE),
            aiohttp.ClientSession() as http,
            http.post(endpoint.server_entry(http=True)["url"], json=body, headers=headers) as reply,
        ):
            answer = await reply.text()
        assert REFUSED in answer
        async for chunk in stream:
            assert not (chunk.choices and chunk.choices[0].delta.tool_calls)
            if chunk.choices and chunk.choices[0].delta.content:
                break  # its own turn goes on
        await stream.close()
