"""Codex itself as a client of the proxy: its own `exec`, with every request as it makes them, and its tools."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.http.serving import Proxy, fake_proxy
from tests.real.codex_home import make_codex_home, run_exec


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
