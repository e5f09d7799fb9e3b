"""What another program's agent does with sessions of this server through MCP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from mcp.client import Client
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR

from codex_proxy.core.faults import Fault
from codex_proxy.parts.mcp_server import texts, work
from codex_proxy.parts.mcp_server.clients import McpClients
from codex_proxy.parts.mcp_server.depth import BY_AGENT_HEADER, DEPTH, MAX_DEPTH
from codex_proxy.parts.mcp_server.waiting import StateReader
from codex_proxy.parts.sessions.commands import patched
from codex_proxy.parts.sessions.service import SESSIONS
from tests.http.serving import Proxy, fake_proxy
from tests.parts.mcp_server.conftest import FAKE
from tests.parts.mcp_server.driving import NEW, OLD, called, mcp_client, refused
from tests.parts.sessions.driving import AgentsClient
from tests.parts.sessions.test_approvals import with_keys
from tests.waiting import PATIENCE, eventually, turns_shown

BOTH = pytest.mark.parametrize("mode", [OLD, NEW])
WORK = "[[fake:work hold=1]] Do it."


def by_agent() -> dict[str, str]:
    return {BY_AGENT_HEADER: "1"}


@BOTH
async def test_an_agent_is_started_waited_for_and_read(proxy: Proxy, mode: str) -> None:
    async with mcp_client(proxy, mode=mode) as client:
        started = await called(client, "start_session", prompt="[[fake:text say=Done.]] Do it.", title="Work")
        assert started["state"] == "working"
        ended = await called(client, "wait_session", session_id=started["session_id"])
        assert (ended["state"], ended["turn"], ended["last_words"]) == ("finished", "completed", "Done.")
        told = await called(client, "read_session", session_id=started["session_id"])
        said = [line.partition("] ")[2] for line in told.split("\n\n")]
        assert said == ["user: [[fake:text say=Done.]] Do it.", "assistant: Done."]
        (listed,) = (await called(client, "list_sessions", search="WORK"))["sessions"]
        assert not (await called(client, "list_sessions", search="play"))["sessions"]
        assert (listed["title"], listed["state"]) == ("Work", "finished")


async def test_every_tool_is_described_with_its_arguments(proxy: Proxy) -> None:
    async with mcp_client(proxy) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert tools.keys() == {
            *("start_session", "continue_session", "wait_session", "read_session"),
            *("list_sessions", "stop_session", "list_agents"),
        }
        assert all(tool.description for tool in tools.values())
        assert tools["start_session"].input_schema["required"] == ["prompt"]
        assert not any("approv" in name or "ask" in name for name in tools)


async def test_what_list_agents_lists_start_session_takes(tmp_path: Path) -> None:
    agents = {"fake": {}, "other": {"agent": "fake"}}
    async with fake_proxy(tmp_path, **FAKE, agents=agents) as proxy, mcp_client(proxy) as client:
        listed = (await called(client, "list_agents"))["agents"]
        pairs = [(each["agent"], model) for each in listed for model in each["models"]]
        assert {agent for agent, _ in pairs} == set(agents)
        for agent, model in pairs:
            started = await called(client, "start_session", prompt="Hello.", agent=agent, model=model)
            assert started["agent"] == agent, model
            await called(client, "wait_session", session_id=started["session_id"])
        wrong = await refused(client, "start_session", prompt="Hello.", agent="other", model="nothing")
        assert "list_agents" in wrong


@pytest.mark.part("upstream")
async def test_a_model_server_has_no_folder(tmp_path: Path) -> None:
    agents: dict[str, Any] = {"agents": {"fake": {}}, "upstreams": {"up": {"url": "http://127.0.0.1:9/v1"}}}
    async with fake_proxy(tmp_path, **FAKE, **agents) as proxy, mcp_client(proxy) as client:
        new: dict[str, Any] = {"prompt": "Hi.", "model": "up/any"}
        for name, value in {"folder": "/nothing", "sandbox": "read-only"}.items():
            assert f"(`{name}`)" in await refused(client, "start_session", **new, **{name: value})
        started = await called(client, "start_session", **new)
        assert started["agent"] == "up"
        assert not started.keys() & {"folder", "sandbox"}


async def test_a_session_is_one_of_the_agents_api(proxy: Proxy) -> None:
    async with mcp_client(proxy) as client:
        id = (await called(client, "start_session", prompt="Hello."))["session_id"]
        await called(client, "wait_session", session_id=id)
    session = await AgentsClient(proxy).get(f"/sessions/{id}")
    assert session["metadata"] == {DEPTH: "1"}
    assert session["environment"]["workspace_directory"] == str(proxy.server.settings.workdir)


async def test_a_wait_ends_while_the_agent_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "WAIT_SECONDS", 0.0)
    async with fake_proxy(tmp_path, held(tmp_path), **FAKE) as proxy, mcp_client(proxy) as client:
        id = (await called(client, "start_session", prompt=WORK))["session_id"]
        assert (await called(client, "wait_session", session_id=id))["state"] == "working"
        (tmp_path / "go").touch()


def held(folder: Path) -> dict[str, str]:
    """Variables of agents that wait until the file `go` is there."""
    return {"STREAM_RELEASE_FILE": str(folder / "go")}


@BOTH
async def test_a_wait_tells_what_the_agent_does(
    tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str | None] = []
    wait, begun = StateReader.wait, 0

    async def noted(self: StateReader, *given: Any) -> None:
        nonlocal begun
        begun += 1
        await wait(self, *given)

    monkeypatch.setattr(StateReader, "wait", noted)

    async def progress(_: float, __: float | None, line: str | None) -> None:
        told.append(line)

    async with fake_proxy(tmp_path, held(tmp_path), **FAKE) as proxy, mcp_client(proxy, mode=mode) as client:
        id = await at_work(proxy, client)
        waiting = asyncio.create_task(called(client, "wait_session", progress, session_id=id))
        await eventually(lambda: begun > 1)  # the first one returns at once
        (tmp_path / "go").touch()
        assert (await waiting)["state"] == "finished"
        await eventually(lambda: "writes a message" in told)


async def at_work(proxy: Proxy, client: Client) -> str:
    """The id of a new session whose agent runs a command, until the file `go` is there."""
    id = (await called(client, "start_session", prompt=WORK))["session_id"]
    await eventually(lambda: turns_shown(proxy.server.runs))
    return str(id)


async def test_a_message_steers_the_agent_while_it_works(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, held(tmp_path), **FAKE) as proxy, mcp_client(proxy) as client:
        id = await at_work(proxy, client)
        said = await called(
            client, "continue_session", session_id=id, prompt="[[fake:text say=Yes.]] Shorter."
        )
        assert said["said"] == "The agent works, and gets the message."
        (tmp_path / "go").touch()
        assert (await called(client, "wait_session", session_id=id))["state"] == "finished"
        assert "user: [[fake:text say=Yes.]] Shorter." in await called(client, "read_session", session_id=id)


async def test_an_agent_is_stopped_and_goes_on_with_another_message(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, held(tmp_path), **FAKE) as proxy, mcp_client(proxy) as client:
        id = (await called(client, "start_session", prompt=WORK))["session_id"]
        stopped = await called(client, "stop_session", session_id=id)
        assert (stopped["state"], stopped["turn"]) == ("finished", "cancelled")
        await called(client, "continue_session", session_id=id, prompt="[[fake:text say=Again.]]")
        assert (await called(client, "wait_session", session_id=id))["last_words"] == "Again."


async def test_what_an_agent_says_is_read_in_pages_and_shortened(proxy: Proxy) -> None:
    async with mcp_client(proxy) as client:
        id = (await called(client, "start_session", prompt="x" * 10_000))["session_id"]
        await called(client, "wait_session", session_id=id)
        told = await called(client, "read_session", session_id=id)
        assert "[6000 characters were left out]" in told
        assert len(told) < 5_000
        first = told[1:].partition("]")[0]
        behind = await called(client, "read_session", session_id=id, after=first)
        assert behind.startswith("[")
        assert "assistant: " in behind
        assert "user: " not in behind


def test_control_characters_and_marks_of_direction_are_shown() -> None:
    item = {
        "type": "command_execution",
        "command": "echo \u202eabc",
        "output": "\x1b]52;c;aGk=\x07",
        "status": "completed",
        "exit_code": 0,
    }
    assert texts.text_of(item) == "command (exit code 0): echo \\u202eabc\n\\x1b]52;c;aGk=\\x07"


# --- refusals ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("start_session", {}, "`prompt`: Field required"),
        ("start_session", {"prompt": "x", "agent": "nobody"}, "The agents are: fake. (`agent`)"),
        (
            "start_session",
            {"prompt": "x", "folder": "/"},
            "folder names a folder outside of this server's workspaces",
        ),
        ("start_session", {"prompt": "x", "sandbox": "any"}, "`sandbox`: Input should be 'read-only'"),
        ("start_session", {"prompt": "x", "approve": True}, "`approve`: Extra inputs are not permitted"),
        ("read_session", {"session_id": "sess_x"}, "Session with id 'sess_x' not found."),
        ("wait_session", {"session_id": "sess_x"}, "Session with id 'sess_x' not found."),
        ("stop_session", {"session_id": "sess_x"}, "Session with id 'sess_x' not found."),
        ("continue_session", {"session_id": "sess_x", "prompt": "x"}, "Session with id 'sess_x' not found."),
        ("list_sessions", {"limit": 1000}, "`limit`: Input should be less than or equal to 50"),
    ],
)
async def test_a_call_that_cannot_be_done_says_why(
    proxy: Proxy, tool: str, arguments: dict[str, Any], said: str
) -> None:
    async with mcp_client(proxy) as client:
        assert said in await refused(client, tool, **arguments)


@BOTH
async def test_a_header_names_the_widest_sandbox_and_the_one_of_who_asks_for_none(
    tmp_path: Path, mode: str
) -> None:
    headers = {"X-Codex-Sandbox": "read-only"}
    keys = with_keys(tmp_path, "one sandbox='workspace-write'")
    async with (
        fake_proxy(tmp_path, **keys, **FAKE) as proxy,
        mcp_client(proxy, "one", mode=mode, headers=headers) as client,
    ):
        assert (await called(client, "start_session", prompt="x"))["sandbox"] == "read-only"
        said = await refused(client, "start_session", prompt="x", sandbox="workspace-write")
        assert "'read-only'" in said


async def test_headers_without_effect_are_named_and_an_unknown_sandbox_or_a_worktree_is_refused(
    proxy: Proxy,
) -> None:
    for given, status in (
        ({"X-Codex-Mode": "agent"}, 200),
        ({"X-Codex-Sandbox": "nonsense"}, 400),
        ({"X-Codex-Worktree": "true"}, 400),
    ):
        answer = await initialized(proxy, **given)
        ignored = answer.headers.get("x-codex-ignored-params", "")
        assert (answer.status, *given) == (status, ignored or answer.error["param"])


async def test_a_sandbox_is_no_wider_than_the_keys(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "one sandbox='read-only'")
    async with fake_proxy(tmp_path, **FAKE, **keys) as proxy, mcp_client(proxy, "one") as client:
        said = await refused(client, "start_session", prompt="x", sandbox="workspace-write")
        assert "The least restrictive sandbox that this server allows you is 'read-only'." in said


async def test_an_unknown_tool_is_an_error_of_the_protocol(proxy: Proxy) -> None:
    async with mcp_client(proxy) as client:
        with pytest.raises(MCPError, match="There is no tool answer_ask"):
            await client.call_tool("answer_ask", {})


async def test_a_server_without_a_store_says_so(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, store="off", **FAKE) as proxy, mcp_client(proxy) as client:
        assert "PROXY_STORE" in await refused(client, "start_session", prompt="Hello.")


# --- keys -------------------------------------------------------------------------------------------


async def test_a_key_is_needed_and_sees_its_own_sessions_only(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "one", "two")
    async with fake_proxy(tmp_path, **FAKE, **keys) as proxy:
        answer = await proxy.send("POST", "/mcp", {"jsonrpc": "2.0", "id": 1, "method": "ping"})
        assert answer.status == 401
        async with mcp_client(proxy, "one") as one, mcp_client(proxy, "two") as two:
            id = (await called(one, "start_session", prompt="Hello."))["session_id"]
            for tool in ("read_session", "wait_session", "stop_session"):
                assert "not found" in await refused(two, tool, session_id=id)
            assert (await called(two, "list_sessions"))["sessions"] == []


async def test_the_first_requests_of_a_key_that_come_together_are_all_answered(proxy: Proxy) -> None:
    answers = await asyncio.gather(*(initialized(proxy) for _ in range(3)))
    assert [answer.status for answer in answers] == [200, 200, 200]


async def test_a_first_client_that_leaves_at_once_stops_no_other_of_its_key() -> None:
    clients = McpClients(stateless=False)
    first = asyncio.create_task(clients.manager("one"))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait({first})
    async with asyncio.timeout(PATIENCE):
        manager = await clients.manager("one")
        assert manager._task_group is not None
    await clients.close()


async def test_an_mcp_session_is_unknown_to_another_key(tmp_path: Path) -> None:
    keys = with_keys(tmp_path, "one", "two")
    async with fake_proxy(tmp_path, **FAKE, **keys) as proxy:
        ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
        id = (await initialized(proxy, "one")).headers["mcp-session-id"]
        for key, status in (("one", 200), ("two", 404)):
            answer = await proxy.send("POST", "/mcp", ping, headers=mcp_headers(key) | {"Mcp-Session-Id": id})
            assert answer.status == status


def mcp_headers(key: str = "") -> dict[str, str]:
    accepted = {"Accept": "application/json, text/event-stream"}
    return accepted | ({"Authorization": f"Bearer {key}"} if key else {})


async def initialized(proxy: Proxy, key: str = "", **headers: str) -> Any:
    params = {
        "protocolVersion": "2025-06-18",
        "capabilities": {},
        "clientInfo": {"name": "t", "version": "1"},
    }
    body = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    return await proxy.send("POST", "/mcp", body, headers=mcp_headers(key) | headers)


PING = b'{"jsonrpc":"2.0","id":ID,"method":"ping"}'
NOT_TAKEN: list[tuple[bytes, int, int | None]] = [
    (b"{", PARSE_ERROR, None),
    (b"\xff\xfe", PARSE_ERROR, None),
    *((PING.replace(b"ID", id), INVALID_REQUEST, None) for id in (b"true", b"1.5", b"null", b"[]")),
    (PING.replace(b"ID", b"NaN"), PARSE_ERROR, None),
    (b"[" + PING.replace(b"ID", b"1") + b"]", INVALID_REQUEST, None),
    (b'{"jsonrpc":"2.0","id":7,"method":"ping","params":[]}', INVALID_REQUEST, 7),
    (b'{"jsonrpc":"2.0","id":7,"method":5}', INVALID_REQUEST, 7),
    (b'{"jsonrpc":"2.0","id":7}', INVALID_REQUEST, 7),
    (b'{"id":7,"method":"ping"}', INVALID_REQUEST, 7),
    (b'{"jsonrpc":"2.0","id":7,"method":"initialize"}', INVALID_PARAMS, 7),
]
"""Messages, the code that refuses them, and the `id` of the answer."""


async def test_what_is_no_message_is_refused_with_its_id_and_takes_no_session(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.mcp_server.clients.MAX_SESSIONS", 1)
    headers = mcp_headers() | {"Content-Type": "application/json"}
    opened = (await initialized(proxy)).headers["mcp-session-id"]
    for body, code, id in NOT_TAKEN:
        answer = await proxy.send("POST", "/mcp", body, headers=headers)
        said = json.loads(answer.text)
        assert (answer.status, said["error"]["code"], said["id"]) == (400, code, id), body
    call = b'{"jsonrpc":"2.0","id":"\\ud800","method":"ping"}'
    answer = await proxy.send("POST", "/mcp", call, headers=headers | {"Mcp-Session-Id": opened})
    assert answer.status == 200
    assert '"id":"\ufffd"' in answer.text


async def test_a_new_session_takes_the_place_of_the_one_idle_longest(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("codex_proxy.parts.mcp_server.clients.MAX_SESSIONS", 3)
    first, second, third = [(await initialized(proxy)).headers["mcp-session-id"] for _ in range(3)]
    ping = {"jsonrpc": "2.0", "id": 1, "method": "ping"}

    async def status(id: str) -> int:
        answer = await proxy.send("POST", "/mcp", ping, headers=mcp_headers() | {"Mcp-Session-Id": id})
        return answer.status

    assert await status(second) == 200
    headers = mcp_headers() | {"Mcp-Session-Id": first}
    async with proxy.session.get(f"{proxy.url}/mcp", headers=headers) as stream:
        # Its headers do not wait for the first sign of life.
        assert (stream.status, await stream.content.readline()) == (200, b": open\n")
        assert (await initialized(proxy)).status == 200
        assert [await status(id) for id in (first, second, third)] == [200, 200, 404]


@pytest.mark.parametrize(
    "headers", [{"Origin": "http://evil.example"}, {"Host": "evil.example"}, {"Sec-Fetch-Site": "cross-site"}]
)
async def test_a_page_of_another_origin_is_refused(proxy: Proxy, headers: dict[str, str]) -> None:
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
    answer = await proxy.send("POST", "/mcp", body, headers=mcp_headers() | headers)
    assert answer.status == 403


# --- agents that call themselves ----------------------------------------------------------------------


async def test_an_agent_continues_a_session_that_has_all_metadata_it_may_have(tmp_path: Path) -> None:
    full = dict.fromkeys(map(str, range(16)), "x")
    async with (
        fake_proxy(tmp_path, **FAKE) as proxy,
        mcp_client(proxy, headers=by_agent()) as agent,
    ):
        sessions = AgentsClient(proxy)
        id = await sessions.idle_session(metadata=full)
        await called(agent, "continue_session", session_id=id, prompt="Hello.")
        metadata = (await sessions.get(f"/sessions/{id}"))["metadata"]
    assert metadata == full | {DEPTH: "1"}
    # Such a session takes patches that add nothing.
    assert patched(metadata, {"0": None, "1": "y"}).keys() == metadata.keys() - {"0"}
    with pytest.raises(Fault, match="At most 16 keys"):
        patched(metadata, {"0": None, "17": "x", "18": "x"})


async def test_agents_start_one_another_three_times_and_no_more(tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, held(tmp_path), **FAKE) as proxy,
        mcp_client(proxy, headers=by_agent()) as agent,
        mcp_client(proxy) as person,
    ):
        for depth in range(1, MAX_DEPTH + 1):
            id = (await called(agent, "start_session", prompt=WORK))["session_id"]
            session = await AgentsClient(proxy).get(f"/sessions/{id}")
            assert session["metadata"] == {DEPTH: str(depth)}
        said = await refused(agent, "start_session", prompt=WORK)
        assert "Agents of this server have started one another 3 times, which is the limit." in said
        # A person's program is at no depth, whatever works meanwhile.
        await called(person, "start_session", prompt="Hello.")
        (tmp_path / "go").touch()
        sessions = proxy.app[SESSIONS]
        await eventually(lambda: not sessions.with_a_turn("local"))
        assert (await called(agent, "start_session", prompt="Hello."))["state"] == "working"


async def test_an_agent_continues_a_session_no_deeper_than_the_limit(tmp_path: Path) -> None:
    async with (
        fake_proxy(tmp_path, held(tmp_path), **FAKE) as proxy,
        mcp_client(proxy, headers=by_agent()) as agent,
        mcp_client(proxy) as person,
    ):
        above, other = [
            (await called(person, "start_session", prompt="Hello."))["session_id"] for _ in range(2)
        ]
        for id in (above, other):
            await called(person, "wait_session", session_id=id)

        async def depth(id: str) -> str:
            return str((await AgentsClient(proxy).get(f"/sessions/{id}"))["metadata"][DEPTH])

        for _ in range(MAX_DEPTH - 1):
            deepest = (await called(agent, "start_session", prompt=WORK))["session_id"]
        await called(agent, "continue_session", session_id=above, prompt=WORK)
        assert await depth(above) == str(MAX_DEPTH)
        said = await refused(agent, "continue_session", session_id=other, prompt="Hello.")
        assert "which is the limit" in said
        assert await depth(other) == "1"
        # A message to an agent at work begins nothing; and a person begins what they like.
        await called(agent, "continue_session", session_id=deepest, prompt="Shorter.")
        await called(person, "continue_session", session_id=other, prompt="Hello.")
        assert await depth(other) == "1"
        (tmp_path / "go").touch()


# --- the end of the server ------------------------------------------------------------------------------


async def test_streams_and_waits_end_when_the_server_stops(tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as http:
        async with fake_proxy(tmp_path, held(tmp_path), **FAKE) as proxy:
            id = (await initialized(proxy)).headers["mcp-session-id"]
            stream = await http.get(f"{proxy.url}/mcp", headers=mcp_headers() | {"Mcp-Session-Id": id})
            assert stream.status == 200
        async with asyncio.timeout(PATIENCE):
            assert not [line async for line in stream.content if line.startswith(b"data: {")]


async def test_without_the_package_the_path_says_what_to_install(
    proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    find: Callable[[str], None] = lambda _: None  # noqa: E731
    monkeypatch.setattr("codex_proxy.parts.mcp_server.endpoints.find_spec", find)
    answer = await initialized(proxy)
    assert answer.status == 404
    assert "pip install 'codex-openai-proxy[mcp]'" in json.loads(answer.text)["error"]["message"]
