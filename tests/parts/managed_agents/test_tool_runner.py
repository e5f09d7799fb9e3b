"""The SDK's own runner of tools works on a session: it follows the stream, lists what it has missed, and answers."""

from __future__ import annotations

import asyncio
from pathlib import Path

from anthropic import beta_async_tool

from tests.http.serving import fake_proxy
from tests.parts.managed_agents.driving import sdk
from tests.parts.managed_agents.following import ManagedClient, message, said


async def test_the_sdks_runner_answers_calls(tmp_path: Path) -> None:
    called = []

    @beta_async_tool
    async def get_weather(city: str) -> str:
        """Returns the weather of a city.

        Args:
            city: The city.
        """
        called.append(city)
        return "sunny"

    async with fake_proxy(tmp_path) as proxy, sdk(proxy) as anthropic:
        client = ManagedClient(proxy)
        id = await client.new_session()
        async with client.stream(id) as stream:
            runner = anthropic.beta.sessions.events.tool_runner(id, tools=[get_weather])

            async def run() -> None:
                async for _ in runner:
                    pass

            task = asyncio.create_task(run())
            try:
                await client.send(id, message("[[fake:tool_calls]]"))
                while not stream.rests:
                    await stream.next()
            finally:
                task.cancel()
        assert len(called) == 2
        assert said(stream.events, "user.custom_tool_result") == ["sunny"] * 2
