"""Ollama's packages for Python and JavaScript do everything on the real Codex, the real Claude Code and an upstream, as
the table in docs/clients.md says of them on the fake agent."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import ollama
import pytest

from tests.clients.running import CHECKS, CLIENTS, OLLAMA, Client, run_client
from tests.http.serving import fake_proxy
from tests.model_server import proxy_before
from tests.ollama_client import SCHEMA, WEATHER, briefly, client_of
from tests.real.anthropic_model import anthropic_model, script
from tests.real.claude_proxy import claude_processes, claude_proxy
from tests.real.model_plans import call, plan, say, wait
from tests.real.model_server import ModelServer
from tests.real.release import PLAIN_MODEL
from tests.real.shared import Proxies
from tests.waiting import eventually

pytestmark = pytest.mark.exhaustive

PACKAGES = pytest.mark.parametrize(
    "package", [each for each in CLIENTS if each.wire == OLLAMA], ids=lambda package: package.name
)
ALL_WELL = dict.fromkeys(CHECKS, "yes")
PERSON = {"name": "Ada", "age": 36}
TOOL = "mcp__client__get_weather"
"""Claude Code's name of the client's tool."""
CALLS = [{"tools": [{"name": TOOL, "args": {"city": city}}]} for city in ("Bern", "Rome")]
"""What a model of Claude Code's says in two rounds of tools."""


async def check_package(package: Client, url: str, folder: Path, asked: dict[str, str] | None = None) -> None:
    """Fails where the package cannot do one of the checks."""
    if package.missing:
        pytest.skip(package.missing)
    home = folder / "client"
    home.mkdir()
    told = await run_client(package, url, home, model="codex-5:model", asked=asked)
    assert told["results"] == ALL_WELL


@PLAIN_MODEL
@PACKAGES
async def test_each_package_does_everything_on_the_real_codex(
    package: Client, proxies: Proxies, model_server: ModelServer, tmp_path: Path
) -> None:
    proxy = await proxies.of()
    asked = {
        "text": plan([say("Hello there.")]),
        "tools": plan([call(city="Bern")], [call(city="Rome")], [say("Both are sunny.")]),
        "schema": plan([say(json.dumps(PERSON))]),
        "images": plan([say('"images": 1')]),
        "cancel": plan([say("One"), wait(), say("two")]),
    }
    await check_package(package, proxy.url, tmp_path, asked)
    assert any("data:image/png;base64," in json.dumps(each.body["input"]) for each in model_server.calls)
    await eventually(lambda: proxy.idle)


@PACKAGES
async def test_each_package_does_everything_on_the_real_claude_code(package: Client, tmp_path: Path) -> None:
    asked = {
        "text": script({"text": "Hello there."}),
        "tools": script(*CALLS, {"text": "Both are sunny."}),
        "schema": script({"tools": [{"name": "StructuredOutput", "args": PERSON}]}),
        "images": script({"text": '"images": 1'}),
        "cancel": script({"text": "word word", "hold": "never"}),
    }
    async with anthropic_model() as model, claude_proxy(tmp_path, model) as (_, server):
        await check_package(package, f"http://127.0.0.1:{server.port}", tmp_path, asked)
        assert any("<image>" in text for body in model.requests for _, text in model.texts_for_model(body))
        await eventually(lambda: len(model.gone) == 1)
        await eventually(lambda: server.agent.processes().busy == 0)
    assert claude_processes() == []


@PACKAGES
async def test_each_package_does_everything_on_an_upstream(package: Client, tmp_path: Path) -> None:
    folders = [tmp_path / "behind", tmp_path / "before"]
    for folder in folders:
        folder.mkdir()
    async with (
        fake_proxy(folders[0]) as behind,
        proxy_before(f"{behind.url}/v1", folders[1]) as proxy,
    ):
        await check_package(
            package, proxy.url, tmp_path, {"tools": "[[fake:tool_call rounds=2 say='{outputs}']]"}
        )
        await eventually(lambda: behind.server.runs.running == 0)


async def test_two_rounds_thinking_and_errors_come_from_the_real_claude_code(tmp_path: Path) -> None:
    async with (
        anthropic_model() as model,
        claude_proxy(tmp_path, model) as (_, server),
        client_of(f"http://127.0.0.1:{server.port}") as client,
    ):
        messages: list[Any] = briefly("Weather? " + script(*CALLS, {"text": "Both are sunny."}))
        cities = []
        for _ in range(2):
            answer = await client.chat("codex-5", messages, tools=[WEATHER])
            (asked,) = answer.message.tool_calls or ()
            cities.append(asked.function.arguments["city"])
            messages += [answer.message, {"role": "tool", "tool_name": "get_weather", "content": "sunny"}]
        assert cities == ["Bern", "Rome"]
        last = await client.chat("codex-5", messages, tools=[WEATHER])
        assert (last.message.content, last.done_reason) == ("Both are sunny.", "stop")

        thought = briefly("Who? " + script({"think": "Hm.", "text": "Ada."}))
        pieces = [piece async for piece in await client.chat("codex-5", thought, think=True, stream=True)]
        assert "".join(piece.message.thinking or "" for piece in pieces) == "Hm."
        assert "".join(piece.message.content or "" for piece in pieces) == "Ada."
        assert (pieces[-1].prompt_eval_count or 0) > 0

        named = await client.chat(
            "codex-5",
            briefly("Who? " + script({"tools": [{"name": "StructuredOutput", "args": {"name": "Ada"}}]})),
            format=SCHEMA,
        )
        assert json.loads(named.message.content or "") == {"name": "Ada"}
        error = {"status": 429, "type": "rate_limit_error", "message": "too many"}
        with pytest.raises(ollama.ResponseError) as raised:
            await client.chat("codex-5", briefly("Say. " + script({"error": error})))
        assert raised.value.status_code == 429
