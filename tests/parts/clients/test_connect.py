"""codex-proxy connect: what it prints works, and what it writes keeps everything else."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from codex_proxy import cli
from codex_proxy.parts.clients.clients import BY_NAME, CLIENTS, ClientSetup, Entry
from codex_proxy.parts.clients.connect import NO_KEY, ServerAccess, entries_of, instructions, write_into
from codex_proxy.parts.clients.documents import DocumentError, set_values
from scripts import gen_clients
from tests.commands.codexes import command, environment
from tests.http.serving import fake_proxy
from tests.real.release import codex_path
from tests.waiting import PATIENCE

HERE = ServerAccess(base_url="http://127.0.0.1:11435/v1", model="codex-5", key=NO_KEY)
WITH_FILES = [client for client in CLIENTS if client.file is not None]
NAMES = {
    *("continue", "cline", "zed", "aider", "open-webui", "librechat", "obsidian-copilot", "langchain"),
    "langchain-js",
    *("openai-python", "openai-agents-api", "openai-node", "ai-sdk", "codex", "litellm", "pydantic-ai"),
    *("opencode", "qwen-code", "copilot-cli", "pi"),
    *("claude-code-mcp", "codex-mcp", "mcp-json"),
    *(
        "claude-code",
        "agent-sdk",
        "anthropic-python",
        "anthropic-managed-agents",
        "anthropic-node",
        "cline-anthropic",
        "zed-anthropic",
    ),
}
SAYS = "Hello from the deterministic fake agent."

ANTHROPIC_CLIENTS = (
    *("claude-code-mcp", "codex-mcp", "mcp-json"),
    "claude-code",
    "agent-sdk",
    "anthropic-python",
    "anthropic-managed-agents",
    "anthropic-node",
    "cline-anthropic",
    "zed-anthropic",
)
"""The clients that get the address without `/v1`."""


def name_of(client: Any) -> str:
    return client.name if isinstance(client, ClientSetup) else str(client)


async def test_alone_it_lists_every_client(tmp_path: Path) -> None:
    assert set(BY_NAME) == NAMES
    done = await command(tmp_path, "connect")
    assert done.status == 0
    assert [name for name in NAMES if f"  {name} " not in done.out] == []


@pytest.mark.parametrize("client", CLIENTS, ids=name_of)
def test_printed_settings_have_the_users_own_values_and_no_others(client: ClientSetup) -> None:
    target = ServerAccess(base_url="http://10.0.0.9:1234/v1", model="my-model", key="my-key")
    told = instructions(client, target)
    assert "http://10.0.0.9:1234" in told
    assert ("http://10.0.0.9:1234/v1" in told) == (client.name not in ANTHROPIC_CLIENTS)
    assert "my-model" in told or client.name in (
        *("open-webui", "cline-anthropic"),  # which have lists of their own
        *("claude-code-mcp", "codex-mcp", "mcp-json"),  # which have other models
    )
    assert "my-key" in told
    assert "{{" not in told
    assert "127.0.0.1" not in told


async def test_the_address_is_that_of_the_settings_unless_another_is_given(tmp_path: Path) -> None:
    done = await command(tmp_path, "connect", "openai-python", more={"PROXY_PORT": "4321"})
    assert "http://127.0.0.1:4321/v1" in done.out
    done = await command(tmp_path, "connect", "openai-python", more={"PROXY_HOST": "::"})
    assert "http://[::1]:11435/v1" in done.out
    done = await command(tmp_path, "connect", "openai-python", "--base-url", "https://a.example/v1")
    assert "https://a.example/v1" in done.out


async def test_a_key_of_the_settings_is_never_printed(tmp_path: Path) -> None:
    more = {"PROXY_API_KEY": "hidden-key"}
    done = await command(tmp_path, "connect", "continue", more=more)
    assert "YOUR-KEY" in done.out
    assert "hidden-key" not in done.out
    done = await command(tmp_path, "connect", "continue", "--write", more=more)
    assert (done.status, (tmp_path / ".continue").exists()) == (1, False)
    assert "--key" in done.err


async def test_a_client_that_is_not_known_is_a_mistake_with_a_hint(tmp_path: Path) -> None:
    done = await command(tmp_path, "connect", "aidr")
    assert done.status == 2
    assert "Did you mean aider?" in done.err


def test_the_document_is_current() -> None:
    written = gen_clients.TARGET.read_text("utf-8")
    assert written == gen_clients.document(), "run scripts/gen_clients.py"


# --- writing --------------------------------------------------------------------------------------


def read(client: ClientSetup, text: str) -> Any:
    assert client.file is not None
    if client.file.format == "toml":
        return tomllib.loads(text)
    return json.loads(text) if client.file.format == "json" else YAML(typ="safe").load(text)


@pytest.mark.parametrize("client", WITH_FILES, ids=name_of)
async def test_a_missing_file_is_made_for_the_user_alone(client: ClientSetup, tmp_path: Path) -> None:
    assert client.file is not None
    named = () if client.file.path else ("--file", "librechat.yaml")
    done = await command(tmp_path, "connect", client.name, "--write", *named)
    assert done.status == 0, done.err
    file = tmp_path / (client.file.path.removeprefix("~/") or "librechat.yaml")
    assert "http://127.0.0.1:11435" in json.dumps(read(client, file.read_text()))
    assert file.stat().st_mode & 0o777 == 0o600
    assert "+" in done.out
    assert "It is new." in done.out
    again = await command(tmp_path, "connect", client.name, "--write", *named)
    assert "has all of these settings already" in again.out
    assert [each.name for each in file.parent.iterdir() if ".bak" in each.name] == []


CONTINUE = """\
# my own models
name: Mine
version: 2.0.0
schema: v1

