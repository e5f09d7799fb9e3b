"""Codex as a client of the proxy over a server that knows Chat Completions and nothing else.

The upstream answers by script. What Codex brings (custom tools, namespaces, deferred tools, tools in an item of the
input) reaches the upstream as functions, and comes back to Codex as what it was. The model's name says which form Codex
gives its requests.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.core.tool_names import offered_name
from tests.missing import require
from tests.model_server import Case, Upstream, call, chunk, event, proxy_before, stream, text, upstream
from tests.real.codex_home import CodexHome, make_codex_home
from tests.real.release import codex_path
from tests.real.shared import living_on
from tests.real.test_codex_as_client import DEFERRED, LITE, MCP_PROGRAM, PATCH, PLAIN
from tests.waiting import PATIENCE


@dataclass(frozen=True)
class Client:
    """A Codex whose model provider is the proxy before `server`."""

    home: CodexHome
    server: Upstream

    async def run(self, *prompt: str) -> list[dict[str, Any]]:
        """Runs `codex exec` and gives the events that it prints."""
        flags = ("--json", "--skip-git-repo-check")
        process = await asyncio.create_subprocess_exec(
            *(str(codex_path()), "exec", "--sandbox", "workspace-write", *prompt[:-1], *flags, prompt[-1]),
            cwd=self.home.workdir,
            env=self.home.environment(),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(PATIENCE):
            said, errors = await process.communicate()
        assert process.returncode == 0, (said + errors).decode()
        return [json.loads(line) for line in said.splitlines()]

    def set_model(self, name: str) -> None:
        """Has Codex ask for this model."""
        self.home.config.write_text(self.home.config.read_text().replace(PLAIN, name))

    def made(self, name: str, **arguments: Any) -> bytes:
        """An answer of the upstream's that calls a tool."""
        return stream(call(name, json.dumps(arguments)), finish="tool_calls")

    @property
    def last(self) -> list[dict[str, Any]]:
        """The messages of the upstream's last request."""
        messages: list[dict[str, Any]] = self.server.requests[-1].body["messages"]
        return messages

    def offered(self, index: int = 0) -> set[str]:
        """The functions that the upstream was offered."""
        tools = self.server.requests[index].body["tools"]
        assert {tool["type"] for tool in tools} == {"function"}
        return {tool["function"]["name"] for tool in tools}


@living_on()
async def client(tmp_path: Path) -> AsyncIterator[Client]:
    async with upstream() as server:
        server.models = [{"id": name} for name in (PLAIN, DEFERRED, LITE)]
        async with proxy_before(server.url, tmp_path / "proxy", workdir=tmp_path) as proxy:
            home = make_codex_home(tmp_path / "client", f"{proxy.url}/v1")
            home.config.write_text(
                home.config.read_text()
                + f"[mcp_servers.files]\ncommand = {json.dumps(sys.executable)}\nrequired = true\n"
                f'args = [{json.dumps(str(MCP_PROGRAM))}, "stdio", "--only", "echo"]\n'
            )
            yield Client(home, server)


