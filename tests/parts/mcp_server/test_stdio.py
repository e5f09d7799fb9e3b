"""`codex-proxy mcp`: a program's stdin and stdout, connected to the running server."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import AsyncMock, patch

import pytest
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp.shared.exceptions import MCPError
from mcp_types import CONNECTION_CLOSED, CallToolRequestParams, CallToolResult

from codex_proxy.parts.mcp_server.depth import DEPTH, has_agent_above
from codex_proxy.parts.mcp_server.stdio import Forwarder
from codex_proxy.process.launch import AGENT_MARK, Command, environment_of
from tests.http.serving import Proxy, fake_proxy
from tests.parts.mcp_server.conftest import FAKE
from tests.parts.mcp_server.driving import NEW, OLD, called, refused
from tests.parts.mcp_server.test_tools import NOT_TAKEN
from tests.parts.sessions.driving import AgentsClient
from tests.parts.sessions.test_approvals import with_keys
from tests.waiting import PATIENCE

ROOT = str(Path(__file__).parents[3])


@asynccontextmanager
async def connected(
    url: str, *arguments: str, mode: str = OLD, environment: dict[str, str] | None = None, **more: Any
) -> AsyncIterator[Client]:
    """A client that has started the command. `more`: what the SDK's `Client` takes."""
    program = StdioServerParameters(
        command=sys.executable,
        args=["-m", "codex_proxy", "mcp", "--base-url", url, *arguments],
        env={"PYTHONPATH": ROOT, "PATH": os.defpath, **(environment or {})},
    )
    async with Client(stdio_client(program), mode=mode, **more) as client:
        yield client


async def test_what_is_no_message_is_answered_and_a_call_that_is_too_long_says_so(proxy: Proxy) -> None:
    program = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "codex_proxy", "mcp", "--base-url", proxy.url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        env={"PYTHONPATH": ROOT, "PATH": os.defpath},
    )
    assert program.stdin is not None
    assert program.stdout is not None
    async with asyncio.timeout(PATIENCE):
        for body, code, id in NOT_TAKEN:
            program.stdin.write(body + b"\n")
            said = json.loads(await program.stdout.readline())
            assert (said["error"]["code"], said["id"]) == (code, id), body
        program.stdin.close()
        await program.wait()
    async with connected(proxy.url) as client:
        assert "8128 KiB: send less" in await refused(client, "list_sessions", search="a" * (8 << 20))


async def depth_of_a_start(proxy: Proxy, client: Client) -> str:
    """The depth of a session that the client starts. It has ended then."""
    id = (await called(client, "start_session", prompt="Hello."))["session_id"]
    await called(client, "wait_session", session_id=id)
    return str((await AgentsClient(proxy).get(f"/sessions/{id}"))["metadata"][DEPTH])


@pytest.mark.parametrize("mode", [OLD, NEW])
async def test_an_agent_is_started_and_waited_for_over_stdio(proxy: Proxy, mode: str) -> None:
    async with connected(proxy.url, mode=mode) as client:
        assert "start_session" in {tool.name for tool in (await client.list_tools()).tools}
        id = (await called(client, "start_session", prompt="[[fake:text say=Done.]]"))["session_id"]
        ended = await called(client, "wait_session", session_id=id)
        assert (ended["state"], ended["last_words"]) == ("finished", "Done.")
        assert "not found" in await refused(client, "read_session", session_id="sess_x")


async def test_without_a_server_the_tools_are_listed_and_a_call_says_what_to_do() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
        async with connected(url) as client:
            assert (await client.list_tools()).tools
            said = await refused(client, "list_agents")
            assert said == (
                f"No codex-proxy server answers at {url}. The user can start one with `codex-proxy serve`."
            )


async def test_a_missing_key_is_named_and_a_given_one_is_used(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, **FAKE, **with_keys(tmp_path, "one")) as proxy:
        async with connected(proxy.url) as client:
            assert "CODEX_PROXY_KEY" in await refused(client, "list_agents")
        async with connected(proxy.url, environment={"CODEX_PROXY_KEY": "one\n"}) as client:
            assert (await called(client, "list_agents"))["default"] == "fake"


@pytest.mark.parametrize(
    ("url", "key"),
    [
        ("http://127.0.0.1:1", "Schlüssel"),
        ("http://127.0.0.1:1", "sec\nret"),
        ("http://[::1", "one"),
        ("http://a:b", "one"),
    ],
)
async def test_settings_that_cannot_be_used_are_named(url: str, key: str) -> None:
    forwarder = Forwarder(f"{url}/mcp", key, by_agent=False)
    async with asyncio.timeout(PATIENCE):
        result = await forwarder.call(caller_of(), CallToolRequestParams(name="list_agents", arguments={}))
    assert isinstance(result, CallToolResult)
    assert result.is_error
    content: Any = result.content
    said = content[0].text
    assert "--base-url" in said
    assert "CODEX_PROXY_KEY" in said
    await forwarder.close()