models:
  - name: Local   # stays
    provider: ollama
    model: "llama3"
  - name: Codex
    provider: openai
    model: old
    requestOptions: {timeout: 5}
rules:
  - be brief
"""


async def test_a_file_that_is_there_keeps_what_else_is_in_it_and_a_copy_of_what_it_was(
    tmp_path: Path,
) -> None:
    file = tmp_path / ".continue" / "config.yaml"
    file.parent.mkdir()
    file.write_text(CONTINUE)
    file.chmod(0o640)
    done = await command(tmp_path, "connect", "continue", "--write", "--model", "codex-5-high")
    assert done.status == 0, done.err
    new = file.read_text()
    assert file.stat().st_mode & 0o777 == 0o640
    assert [line for line in CONTINUE.splitlines() if line not in new.splitlines()] == ["    model: old"]
    models = YAML(typ="safe").load(new)["models"]
    assert [model["name"] for model in models] == ["Local", "Codex"]
    assert models[1]["model"] == "codex-5-high"
    assert models[1]["requestOptions"] == {"timeout": 5}
    assert (tmp_path / ".continue" / "config.yaml.bak").read_text() == CONTINUE
    assert "-    model: old" in done.out
    await command(tmp_path, "connect", "continue", "--write", "--model", "codex-5-low")
    assert (tmp_path / ".continue" / "config.yaml.bak").read_text() == CONTINUE
    assert (tmp_path / ".continue" / "config.yaml.bak1").read_text() == new


async def test_json_with_comments_is_left_alone_and_what_to_put_there_is_printed(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "zed" / "settings.json"
    file.parent.mkdir(parents=True)
    file.write_text('// mine\n{\n  "theme": "One Dark",\n}\n')
    done = await command(tmp_path, "connect", "zed", "--write")
    assert done.status == 1
    assert file.read_text() == '// mine\n{\n  "theme": "One Dark",\n}\n'
    assert [each.name for each in file.parent.iterdir()] == ["settings.json"]
    assert "comments" in done.err
    assert '"api_url": "http://127.0.0.1:11435/v1"' in done.out


async def test_json_without_comments_keeps_its_order_and_indentation(tmp_path: Path) -> None:
    file = tmp_path / ".config" / "zed" / "settings.json"
    file.parent.mkdir(parents=True)
    before = '{\n\t"z": 1,\n\t"a": {\n\t\t"ä": []\n\t}\n}\n'
    file.write_text(before)
    done = await command(tmp_path, "connect", "zed", "--write")
    assert done.status == 0, done.err
    assert file.read_text().startswith('{\n\t"z": 1,\n\t"a": {\n\t\t"ä": []\n\t},\n\t"language_models": {')


async def test_a_link_stays_a_link(tmp_path: Path) -> None:
    dotfiles = tmp_path / "dotfiles.yml"
    dotfiles.write_text("auto-commits: false\n")
    (tmp_path / ".aider.conf.yml").symlink_to(dotfiles)
    done = await command(tmp_path, "connect", "aider", "--write")
    assert done.status == 0, done.err
    assert (tmp_path / ".aider.conf.yml").is_symlink()
    assert dotfiles.read_text().startswith("auto-commits: false\n")
    assert "model: openai/codex-5" in dotfiles.read_text()


async def test_a_file_that_cannot_be_written_is_reported_as_such(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    done = await command(tmp_path, "connect", "aider", "--write", "--file", "taken/aider.yml")
    assert done.status == 1
    assert "was not changed" in done.err


async def test_a_pipe_or_a_file_that_is_nested_too_deep_is_not_changed(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "deep").write_text("[" * 100_000)
    for name, client in (("pipe", "codex"), ("deep", "claude-code")):
        done = await command(tmp_path, "connect", client, "--write", "--file", name)
        assert done.status == 1
        assert f"{name} was not changed" in done.err


@pytest.mark.parametrize("url", ["x", "", "http://[", "http://a:99999", "ftp://a"])
def test_an_address_that_is_none_is_named(url: str) -> None:
    done = CliRunner().invoke(cli.main, ["connect", "codex", "--base-url", url])
    assert done.exit_code == 1
    assert f"--base-url {url} is not an address like http://" in done.stderr


async def test_a_client_without_a_file_cannot_be_written(tmp_path: Path) -> None:
    done = await command(tmp_path, "connect", "cline", "--write")
    assert done.status == 1
    assert "API Provider" in done.out
    done = await command(tmp_path, "connect", "librechat", "--write")
    assert done.status == 1
    assert "--file" in done.err


@pytest.mark.parametrize(
    ("format", "text"),
    [
        ("yaml", "models: [\n"),
        ("yaml", "- a\n- b\n"),
        ("yaml", "models: none\n"),
        ("yaml", "a: 1\na: 2\n"),
        ("json", "[]"),
        ("json", '{"models": {}}'),
        ("toml", "models = 1"),
        ("toml", "= 1"),
    ],
)
def test_a_settings_file_of_an_unexpected_form_is_refused(format: Any, text: str) -> None:
    entry = Entry(path=("models",), list_key="name", value={"name": "x"})
    with pytest.raises(DocumentError):
        set_values(text, format, (entry,))


KEPT = """\
# above
---
# below
a:   # beside
- 1
- two: "three"   # quoted
b: &anchor {x: 0x1F}
c: *anchor
text: |
  # not a comment
  kept
