"""The official MCP Inspector as a client of `/mcp` and of `codex-proxy mcp`: it starts an agent and waits for it."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.http.serving import Proxy, fake_proxy
from tests.npm import installed
from tests.parts.mcp_server.conftest import FAKE
from tests.parts.sessions.test_approvals import with_keys
from tests.real.shared import living_on
from tests.waiting import PATIENCE

INSPECTOR = "@modelcontextprotocol/inspector@2.12.0"
NODE = (22, 19)
"""The oldest Node that it runs on."""
ROOT = str(Path(__file__).parents[2])


@pytest.fixture
def inspector() -> str:
    """The program. Skips the test, with the reason, where it cannot be installed or run."""
    folder = installed(INSPECTOR)
    node = shutil.which("node")
    assert node is not None, "npm comes with node"
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    if tuple(int(part) for part in said.removeprefix("v").split(".")[:2]) < NODE:
        pytest.skip(f"the Inspector needs Node {NODE[0]}.{NODE[1]}, and this one is {said}")
    return str(folder / "node_modules" / ".bin" / "mcp-inspector")


@living_on()
async def serving(tmp_path: Path) -> AsyncIterator[Proxy]:
    async with fake_proxy(tmp_path, **FAKE, **with_keys(tmp_path, "one")) as proxy:
        yield proxy


def target(transport: str, url: str, key: str) -> list[str]:
    """The Inspector's arguments for a way to the server."""
    if transport == "http":
        return [f"{url}/mcp", "--header", f"Authorization: Bearer {key}"]
    environment = (f"PYTHONPATH={ROOT}", f"CODEX_PROXY_KEY={key}")
    variables = [part for each in environment for part in ("-e", each)]
    return [sys.executable, "-m", "codex_proxy", "mcp", "--base-url", url, *variables]


async def inspect(program: str, home: Path, *arguments: str) -> tuple[int | None, str, str]:
    """Runs the Inspector once; returns its exit status, and what it printed on stdout and stderr."""
    home.mkdir(exist_ok=True)
    process = await asyncio.create_subprocess_exec(
        *(program, "--cli", *arguments),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={"PATH": os.environ["PATH"], "HOME": str(home)},
    )
    try:
        out, err = await asyncio.wait_for(process.communicate(), 2 * PATIENCE)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    return process.returncode, out.decode(), err.decode()


@pytest.mark.parametrize("transport", ["http", "stdio"])
async def test_the_inspector_lists_the_tools_starts_an_agent_and_reads_what_it_said(
    transport: str, inspector: str, serving: Proxy, tmp_path: Path
) -> None:
    way = target(transport, serving.url, "one")

    async def told(*arguments: str) -> Any:
        status, out, err = await inspect(inspector, tmp_path / "home", *way, *arguments)
        assert status == 0, (out, err)
        return json.loads(out)

    async def called(tool: str, **arguments: str) -> Any:
        given = [part for name, value in arguments.items() for part in ("--tool-arg", f"{name}={value}")]
        result = await told("--method", "tools/call", "--tool-name", tool, *given)
        assert result.get("isError", False) is False, result
        (part,) = result["content"]
        return json.loads(part["text"])

    # Strictly: a schema that other clients could not take is a failure.
    listed = {each["name"] for each in (await told("--method", "tools/list", "--strict"))["tools"]}
    assert {"start_session", "wait_session", "list_sessions"} <= listed
    started = await called("start_session", prompt="[[fake:text say=Done.]]", title="From the Inspector")
    assert "Done." in json.dumps(await called("wait_session", session_id=started["session_id"]))
    (session,) = (await called("list_sessions"))["sessions"]
    assert session["title"] == "From the Inspector"


async def test_the_inspector_reads_nothing_with_a_wrong_key(
    inspector: str, serving: Proxy, tmp_path: Path
) -> None:
    call = "--method", "tools/call", "--tool-name", "list_sessions"
    status, out, err = await inspect(
        inspector, tmp_path / "home", *target("http", serving.url, "wrong"), *call
    )
    assert status != 0
    assert json.loads(err)["error"]["code"] == "auth_required", "it knows a 401"
    assert out == ""
    _, out, err = await inspect(inspector, tmp_path / "home", *target("stdio", serving.url, "wrong"), *call)
    assert "key" in out + err
    assert "sessions" not in out