def items(events: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The items of a kind that were completed."""
    done = [event["item"] for event in events if event["type"] == "item.completed"]
    return [item for item in done if item["type"] == kind]


@pytest.mark.exhaustive
async def test_a_shell_command_is_run_and_the_session_goes_on(client: Client) -> None:
    client.server.script = [client.made("exec_command", cmd="echo made by $((6 * 7))"), text("It ran.")]
    first = await client.run("Run it.")
    (ran,) = items(first, "command_execution")
    assert (ran["exit_code"], ran["aggregated_output"].strip()) == (0, "made by 42")
    assert items(first, "agent_message")[-1]["text"] == "It ran."
    assert [each["role"] for each in client.last[-2:]] == ["assistant", "tool"]
    assert "made by 42" in client.last[-1]["content"]

    client.server.script = [client.made("exec_command", cmd="echo again"), text("Twice.")]
    second = await client.run("resume", "--last", "Once more.")
    (ran,) = items(second, "command_execution")
    assert ran["aggregated_output"].strip() == "again"
    assert items(second, "agent_message")[-1]["text"] == "Twice."
    outputs = [each["content"] for each in client.last if each["role"] == "tool"]
    assert "made by 42" in outputs[0], "the upstream sees the whole conversation"
    assert "again" in outputs[1]


@pytest.mark.exhaustive
async def test_a_custom_tool_is_a_function_to_the_upstream_and_comes_back_as_custom(client: Client) -> None:
    client.set_model(DEFERRED)
    client.server.script = [client.made("apply_patch", input=PATCH), text("Patched.")]
    events = await client.run("Patch it.")
    assert (client.home.workdir / "made.txt").read_text() == "made by a patch\n"
    assert items(events, "agent_message")[-1]["text"] == "Patched."
    assert client.last[-2]["tool_calls"][0]["function"]["name"] == "apply_patch"
    assert json.loads(client.last[-2]["tool_calls"][0]["function"]["arguments"]) == {"input": PATCH}


@pytest.mark.exhaustive
async def test_a_script_of_the_newest_form_calls_its_tools(client: Client) -> None:
    client.set_model(LITE)
    script = 'text(await tools.mcp__files__echo({"text": "seen"}));'
    client.server.script = [client.made("exec", input=script), text("Called.")]
    events = await client.run("Call it.")
    (called,) = items(events, "mcp_tool_call")
    assert (called["tool"], called["status"]) == ("echo", "completed")
    assert "seen" in json.dumps(client.last[-1])


@pytest.mark.exhaustive
async def test_a_tool_in_a_namespace_is_called_by_its_own_name(client: Client) -> None:
    name = offered_name("mcp__files", "echo")
    client.server.script = [client.made(name, text="seen"), text("Called.")]
    events = await client.run("Call it.")
    (called,) = items(events, "mcp_tool_call")
    assert (called["server"], called["tool"], called["status"]) == ("files", "echo", "completed")
    assert name in client.offered()


@pytest.mark.exhaustive
async def test_a_deferred_tool_is_found_and_called(client: Client) -> None:
    client.set_model(DEFERRED)
    name = offered_name("mcp__files", "echo")
    client.server.script = [
        client.made("tool_search", query="echo"),
        client.made(name, text="seen"),
        text("Called."),
    ]
    events = await client.run("Call it.")
    (called,) = items(events, "mcp_tool_call")
    assert (called["tool"], called["status"]) == ("echo", "completed")
    assert name not in client.offered()
    assert name in client.offered(1)


def refuse_a_second_system_message(body: dict[str, Any]) -> Case | None:
    """As the templates of Qwen's models do, behind vLLM."""
    roles = [each["role"] for each in body["messages"]]
    if "system" not in roles[1:]:
        return None
    refusal = {"object": "error", "message": "System message must be at the beginning.", "code": 400}
    return Case(400, {"Content-Type": "application/json"}, [json.dumps(refusal)], [], "failed")


async def test_a_session_works_where_one_system_message_is_allowed(client: Client) -> None:
    require("mcp")
    client.server.refuses = refuse_a_second_system_message
    client.server.script = [client.made("exec_command", cmd="echo made by $((6 * 7))"), text("It ran.")]
    first = await client.run("Run it.")
    (ran,) = items(first, "command_execution")
    assert ran["aggregated_output"].strip() == "made by 42"
    assert items(first, "agent_message")[-1]["text"] == "It ran."
    system = [
        [each["role"] for each in made.body["messages"]].count("system") for made in client.server.requests
    ]
    assert system[0] > 1, "Codex no longer sends two: this shows nothing"
    assert system[1:] == [1, 1], "the form that was taken is used at once for the next request"

    client.server.script = [text("Twice.")]
    second = await client.run("resume", "--last", "Once more.")
    assert items(second, "agent_message")[-1]["text"] == "Twice."
    assert len(client.server.requests) == 4


@pytest.mark.exhaustive
async def test_an_answer_that_breaks_off_is_asked_for_again(client: Client) -> None:
    client.server.script = [event(chunk({"content": "Half of"})), text("All of it.")]
    events = await client.run("Say it.")
    assert items(events, "agent_message")[-1]["text"] == "All of it."