"""


def test_yaml_keeps_its_document_mark_its_comments_and_how_its_lists_stand() -> None:
    new = set_values(KEPT, "yaml", (Entry(path=("model",), value="m"),))
    assert new == KEPT + "model: m\n"


def test_toml_keeps_its_comments_and_spaces() -> None:
    before = "# above\nx   = 1 # beside\n\n[t.u]\ny = [ 1,\n  2 ]\n"
    new = set_values(before, "toml", (Entry(path=("t", "v", "z"), value=3),))
    assert new.startswith(before)
    assert tomllib.loads(new)["t"] == {"u": {"y": [1, 2]}, "v": {"z": 3}}


def test_ends_of_line_stay_what_they_are() -> None:
    new = set_values("a: 1\r\nb: 2\r\n", "yaml", (Entry(path=("c",), value=3),))
    assert new == "a: 1\r\nb: 2\r\nc: 3\r\n"


NAMES_OF_KEYS = st.text(st.characters(categories=("Ll", "Nd")), min_size=1, max_size=6)
VALUES = st.recursive(
    st.booleans()
    | st.integers(-1000, 1000)
    | st.text(st.characters(categories=("L", "N", "P", "Zs")), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES_OF_KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(NAMES_OF_KEYS, VALUES, max_size=5), st.sampled_from(WITH_FILES))
def test_whatever_else_is_in_a_file_is_still_there_afterwards(
    data: dict[str, Any], client: ClientSetup
) -> None:
    assert client.file is not None
    mine = {entry.path[0] for entry in client.file.entries}
    data = {f"x{key}": value for key, value in data.items()}
    assert not mine & set(data)
    if client.file.format == "json":
        text = json.dumps(data)
    elif client.file.format == "toml":
        text = tomlkit.dumps(data)
    else:
        text = json.dumps(data, ensure_ascii=False) + "\n"  # every JSON is YAML
    new = read(client, set_values(text, client.file.format, entries_of(client, HERE)))
    assert {key: value for key, value in new.items() if key not in mine} == data
    assert set(new) - set(data) == mine


# --- what is printed works ------------------------------------------------------------------------


def run(arguments: list[str], folder: Path, more: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        arguments,
        cwd=folder,
        env=environment(folder, more),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_the_models_of_a_running_server_lie_beside_the_profile(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path, api_key="the-key") as proxy:
        options = ("connect", "codex", "--write", "--base-url", f"{proxy.url}/v1", "--key")
        first = await command(tmp_path, *options, "the-key")
        models = tmp_path / ".codex" / "codex-proxy.models.json"
        assert first.status == 0, first.err
        assert "codex-5" in [model["slug"] for model in json.loads(models.read_text())["models"]]
        assert models.stat().st_mode & 0o777 == 0o600
        profile = tomlkit.parse(models.with_name("codex-proxy.config.toml").read_text())
        assert profile["model_catalog_json"] == str(models)
        models.write_text("{}")
        again = await command(tmp_path, *options, "the-key")
        assert "has all of these settings already." in again.out
        assert "codex-5" in models.read_text(), "they may have changed"
        refused = await command(tmp_path, *options, "another-key")
    for unlisted in (refused, await command(tmp_path, *options, "the-key")):
        assert unlisted.status == 0
        assert f"No server at {proxy.url}/v1 gave its list of models." in unlisted.out


@pytest.mark.exhaustive
@pytest.mark.real
async def test_another_codex_takes_this_server_as_its_model_with_the_profile_that_is_written(
    tmp_path: Path,
) -> None:
    async with fake_proxy(tmp_path, api_key="the-key") as proxy:
        options = ("--base-url", f"{proxy.url}/v1", "--key", "the-key")
        done = await command(tmp_path, "connect", "codex", "--write", *options)
        assert done.status == 0, done.err
        assert sorted(os.listdir(tmp_path / ".codex")) == [
            "codex-proxy.config.toml",
            "codex-proxy.models.json",
        ]
        arguments = [str(codex_path()), "exec", "--profile", "codex-proxy", "--skip-git-repo-check", "Hello."]
        out = await asyncio.to_thread(run, arguments, tmp_path, {"CODEX_PROXY_KEY": "the-key"})
        assert SAYS in out


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("name", "argv"),
    [
        ("opencode", ["opencode", "run", "-m", "codex-proxy/codex-5:model", "[[fake:text]]"]),
        ("qwen-code", ["qwen", "--auth-type", "openai", "--model", "codex-5:model", "-p", "[[fake:text]]"]),
        ("copilot-cli", ["copilot", "-p", "[[fake:text]]"]),
        ("pi", ["pi", "--provider", "codex-proxy", "--model", "codex-5:model", "-p", "[[fake:text]]"]),
    ],
    ids=["opencode", "qwen-code", "copilot-cli", "pi"],
)
async def test_an_agent_answers_a_client_with_the_settings_that_connect_prints(
    tmp_path: Path, name: str, argv: list[str]
) -> None:
    program = shutil.which(argv[0])
    if program is None:
        pytest.skip(f"there is no {argv[0]} on PATH")
    home = tmp_path / "home"
    home.mkdir()
    async with fake_proxy(tmp_path) as proxy:
        target = ServerAccess(base_url=f"{proxy.url}/v1", model="codex-5", key=NO_KEY)
        client = BY_NAME[name]
        if client.file is not None:
            write_into(client, target, str(home / client.file.path.removeprefix("~/")))
        lines = target.fill(client.text).splitlines() if client.file is None else []
        exported = dict(line.removeprefix("export ").split("=", 1) for line in lines if "=" in line)
        given = {each: value.partition(" ")[0].strip("'") for each, value in exported.items()}
        child = await asyncio.create_subprocess_exec(
            program,
            *argv[1:],
            cwd=home,
            env={"PATH": os.environ["PATH"], "HOME": str(home)} | given,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        out, _ = await asyncio.wait_for(child.communicate(), PATIENCE)
    assert SAYS in out.decode(), out.decode()


@pytest.mark.parametrize(
    ("name", "variable", "place"),
    [
        ("codex", "CODEX_HOME", "codex-proxy.config.toml"),
        ("claude-code", "CLAUDE_CONFIG_DIR", "settings.json"),
        ("opencode", "XDG_CONFIG_HOME", "opencode/opencode.json"),
        ("pi", "PI_CODING_AGENT_DIR", "models.json"),
    ],
)
def test_the_file_lies_in_the_folder_that_the_clients_own_variable_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, variable: str, place: str
) -> None:
    monkeypatch.setenv(variable, str(tmp_path))
    done = CliRunner().invoke(cli.main, ["connect", name, "--write", "--key", "none"])
    assert done.exit_code == 0, done.output
    assert (tmp_path / place).exists()


async def test_control_characters_of_arguments_do_not_reach_the_terminal(tmp_path: Path) -> None:
    done = await command(tmp_path, "connect", "aider", "--model", "m\x1b]0;owned\x07")
    assert done.out.replace("\n", "").isprintable()
    assert "owned" in done.out
