"""Messages below the limit of a body, which an agent's program cannot repeat in one line."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.agents.codex_app_server import app_server_dialect, thread_turns
from codex_proxy.agents.sessions.session import MAX_LINE_BYTES
from tests.http.serving import Answer, fake_proxy
from tests.weather_tool import CHAT_WEATHER

PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
    "ollama": "/api/chat",
}
LIMIT = 20_000


def body(api: str, content: Any, *before: Any, stream: bool = False) -> dict[str, Any]:
    messages = [*before, {"role": "user", "content": content}]
    asked = {"model": "codex-5", "stream": stream}
    if api == "responses":
        return asked | {"input": messages}
    return asked | {"messages": messages} | ({"max_tokens": 1000} if api == "messages" else {})


def assert_refused(answer: Answer, *named: object) -> None:
    assert answer.status == 413, answer.text
    assert all(str(each) in answer.text for each in named), answer.text


@pytest.fixture
def small_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thread_turns, "MAX_MESSAGE_BYTES", LIMIT)
    monkeypatch.setattr(app_server_dialect, "MAX_MESSAGE_BYTES", LIMIT)


@pytest.mark.filterwarnings("ignore:Sending a large body")
async def test_a_message_that_codex_cannot_repeat_in_one_line_is_too_large(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        size = 28 << 20
        other = asyncio.create_task(proxy.ask(body("chat", "[[fake:text n=40 delay=50]]")))
        assert_refused(await proxy.ask(body("chat", "x" * size)), size // 1000, MAX_LINE_BYTES - (64 << 10))
        assert (await other).status == 200
        assert (await proxy.ask(body("chat", "Hi"))).status == 200
        assert proxy.server.runs.agent.processes().restarts == 0


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("api", PATHS)
async def test_every_api_names_the_size_of_what_is_too_large(api: str, stream: bool, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:

        async def ask(*messages: Any) -> Answer:
            *before, last = messages
            return await proxy.send("POST", PATHS[api], body(api, last, *before, stream=stream))

        earlier = {"role": "user", "content": "x" * 2 * LIMIT}
        assert_refused(await ask("x" * 2 * LIMIT), LIMIT)
        assert_refused(await ask("\u0001" * (LIMIT // 5)), LIMIT)
        assert_refused(await ask(earlier, "Hi"), LIMIT)
        half = {"role": "user", "content": "x" * (LIMIT * 3 // 4)}
        assert (await ask(half, half["content"])).status == 200


@pytest.mark.usefixtures("small_limit")
@pytest.mark.parametrize("size", [LIMIT // 2, 2 * LIMIT])
async def test_an_output_for_a_call_that_waits_is_refused_by_its_size(size: int, tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, fake_dialect="app-server") as proxy:
        asked = body("chat", "[[fake:tool_call]]") | {"tools": [CHAT_WEATHER]}
        message = (await proxy.ask(asked)).body["choices"][0]["message"]
        output = {"role": "tool", "tool_call_id": message["tool_calls"][0]["id"], "content": "x" * size}
        answer = await proxy.ask(asked | {"messages": [*asked["messages"], message, output]})
        if size < LIMIT:
            assert answer.status == 200
        else:
            assert_refused(answer, LIMIT)
