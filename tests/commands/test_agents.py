"""codex-proxy agents: what it finds in a home of each kind, without a start of an agent."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.agents.names import BUILT_IN
from codex_proxy.commands import agents
from codex_proxy.process import releases
from codex_proxy.settings.load import load
from tests.commands.codexes import codex, command
from tests.stream_server import stream_server

PROGRAM = "#!/bin/sh\ntouch {mark}\n{does}\n"


async def listed(home: Path, *, path: Path | None = None, **more: str) -> dict[str, dict[str, Any]]:
    """`codex-proxy agents --json` of a user with this home, by the agents' names. `path`: the only folder of programs
    besides those of the system; `more`: variables."""
    empty = home / "empty"
    empty.mkdir(exist_ok=True)
    search = f"{path or empty}{os.pathsep}/usr/bin{os.pathsep}/bin"
    done = await command(home, "agents", "--json", more={"PATH": search, **more})
    assert done.json["schema"] == 1
    return {each["name"]: each for each in done.json["agents"]}


def program(folder: Path, name: str, does: str, *, package: str = "", version: str = "") -> Path:
    """A program that leaves `STARTED` in the folder when it runs. Returns the folder for PATH. `package`: it is from
    this npm package, as npm installs it."""
    bin_folder = folder / "bin"
    bin_folder.mkdir(exist_ok=True)
    file = bin_folder / name
    if package:
        file = folder / "lib" / "node_modules" / package / "dist" / f"{name}.js"
        file.parent.mkdir(parents=True)
        (file.parent.parent / "package.json").write_text(json.dumps({"name": package, "version": version}))
        (bin_folder / name).symlink_to(file)
    file.write_text(PROGRAM.format(mark=folder / "STARTED", does=does))
    file.chmod(0o755)
    return bin_folder


@pytest.mark.part("acp")
async def test_every_agent_is_listed_with_the_command_that_gets_it(tmp_path: Path) -> None:
    found = await listed(tmp_path)
    assert list(found) == [
        name for name in BUILT_IN if name != "codex-exec"
    ]  # which is an old name of another
    for name, each in found.items():
        assert each["installed"] or each["install"], name
        assert each["summary"]
        assert each["capabilities"], name
    assert not found["claude-code"]["installed"]
    assert found["claude-code"]["install"] == "npm install -g @anthropic-ai/claude-code"
    assert found["fake"]["installed"]


@pytest.mark.part("acp")
async def test_the_release_of_a_program_of_npm_is_known_without_a_start_of_it(tmp_path: Path) -> None:
    path = program(tmp_path, "gemini", "exit 1", package="@google/gemini-cli", version="0.61.0")
    gemini = (await listed(tmp_path, path=path))["gemini"]
    assert (gemini["installed"], gemini["version"], gemini["install"]) == (True, "0.61.0", "")
    assert gemini["program"] == str(path / "gemini")
    assert not (tmp_path / "STARTED").exists()


@pytest.mark.part("acp")
async def test_a_program_of_another_package_is_asked_for_its_release(tmp_path: Path) -> None:
    path = program(tmp_path, "qwen", 'echo "Qwen Code v1.2.3 (abc)"')
    qwen = (await listed(tmp_path, path=path))["qwen"]
    assert (qwen["version"], qwen["trouble"]) == ("1.2.3", "")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("echo hello", "printed no release"),
        ("echo 'no \033[31mred' >&2; exit 3", "failed: no "),
        ("sleep 60", "within"),
    ],
)
@pytest.mark.part("acp")
async def test_a_program_that_tells_no_release_is_listed_with_what_went_wrong(
    does: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if does.startswith("sleep"):
        monkeypatch.setattr(releases, "PRINT_SECONDS", 0.3)
    path = program(tmp_path, "qwen", does)
    environ = {"PATH": f"{path}{os.pathsep}/usr/bin{os.pathsep}/bin", "HOME": str(tmp_path)}
    found = await agents.known_agents(load({"state_dir": tmp_path / "state"}, None), environ)
    [qwen] = [each for each in found if each.name == "qwen"]
    assert qwen.installed
    assert not qwen.version
    assert said in qwen.trouble
    assert "Not as it should be:" in agents.as_text(found)


@pytest.mark.part("acp")
async def test_control_characters_of_a_program_are_shown_as_text(tmp_path: Path) -> None:
    path = program(tmp_path, "qwen", "printf 'no \\033[31mred\\n' >&2; exit 3")
    search = f"{path}{os.pathsep}/usr/bin{os.pathsep}/bin"
    done = await command(tmp_path, "agents", more={"PATH": search})
    assert r"no \x1b[31mred" in done.out
    assert "\x1b" not in done.out


def test_the_release_of_a_python_package_is_that_of_the_environment_of_its_program(tmp_path: Path) -> None:
    packages = tmp_path / "tool" / "lib" / "python3.13" / "site-packages"
    for name in ("other-9.9.9", "My_agent.Cli-3.0.2rc1"):
        (packages / f"{name}.dist-info").mkdir(parents=True)
    path = program(tmp_path / "tool", "my-agent", "exit 1")
    link = tmp_path / "my-agent"
    link.symlink_to(path / "my-agent")
    assert releases.release_of_package(str(link), "my-agent-cli") == "3.0.2rc1"
    assert releases.release_of_package(str(link), "my-agent") == ""


@pytest.mark.part("acp")
async def test_a_key_that_the_program_gets_is_a_sign_in_and_so_is_the_file_of_one(tmp_path: Path) -> None:
    path = program(tmp_path, "gemini", "exit 1", package="@google/gemini-cli", version="0.61.0")
    assert (await listed(tmp_path, path=path))["gemini"]["signed_in"] is False  # it was never used here
    with_key = (await listed(tmp_path, path=path, GEMINI_API_KEY="x"))["gemini"]
    assert (with_key["signed_in"], with_key["sign_in"]) == (True, "")
    (tmp_path / ".gemini").mkdir()
    used = (await listed(tmp_path, path=path))["gemini"]
    assert used["signed_in"] is None  # its settings may name a key
    assert "GEMINI_API_KEY" in used["sign_in"]
    (tmp_path / ".gemini" / "oauth_creds.json").write_text("{}")
    assert (await listed(tmp_path, path=path))["gemini"]["signed_in"] is True


@pytest.mark.part("acp")
async def test_the_sign_in_of_an_adapter_is_looked_for_where_its_variable_says(tmp_path: Path) -> None:
    package = "@agentclientprotocol/claude-agent-acp"
    path = program(tmp_path, "claude-agent-acp", "exit 1", package=package, version="0.101.0")
    (tmp_path / "moved").mkdir()
    (tmp_path / "moved" / ".credentials.json").write_text("{}")
    moved = str(tmp_path / "moved")
    assert (await listed(tmp_path, path=path))["claude-acp"]["signed_in"] is False
    assert (await listed(tmp_path, path=path, CLAUDE_CONFIG_DIR=moved))["claude-acp"]["signed_in"] is True


@pytest.mark.part("claude_code")
async def test_claude_code_is_found_with_its_release_and_its_sign_in(tmp_path: Path) -> None:
    path = program(tmp_path, "claude", 'echo "2.1.332 (Claude Code)"')
    claude = (await listed(tmp_path, path=path))["claude-code"]
    assert (claude["version"], claude["signed_in"]) == ("2.1.332", False)
    key = {"ANTHROPIC_API_KEY": "sk-ant-test"}
    assert (await listed(tmp_path, path=path, **key))["claude-code"][
        "signed_in"
    ] is False  # it does not get it
    passed = await listed(tmp_path, path=path, PROXY_CHILD_ENV="ANTHROPIC_API_KEY", **key)
    assert passed["claude-code"]["signed_in"] is True
    (tmp_path / ".claude").mkdir()
    (tmp_path / ".claude" / "settings.json").write_text("{}")
    assert (await listed(tmp_path, path=path))["claude-code"]["signed_in"] is None


async def test_a_codex_is_the_agent_whose_protocol_it_speaks(tmp_path: Path) -> None:
    program_path = str(codex(tmp_path, "0.163.0"))
    found = await listed(tmp_path, CODEX_BIN=program_path)
    assert (found["codex-app-server"]["version"], found["codex-app-server"]["signed_in"]) == (
        "0.163.0",
        False,
    )
    assert "login" in found["codex-app-server"]["sign_in"]
    assert not found["codex-proto"]["installed"]
    assert "@openai/codex@0.42.0" in found["codex-proto"]["install"]
    (tmp_path / ".codex").mkdir()
    (tmp_path / ".codex" / "auth.json").write_text("{}")
    assert (await listed(tmp_path, CODEX_BIN=program_path))["codex-app-server"]["signed_in"] is True
    old = await listed(tmp_path, CODEX_BIN=str(codex(tmp_path, "0.42.0")))
    assert not old["codex-app-server"]["installed"]
    assert old["codex-proto"]["version"] == "0.42.0"


@pytest.mark.part("acp")
async def test_what_the_settings_choose_is_marked_and_has_the_program_that_they_name(tmp_path: Path) -> None:
    path = program(tmp_path, "my-gemini", "echo 9.9.9")
    chosen = {"PROXY_AGENT": "gemini", "PROXY_ACP_COMMAND": f"{path}/my-gemini --acp"}
    found = await listed(tmp_path, path=None, **chosen)
    assert {name: each["serves_as"] for name, each in found.items() if each["serves_as"]} == {
        "gemini": ["gemini"]
    }
    assert found["gemini"]["version"] == "9.9.9"
    assert not found["qwen"]["installed"]  # the command is that of the agent that is chosen
    done = await command(tmp_path, "agents", more=chosen)
    assert "\ngemini*" in done.out
    assert "To install:" in done.out
    assert "npm install -g @qwen-code/qwen-code" in done.out


@pytest.mark.part("upstream")
async def test_an_upstream_is_listed_by_its_host_and_nobody_is_asked(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())

    async with stream_server(answer) as port:
        url = {
            "PROXY_UPSTREAM_URL": f"http://127.0.0.1:{port}/v1",
            "PROXY_UPSTREAM_KEY": "sk-0123456789abcdef",
        }
        found = (await listed(tmp_path, path=None, **url))["openai-chat"]
    assert found["program"] == f"127.0.0.1:{port}"
    assert (found["installed"], found["signed_in"], found["serves_as"]) == (True, True, ["openai-chat"])
    assert asked == []


async def test_a_plugin_is_listed_without_an_import_unless_the_settings_choose_it(tmp_path: Path) -> None:
    plugin = tmp_path / "my_agent.py"
    plugin.write_text(
        "from codex_proxy.agent_plugin import AgentSpec\n"
        "SPEC = AgentSpec(name='mine', summary='my own', make=None, check=None, capabilities=frozenset({'images'}))\n"
    )
    found = await listed(tmp_path, PROXY_AGENT_PLUGIN="my_agent:SPEC", PYTHONPATH=str(tmp_path))
    assert "my_agent" not in sys.modules
    mine = found["mine"]
    assert (mine["installed"], mine["serves_as"], mine["capabilities"]) == (None, ["mine"], ["images"])
