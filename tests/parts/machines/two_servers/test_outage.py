"""PostgreSQL stops while two servers work, and starts again: what was acknowledged is there, and nothing has failed."""

from __future__ import annotations

import asyncio

import pytest

from tests.http.serving import Proxy, until
from tests.http_responses.asking import create, prompt_for
from tests.parts.machines.two_servers.conftest import HELD_PROMPT, MakePair
from tests.postgres import server
from tests.waiting import poll

CALL = {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": "{}"}}
AFTER_A_CALL = {
    "model": "codex-5",
    "messages": [
        {"role": "user", "content": "How is the weather?"},
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "call_1", "content": "Sunny."},
    ],
}


async def until_ready(proxy: Proxy, status: int) -> None:
    async def seen() -> bool:
        return (await proxy.send("GET", "/readyz")).status == status

    await poll(seen)


@pytest.mark.exhaustive
async def test_a_background_response_that_ends_while_postgresql_is_away_is_stored_when_it_is_back(
    pair_with: MakePair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.responses.background.RETRY_SECONDS", 0.05)
    with server() as own:
        async with pair_with(store=own.url) as pair:
            before = await create(pair.two, prompt_for("Blue."))
            created = await pair.at_one.responses.create(model="codex-5", input=HELD_PROMPT, background=True)
            await until(lambda: pair.one.server.runs.running == 1)
            await asyncio.to_thread(own.stop)
            await until_ready(pair.one, 503)
            refused = await create(pair.two, "Hello.", previous_response_id=before.body["id"])
            assert (refused.status, refused.error["code"]) == (503, "service_unavailable")
            pair.release.write_text("go")
            await until(lambda: pair.one.server.runs.running == 0)
            await asyncio.to_thread(own.start)
            await pair.one.settled()
            response = await pair.at_two.responses.retrieve(created.id)
            assert (response.status, response.output_text) == ("completed", "one two three")
            echo = await create(pair.one, "[[fake:echo]]", previous_response_id=before.body["id"])
            assert "Blue." in echo.text
            for proxy in (pair.one, pair.two):
                await until_ready(proxy, 200)


@pytest.mark.exhaustive
@pytest.mark.parametrize("mode", ["fast", "immediate"])
async def test_what_was_acknowledged_before_postgresql_stopped_under_load_is_there_when_it_is_back(
    pair_with: MakePair, mode: str
) -> None:
    acknowledged: list[str] = []

    async def ask_for_ever(proxy: Proxy) -> None:
        while True:
            answer = await create(proxy, prompt_for("Blue."))
            if answer.status == 200:
                acknowledged.append(answer.body["id"])
            else:
                assert answer.status == 503, answer.text

    async def chat_for_ever(proxy: Proxy) -> None:
        """Sends outputs of calls, whose turns may be in the database."""
        while True:
            answer = await proxy.send("POST", "/v1/chat/completions", AFTER_A_CALL)
            assert answer.status == 200, answer.text

    with server() as own:
        async with pair_with(store=own.url) as pair:
            proxies = (pair.one, pair.two)
            load = [
                asyncio.create_task(ask(proxy)) for ask in (ask_for_ever, chat_for_ever) for proxy in proxies
            ]
            await until(lambda: len(acknowledged) > 5)
            await asyncio.to_thread(own.stop, mode)
            for proxy in proxies:
                await until_ready(proxy, 503)
            before = len(acknowledged)
            await asyncio.to_thread(own.start)
            for proxy in proxies:
                await until_ready(proxy, 200)
            await until(lambda: len(acknowledged) > before + 5)
            for task in load:
                task.cancel()
            ends = await asyncio.gather(*load, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends), ends
            for id in acknowledged:
                assert (await pair.two.send("GET", f"/v1/responses/{id}")).body["status"] == "completed"
