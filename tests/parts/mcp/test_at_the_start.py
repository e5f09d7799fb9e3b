"""MCP servers start with the server; banner, health and page say which of them are there."""

from __future__ import annotations

import asyncio
import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from codex_proxy.app.server import Server
from codex_proxy.commands.keys import add
from codex_proxy.commands.serve import banner
from codex_proxy.parts.mcp import http_transports
from codex_proxy.parts.mcp.tool_source import McpToolSource
from tests.http.serving import Proxy, fake_proxy, settings_of, user
from tests.mcp.serving import PROGRAM
from tests.waiting import PATIENCE

DESK = {"command": sys.executable, "args": [PROGRAM, "stdio", "--only", "echo"]}
MISSING = {"command": "/nowhere/no-such-program"}


def file_of(folder: Path, **servers: Any) -> Path:
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": servers}))
    return file


@contextmanager
def silent_address() -> Iterator[str]:
    """An address at which nobody answers a connection: the queue of the listening socket is full."""
    with socket.socket() as listening, socket.socket() as first, socket.socket() as second:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        for waiting in (first, second):
            waiting.setblocking(False)
            waiting.connect_ex(listening.getsockname())
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"


def source_of(proxy: Proxy) -> McpToolSource:
    source = proxy.server.server_tools
    assert isinstance(source, McpToolSource)
    return source


async def have_started(proxy: Proxy) -> Server:
    await source_of(proxy).wait_started(PATIENCE)
    return proxy.server


async def test_banner_health_page_and_log_say_which_servers_are_there(tmp_path: Path) -> None:
    file = file_of(tmp_path, desk=DESK, lost=MISSING)
    with capture_logs() as lines:
        async with fake_proxy(tmp_path, fake_dialect="app-server", mcp_config=file, ui=True) as proxy:
            shown = banner(await have_started(proxy))
            health = (await proxy.send("GET", "/healthz")).body
            state = (await proxy.send("GET", "/ui/api/state")).body
    assert "  MCP        desk: 1 tool\n" in shown
    assert "  TROUBLE    MCP server 'lost'" in shown
    desk, lost = health["mcp"]
    assert desk == {"name": "desk", "status": "ready", "tools": 1}
    assert (lost["name"], lost["status"]) == ("lost", "failed")
    assert "MCP server 'lost'" in lost["trouble"]
    assert state["mcp"] == health["mcp"]
    events = {line["event"]: line for line in lines if line["event"].startswith("mcp_server_")}
    assert events["mcp_server_ready"]["server"] == "desk"
    assert events["mcp_server_failed"]["server"] == "lost"


async def test_a_server_that_does_not_answer_is_told_at_the_start_and_no_request_waits_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_transports, "CONNECT_SECONDS", 0.2)
    with silent_address() as url:
        file = file_of(tmp_path, far={"url": url})
        async with fake_proxy(tmp_path, fake_dialect="app-server", mcp_config=file) as proxy:
            assert "could not be reached within 0.2 s" in banner(await have_started(proxy))
            monkeypatch.setattr(http_transports, "CONNECT_SECONDS", PATIENCE)  # of the next tries
            for _ in range(3):
                assert (await asyncio.wait_for(proxy.ask(user()), PATIENCE / 2)).status == 200


async def test_a_server_that_is_still_starting_is_told_as_such(tmp_path: Path) -> None:
    slow = {**DESK, "args": [*DESK["args"], "--until", str(tmp_path / "go")]}
    file = file_of(tmp_path, slow=slow)
    async with fake_proxy(tmp_path, fake_dialect="app-server", mcp_config=file) as proxy:
        assert "  MCP        slow: still starting\n" in banner(proxy.server)
        assert (await proxy.send("GET", "/healthz")).body["mcp"] == [{"name": "slow", "status": "starting"}]
        (tmp_path / "go").touch()
        assert "  MCP        slow: 1 tool\n" in banner(await have_started(proxy))


@pytest.mark.parametrize("key", ["plain", ""])
async def test_a_key_without_tools_of_mcp_servers_is_not_told_of_them(tmp_path: Path, key: str) -> None:
    settings = settings_of(tmp_path)
    secret, _ = add(settings, "plain", {"mcp": False}, replace=False)
    everything, _ = add(settings, "other", {}, replace=False)
    file = file_of(tmp_path, lost=MISSING)
    given: dict[str, Any] = {"fake_dialect": "app-server", "mcp_config": file}
    async with fake_proxy(tmp_path, **given) as proxy:
        await have_started(proxy)
        headers = {"Authorization": f"Bearer {secret}"} if key else {}
        assert "mcp" not in (await proxy.send("GET", "/healthz", headers=headers)).body
        headers = {"Authorization": f"Bearer {everything}"}
        assert len((await proxy.send("GET", "/healthz", headers=headers)).body["mcp"]) == 1


async def test_servers_that_no_agent_can_use_are_not_started(tmp_path: Path) -> None:
    file = file_of(tmp_path, desk=DESK)
    async with fake_proxy(tmp_path, mcp_config=file) as proxy:
        assert source_of(proxy).states == ()
        assert "PROXY_MCP_CONFIG: not with this agent" in banner(proxy.server)
