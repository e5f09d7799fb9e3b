"""What of the operator's environment an agent, its commands and MCP servers see: nothing that is not on the list."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest

from codex_proxy.parts import absent_part
from codex_proxy.process.launch import ALLOWED_NAMES, ALLOWED_PREFIXES
from tests.every_agent import OF_MODEL_SERVERS, OF_TESTS, with_every_agent
from tests.http.claude import claude
from tests.process_left.talk import talk
from tests.real.codex_home import CodexHome, make_codex_home
from tests.real.model_server import model_server
from tests.real.proxy import chat_request, proxy_process
from tests.secrecy.planting import KEY, METRICS_KEY, PLANTED, WEBHOOK_SECRET

SECRETS = {
    "PROXY_API_KEY": KEY,
    "PROXY_WEBHOOKS_SECRET": WEBHOOK_SECRET,
    "PROXY_WEBHOOKS_URLS": "https://planted-host.example",
    "PROXY_METRICS_KEY": METRICS_KEY,
    "PROXY_METRICS": "true",
    "OPENAI_API_KEY": "planted-openai-key",
    "AWS_SECRET_ACCESS_KEY": "planted-aws-key",
    "GITHUB_TOKEN": "planted-token",
    "SSH_AUTH_SOCK": "/planted-socket",
    "DATABASE_URL": "postgres://planted-user@db",
    "LD_LIBRARY_PATH": "/planted-libraries",
    "PYTHONSTARTUP": "/planted-file",
}
SIGN_IN = {
    "CODEX_API_KEY": "planted-codex-key",
    "CODEX_ACCESS_TOKEN": "planted-access-token",
    "CODEX_GITHUB_PERSONAL_ACCESS_TOKEN": "planted-github-token",
    "HTTPS_PROXY": "http://planted-user:planted-password@127.0.0.1:9",
    "all_proxy": "http://planted-user@127.0.0.1:9",
    "NO_PROXY": "127.0.0.1",
}
"""What the agent itself needs, and nothing that it runs."""
KEY_HEADER = {"Authorization": f"Bearer {KEY}"}
WITH_A_CHILD = ("proto", "app-server", "acp", "claude-code")
"""The kinds of agents that are a program."""
HAS_MCP = not absent_part("tools", "mcp")
MCP_PROGRAM = Path(__file__).parents[1] / "mcp" / "program.py"

OF_CODEX = frozenset(
    {*("COLORTERM", "NO_COLOR", "PAGER", "GH_PAGER", "GIT_PAGER"), *("PWD", "OLDPWD", "SHLVL", "_")}
)
"""What Codex and the shell give to a command by themselves."""


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path


def environments(pid: int) -> Iterator[tuple[list[str], dict[str, str]]]:
    """The command line and the environment of every descendant."""
    for process in psutil.Process(pid).children(recursive=True):
        try:
            yield process.cmdline(), process.environ()
        except psutil.NoSuchProcess:
            continue


@pytest.mark.sampled(every=2, first=1)
@pytest.mark.parametrize("kind", with_every_agent(WITH_A_CHILD, but=OF_TESTS | OF_MODEL_SERVERS))
async def test_no_child_sees_a_secret_of_the_operators(tmp_path: Path, kind: str) -> None:
    home = CodexHome(tmp_path / "home", tmp_path / "work", tmp_path / "user")
    for folder in (home.path, home.workdir, home.user):
        folder.mkdir()
    servers = {"own": {"command": sys.executable, "args": [str(MCP_PROGRAM), "stdio"]}}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": servers}))
    environment = {
        **SECRETS,
        **({"CLAUDE_BIN": str(claude(tmp_path))} if kind == "claude-code" else SIGN_IN),
        "FAKE_CODEX_MODELS": "any",
        **({} if kind == "claude-code" else {"PROXY_FAKE_DIALECT": kind}),
        **({"PROXY_MCP_CONFIG": str(tmp_path / "mcp.json")} if HAS_MCP else {}),
        "STREAM_RELEASE_FILE": str(tmp_path / "never"),
    }
    arguments = ("--agent", "claude-code" if kind == "claude-code" else "fake", "--log-level", "debug")
    async with (
        proxy_process(home, *arguments, environment=environment) as proxy,
        talk(proxy.url, chat_request("[[fake:text hold=1]]", model="codex-5"), headers=KEY_HEADER) as client,
    ):
        await client.says(b"content")
        seen = list(environments(proxy.pid))
        if HAS_MCP and kind == "app-server":
            assert [line for line, _ in seen if str(MCP_PROGRAM) in line]
        assert [line for line, _ in seen if "fake_proto" in " ".join(line)]
        for _, names in seen:
            assert PLANTED.findall(repr(names)) == []
            assert not [name for name in names if name.startswith("PROXY_")]


@pytest.mark.exhaustive
@pytest.mark.real
@pytest.mark.parametrize(
    ("sandbox", "command"),
    [
        ("danger-full-access", "env; cat planted-file planted-argument"),
        ("read-only", "env; cat planted-file planted-argument; cat /proc/[0-9]*/environ"),
    ],
)
async def test_a_command_of_the_real_agent_sees_no_secret_of_the_operators(
    tmp_path: Path, sandbox: str, command: str
) -> None:
    """And what it was told to do is not in the proxy's log."""
    async with model_server() as model:
        home = make_codex_home(tmp_path, model.base_url)
        home.config.write_text(
            home.config.read_text()
            + '\n[shell_environment_policy]\nexclude = ["HIDDEN_*"]\nset = { CODEX_SET = "by the user" }\n'
        )
        environment = {**SECRETS, **SIGN_IN, "HIDDEN_NAME": "hidden", "PROXY_CHILD_ENV": "HIDDEN_NAME"}
        arguments = ("--sandbox", sandbox, "--log-level", "debug")
        async with proxy_process(home, *arguments, environment=environment) as proxy:
            prompt = chat_request(f'[[model:shell cmd="{command}"]]')
            async with (
                aiohttp.ClientSession(headers=KEY_HEADER) as session,
                session.post(f"{proxy.url}/v1/chat/completions", json=prompt) as answer,
            ):
                assert answer.status == 200, await answer.text()
            seen = list(environments(proxy.pid))
        output = outputs(model.calls[-1].body)
    assert "planted-argument: No such file" in output, "the command ran"
    names = set(re.findall(r"^(\w+)=", output, re.MULTILINE))
    assert {"PATH", "HOME", "CODEX_HOME"} <= names
    strange = {name for name in names if not name.startswith(ALLOWED_PREFIXES)} - ALLOWED_NAMES - OF_CODEX
    assert strange == set()
    assert "CODEX_SET" in names, "the user's own policy holds"
    assert "HIDDEN_NAME" not in names, "the user's own policy holds"
    planted = {*SECRETS.values(), *SIGN_IN.values(), "planted-password"} - {"127.0.0.1"}
    assert not [secret for secret in planted if secret in output and secret != "true"]
    assert seen
    others = {name: value for _, names in seen for name, value in names.items() if name not in SIGN_IN}
    assert PLANTED.findall(repr(others)) == []
    assert PLANTED.findall("".join(proxy.said)) == []


def outputs(body: dict[str, Any]) -> str:
    """What the model is told of commands."""
    found = [item["output"] for item in body["input"] if "output" in item["type"]]
    return "\n".join(each if isinstance(each, str) else json.dumps(each) for each in found)
