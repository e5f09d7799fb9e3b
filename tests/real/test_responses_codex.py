"""Codex itself as a client of the proxy: its own `exec`, with every request as it makes them, and its tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from codex_proxy.surfaces.responses.history import SUMMARY_WORDS
from tests.http.serving import Proxy, fake_proxy
from tests.real.codex_home import KEY, PROVIDER, make_codex_home, run_exec


async def codex_says(proxy: Proxy, folder: Path, prompt: str) -> str:
    """What `codex exec` prints as its answer, with the proxy as its only provider."""
    home = make_codex_home(folder, f"{proxy.url}/v1")
    return (await run_exec(home, "--sandbox", "read-only", prompt)).decode()


@pytest.mark.exhaustive
async def test_codex_is_answered_through_the_proxy_and_nothing_is_stored(tmp_path: Path) -> None:
    (tmp_path / "server").mkdir()
    async with fake_proxy(tmp_path / "server", {"FAKE_CODEX_MODELS": "any"}) as proxy:
        answer = await codex_says(proxy, tmp_path / "client", '[[fake:text say="Hi there."]]')
        assert proxy.server.store_lifecycle is not None
        stats = await proxy.server.store_lifecycle.store.stats()
    assert "Hi there." in answer
    assert (stats.responses, stats.items, stats.steps) == (0, 0, 0)


@pytest.mark.exhaustive
async def test_codex_runs_a_command_that_the_model_calls_for_and_gives_its_output_back(
    tmp_path: Path,
) -> None:
    arguments = json.dumps({"cmd": "echo made-by-codex"})
    prompt = f"""[[fake:tool_call name=exec_command args='{arguments}' say="Seen: {{outputs}}"]]"""
    (tmp_path / "server").mkdir()
    async with fake_proxy(tmp_path / "server", {"FAKE_CODEX_MODELS": "any"}) as proxy:
        answer = await codex_says(proxy, tmp_path / "client", prompt)
    assert "made-by-codex" in answer.rpartition("Seen:")[2]


SUMMARY = "Hello from the deterministic fake agent."
"""What the fake agent answers where a prompt has no marker, such as the one that asks for a summary."""
OPENAI = {
    "WebSocket": 'model_provider = "openai"\nopenai_base_url = "{url}/v1"\n',
    "HTTP": 'model_provider = "named"\n',
}
"""Two ways to have Codex take the proxy for OpenAI itself, which it asks for compactions."""
NAMED = """[model_providers.named]
name = "OpenAI"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "CODEX_API_KEY"
"""


@pytest.mark.parametrize("way", OPENAI)
async def test_codex_goes_on_after_each_compaction_that_it_asks_its_provider_for(
    way: str, tmp_path: Path
) -> None:
    """Its context is full after each turn, so each later turn begins with a compaction."""
    (tmp_path / "server").mkdir()
    with capture_logs() as lines:
        async with fake_proxy(tmp_path / "server", {"FAKE_CODEX_MODELS": "any"}) as proxy:
            home = make_codex_home(tmp_path / "client", f"{proxy.url}/v1")
            chosen = OPENAI[way].format(url=proxy.url) + "model_auto_compact_token_limit = 100\n"
            config = home.config.read_text().replace(f'model_provider = "{PROVIDER}"\n', chosen)
            home.config.write_text(config + NAMED.format(url=proxy.url))

            async def says(*arguments: str) -> str:
                key = {"CODEX_API_KEY": KEY}
                said = await run_exec(home, "--sandbox", "read-only", *arguments, environment=key)
                return said.decode().strip()

            first = await says('[[fake:text say="Blue."]]')
            later = [await says("resume", "--last", "[[fake:echo]]") for _ in range(2)]
            await proxy.settled()
    assert first == "Blue."
    assert [answer.count(SUMMARY_WORDS.strip()) for answer in later] == [1, 1]
    assert all(SUMMARY in answer for answer in later)
    assert len([line for line in lines if line["event"] == "turn_started"]) == 5
    posted = [line for line in lines if line["event"] == "request" and line["method"] == "POST"]
    assert [line["status"] for line in posted] == ([200] * 5 if way == "HTTP" else [])
