"""The real Codex and the real Claude Code as MCP clients of the proxy: their models, which are scripted, start an agent
of it and follow it. Each is set up as `codex-proxy connect` says.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from codex_proxy.parts.clients.clients import BY_NAME, Entry
from codex_proxy.parts.clients.connect import NO_KEY, ServerAccess, entries_of
from codex_proxy.parts.clients.documents import set_values
from tests.http.serving import Proxy, fake_proxy
from tests.parts.mcp_server.conftest import FAKE
from tests.parts.mcp_server.driving import called, mcp_client
from tests.real.anthropic_model import anthropic_model, script
from tests.real.claude_code import claude_code
from tests.real.codex_home import make_codex_home, run_exec
from tests.real.model_plans import call, plan, say
from tests.real.model_server import ModelServer
from tests.real.shared import living_on

PROMPT = "[[fake:text say=Done.]]"
PATH = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
"""Where `codex-proxy` is, too."""


@living_on()
async def serving(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, **FAKE) as proxy:
        yield proxy


async def earlier_session(proxy: Proxy) -> str:
    """The id of a session that has ended: a script cannot know that of one which is not there yet."""
    async with mcp_client(proxy) as client:
        id = (await called(client, "start_session", prompt="[[fake:text say=Earlier.]]"))["session_id"]
        await called(client, "wait_session", session_id=id)
    return str(id)


async def titles(proxy: Proxy) -> list[str]:
    async with mcp_client(proxy) as client:
        return [each["title"] for each in (await called(client, "list_sessions"))["sessions"]]


def of_proxy(tool: str, **arguments: str) -> dict[str, str]:
    """A call of one of the proxy's tools by Codex's model."""
    return {**call(tool, **arguments), "namespace": "mcp__codex_proxy"}


async def test_codex_starts_an_agent_and_waits_for_one(
    tmp_path: Path, serving: Proxy, model_server: ModelServer
) -> None:
    id = await earlier_session(serving)
    home = make_codex_home(tmp_path / "client", model_server.base_url)
    target = ServerAccess(base_url=f"{serving.url}/v1", model="codex-5", key=NO_KEY)
    # The scripted model does not wait for a server that is still starting, and nobody is there to allow a call.
    more = ("required", True), ("default_tools_approval_mode", "approve")
    entries = [Entry(path=("mcp_servers", "codex-proxy", name), value=value) for name, value in more]
    entries += entries_of(BY_NAME["codex-mcp"], target)
    home.config.write_text(set_values(home.config.read_text(), "toml", entries))
    prompt = plan(
        [of_proxy("start_session", prompt=PROMPT, title="From Codex")],
        [of_proxy("wait_session", session_id=id)],
        [say("All done.")],
    )
    said = await run_exec(home, "--json", "--sandbox", "workspace-write", prompt, environment={"PATH": PATH})
    events = [json.loads(line) for line in said.splitlines()]
    calls = [
        event["item"]
        for event in events
        if event["type"] == "item.completed" and event["item"]["type"] == "mcp_tool_call"
    ]
    assert [(each["tool"], each["status"]) for each in calls] == [
        ("start_session", "completed"),
        ("wait_session", "completed"),
    ]
    assert "Earlier." in str(calls[1]["result"])
    assert "From Codex" in await titles(serving)


@pytest.mark.exhaustive
async def test_claude_code_starts_an_agent_and_waits_for_one(tmp_path: Path, serving: Proxy) -> None:
    id = await earlier_session(serving)
    server = {"codex-proxy": ("codex-proxy", "mcp", "--base-url", serving.url)}
    start = {"name": "mcp__codex-proxy__start_session", "args": {"prompt": PROMPT, "title": "From Claude"}}
    wait = {"name": "mcp__codex-proxy__wait_session", "args": {"session_id": id}}
    steps = script({"tools": [start]}, {"tools": [wait]}, {"text": "All done."})
    async with (
        anthropic_model() as model,
        claude_code(tmp_path / "client", model.url, servers=server, environment={"PATH": PATH}) as session,
    ):
        done = await session.ask(steps)
    assert done["result"] == "All done."
    assert "session_id" in str(session.results("mcp__codex-proxy__start_session")[0]["content"])
    assert "Earlier." in str(session.results("mcp__codex-proxy__wait_session")[0]["content"])
    assert "From Claude" in await titles(serving)
