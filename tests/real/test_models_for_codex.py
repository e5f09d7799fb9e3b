"""The list of models that Codex reads when it is a client of the proxy: its own entries, in its own shape."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import aiohttp
import pytest
import structlog

from tests.http.serving import fake_proxy
from tests.real.codex_home import MODEL, bundled_catalog, make_codex_home, sign_in_with_chatgpt
from tests.real.proxy import Proxy
from tests.real.release import codex_path
from tests.waiting import PATIENCE, eventually


@pytest.mark.exhaustive
async def test_codex_as_a_client_gets_its_own_entries_in_its_own_shape(proxy: Proxy) -> None:
    async with (
        aiohttp.ClientSession() as session,
        session.get(f"{proxy.url}/v1/models", params={"client_version": "0.163.0"}) as reply,
    ):
        models = (await reply.json())["models"]
    own = {entry["slug"]: entry for entry in json.loads(bundled_catalog())["models"]}
    listed = {model["slug"]: model for model in models}
    assert {*own, "codex-5", "codex-5-high"} <= set(listed)
    for slug, entry in own.items():
        assert listed[slug].items() >= entry.items()
    assert all(model["base_instructions"] for model in models)


async def test_the_log_names_the_model_that_was_asked_for_and_the_one_of_codex_that_answered(
    proxy: Proxy,
) -> None:
    with structlog.testing.capture_logs() as lines:
        await proxy.client.chat.completions.create(
            model="codex-5-low", messages=[{"role": "user", "content": "Hello."}]
        )
        await eventually(lambda: [line for line in lines if line["event"] == "request"])
    (started,) = [line for line in lines if line["event"] == "turn_started"]
    (ended,) = [line for line in lines if line["event"] == "request"]
    assert started["model"] == ended["model"] == "codex-5-low"
    assert ended["response_model"] == MODEL


@pytest.mark.exhaustive
@pytest.mark.parametrize("model", ["codex-5", "fake-model", "mine"])
async def test_a_codex_with_a_sign_in_of_chatgpt_warns_of_no_model_of_another_agent(
    tmp_path: Path, model: str
) -> None:
    home = make_codex_home(tmp_path / "client", "")
    async with fake_proxy(tmp_path, model_aliases="mine=fake-model") as proxy:
        sign_in_with_chatgpt(home, f"{proxy.url}/v1")
        home.config.write_text(home.config.read_text().replace(MODEL, model))
        process = await asyncio.create_subprocess_exec(
            *(str(codex_path()), "exec", "--skip-git-repo-check", "[[fake:text say=Answered.]]"),
            cwd=home.workdir,
            env=home.environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        async with asyncio.timeout(PATIENCE):
            printed = (await process.communicate())[0].decode()
    assert "Answered." in printed
    assert "metadata" not in printed
    assert "models" not in printed
