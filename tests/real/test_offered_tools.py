"""The tools that a model is offered by a Codex with this server's profile are those that Codex alone offers it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from codex_proxy.parts.clients.clients import PROGRAMS
from codex_proxy.parts.clients.connect import NO_KEY, ServerAccess, client_named, write_into
from codex_proxy.parts.clients.run import prepare
from codex_proxy.surfaces.responses.client_tools import name_of
from tests.http.serving import fake_proxy
from tests.real.codex_home import MODEL, CodexHome, make_codex_home, run_exec
from tests.real.model_server import ModelServer
from tests.real.proxy import proxy
from tests.real.release import PLAIN_MODEL
from tests.real.test_codex_as_client import DEFERRED, LITE, tools_in

pytestmark = PLAIN_MODEL

PROMPT = "[[model:text say=Done.]]"


async def answer_of(home: CodexHome, prompt: str, *arguments: str) -> str:
    """What a Codex in a home says, which warns of no unknown model."""
    said = await run_exec(home, "--json", *arguments, prompt)
    items = [json.loads(line).get("item", {}) for line in said.splitlines()]
    (answer,) = [item for item in items if item]
    assert answer["type"] == "agent_message", answer
    return str(answer["text"])


async def tools_offered(home: CodexHome, server: ModelServer, *arguments: str) -> set[str]:
    """Runs a Codex in a home. Returns what the model was offered last, by the client's names."""
    await answer_of(home, PROMPT, *arguments)
    offered = tools_in(server.calls[-1].body)
    names = {name_of(namespace or None, tool.get("name", tool["type"])) for namespace, tool in offered}
    return {name.removeprefix("client_") for name in names} - {"web_search"}  # which is the operator's choice


def unused_home(root: Path) -> CodexHome:
    home = make_codex_home(root, "http://127.0.0.1:1/v1")
    home.config.unlink()
    return home


@pytest.mark.parametrize("way", ["run", pytest.param("connect", marks=pytest.mark.exhaustive)])
@pytest.mark.parametrize("model", [DEFERRED, pytest.param(LITE, marks=pytest.mark.exhaustive)])
async def test_the_profile_keeps_each_tool_that_codex_has_for_the_servers_model(
    way: str, model: str, codex_home: CodexHome, model_server: ModelServer, tmp_path: Path
) -> None:
    codex_home.config.write_text(codex_home.config.read_text().replace(MODEL, model))
    alone = await tools_offered(codex_home, model_server)
    assert "apply_patch" in alone or "exec" in alone
    client = unused_home(tmp_path / "client")
    async with proxy(codex_home) as server:
        access = ServerAccess(base_url=f"{server.url}/v1", model="codex-5", key=NO_KEY)
        if way == "run":
            given = (PROGRAMS["codex"], access, client.user, client.environment(), client.user)
            _, first = await asyncio.to_thread(prepare, *given)
        else:
            file = str(client.path / "codex-proxy.config.toml")
            said = await asyncio.to_thread(write_into, client_named("codex"), access, file)
            assert "No server" not in said
            first = ["--profile", "codex-proxy"]
        assert await tools_offered(client, model_server, *first) == alone


async def test_the_model_of_another_agent_is_offered_patches_and_a_tool_search(tmp_path: Path) -> None:
    """Codex knows nothing of that model but what the server says."""
    client = unused_home(tmp_path / "client")
    (folder := tmp_path / "server").mkdir()
    async with fake_proxy(folder) as server:
        access = ServerAccess(base_url=f"{server.url}/v1", model="codex-5", key=NO_KEY)
        given = (PROGRAMS["codex"], access, client.user, client.environment(), client.user)
        _, first = await asyncio.to_thread(prepare, *given)
        echo = json.loads(await answer_of(client, "[[fake:echo]]", *first))
    assert {"apply_patch", "tool_search", "exec_command"} <= set(echo["tools"])