def caller_of() -> Any:
    """The context of a call of a client without forms."""
    return SimpleNamespace(
        session=SimpleNamespace(client_capabilities=None, protocol_version=NEW, report_progress=None)
    )


async def test_a_failed_call_ends_no_other_and_is_said_to_have_begun_perhaps(proxy: Proxy) -> None:
    forwarder, context = Forwarder(f"{proxy.url}/mcp", None, by_agent=False), caller_of()

    async def call(name: str) -> CallToolResult:
        result = await forwarder.call(context, CallToolRequestParams(name=name, arguments={}))
        assert isinstance(result, CallToolResult)
        return result

    await call("list_agents")
    used = forwarder.client
    assert used is not None
    session: Any = used.session
    with pytest.raises(MCPError, match="There is no tool answer_ask"):
        await call("answer_ask")
    assert forwarder.client is used

    lost = MCPError(CONNECTION_CLOSED, "Connection closed")
    with patch.object(session, "call_tool", side_effect=lost):
        content: Any = (await call("start_session")).content
    said = content[0].text
    assert "It may have begun: look with list_sessions" in said
    assert forwarder.client is None
    assert not (await call("list_agents")).is_error
    newer = forwarder.client

    # A call of the connection before that fails only now.
    before = SimpleNamespace(session=SimpleNamespace(call_tool=AsyncMock(side_effect=lost)))
    with patch.object(forwarder, "_connected", return_value=before):
        assert "Try again." in (await call("list_agents")).content[0].text
    assert forwarder.client is newer
    await forwarder.close()


async def test_a_client_that_an_agent_has_started_says_so(tmp_path: Path) -> None:
    held = {"STREAM_RELEASE_FILE": str(tmp_path / "go")}
    async with fake_proxy(tmp_path, held, **FAKE) as proxy:
        async with connected(proxy.url, environment={AGENT_MARK: "1"}) as agent:
            await called(agent, "start_session", prompt="[[fake:work hold=1]] Do it.")
            assert await depth_of_a_start(proxy, agent) == "2"
        async with connected(proxy.url) as person:
            assert await depth_of_a_start(proxy, person) == "1"
        (tmp_path / "go").touch()


def test_children_have_the_mark_of_agents() -> None:
    command = Command(("agent",), {"PATH": "/bin", "LANG": "en_US.UTF-8"}, "/")
    assert environment_of(command) == {**command.env, AGENT_MARK: "1"}


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells the variables of processes")
@pytest.mark.parametrize("marked", [True, False])
def test_an_agent_is_found_above_a_program_that_has_lost_the_mark(marked: bool) -> None:
    child = "import subprocess, sys; subprocess.run([sys.executable, '-c', 'input()'], env={})"
    mark = {AGENT_MARK: "1"} if marked else {}
    with subprocess.Popen(
        [sys.executable, "-c", child], env={"PATH": os.defpath, **mark}, stdin=subprocess.PIPE
    ) as parent:
        (below,) = children_of(parent.pid)
        found = has_agent_above(below)
        parent.communicate(b"\n")
    assert found is marked


def test_above_a_process_that_cannot_be_read_an_agent_is_found(tmp_path: Path) -> None:
    def add(process: int, parent: int, environ: bytes | None) -> None:
        folder = tmp_path / str(process)
        folder.mkdir()
        (folder / "stat").write_text(f"{process} (a (b) c) S {parent} 1 1")
        if environ is None:
            (folder / "environ").mkdir()  # reading it is an OSError, also for root
        else:
            (folder / "environ").write_bytes(environ)

    add(7, 6, b"A=1\0B=2")
    add(6, 5, None)
    add(5, 1, f"A=1\0{AGENT_MARK}=1\0".encode())
    add(9, 1, f"MY_{AGENT_MARK}=1\0A={AGENT_MARK}=1".encode())
    assert has_agent_above(7, tmp_path)
    assert not has_agent_above(9, tmp_path)


def children_of(process: int) -> list[int]:
    file = Path(f"/proc/{process}/task/{process}/children")
    look: Callable[[], list[int]] = lambda: [int(each) for each in file.read_text().split()]  # noqa: E731
    while not (found := look()):
        pass
    return found
