"""`codex-proxy run`: a program with this server as its model, which leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from codex_proxy.app.server import make_server
from codex_proxy.core.faults import UserError
from codex_proxy.parts.clients.clients import PROGRAMS
from codex_proxy.parts.clients.connect import NO_KEY, ServerAccess
from codex_proxy.parts.clients.run import find_client, prepare
from codex_proxy.settings.tables import AgentTable
from tests.forking import run_command
from tests.http.serving import ENVIRONMENT, fake_proxy, running_proxy, settings_of
from tests.real.release import codex_path
from tests.waiting import PATIENCE, eventually

ACCESS = ServerAccess(base_url="http://127.0.0.1:1/v1", model="codex-5", key="k")
PROBE = """#!{python}
import json, os, sys, time, urllib.request
def ask():
    messages = [{{"role": "user", "content": "[[fake:text say='Hi.']]"}}]
    body = {{"model": os.environ["OPENAI_MODEL"], "messages": messages}}
    headers = {{"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    return json.load(urllib.request.urlopen(request))["choices"][0]["message"]["content"]
print(json.dumps({{"said": ask(), "arguments": sys.argv[1:], "url": os.environ["OPENAI_BASE_URL"]}}), flush=True)
if "wait" in sys.argv:
    sys.stdin.read()
sys.exit(7)
"""


class Home:
    """A home folder, and a folder with a program `probe` that asks the server one question."""

    def __init__(self, folder: Path) -> None:
        self.path, self.programs, self.temporary = folder / "home", folder / "bin", folder / "tmp"
        for each in (self.path, self.programs, self.temporary):
            each.mkdir()
        probe = self.programs / "probe"
        probe.write_text(PROBE.format(python=sys.executable))
        probe.chmod(0o755)

    def environment(self, **more: str) -> dict[str, str]:
        path = f"{self.programs}:{os.environ['PATH']}"
        home = {"HOME": str(self.path), "TMPDIR": str(self.temporary), "PATH": path, "PROXY_PORT": "1"}
        return {**home, "PROXY_WORKDIR": str(self.programs), **more}

    def files(self) -> dict[str, bytes]:
        """Every file in it."""
        return {str(each): each.read_bytes() for each in self.path.rglob("*") if each.is_file()}

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        done = run_command(("run", *arguments), env=self.environment(**more), cwd=Path.cwd())
        return subprocess.CompletedProcess(
            done.args, done.returncode, done.stdout.decode(), done.stderr.decode()
        )

    @contextmanager
    def waiting(self) -> Iterator[subprocess.Popen[bytes]]:
        """The command, while its program waits for its input."""
        with subprocess.Popen(
            [sys.executable, "-m", "codex_proxy", "run", "--agent", "fake", "probe", "wait"],
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        ) as process:
            assert process.stdout is not None
            assert json.loads(process.stdout.readline())["said"] == "Hi."
            yield process

    def is_empty(self) -> bool:
        """Whether nothing is left of the command, apart from what it found."""
        return not self.files() and not list(self.temporary.iterdir())


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def of_group(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    return [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]


def test_a_program_gets_a_server_of_its_own_and_its_exit_status_is_kept(home: Home) -> None:
    done = home.run("--agent", "fake", "probe", "--", "-p", "x")
    assert done.returncode == 7, done.stderr
    told = json.loads(done.stdout)
    assert (told["said"], told["arguments"]) == ("Hi.", ["-p", "x"])
    assert home.is_empty()


async def test_any_program_is_run_after_two_dashes(home: Home, tmp_path: Path) -> None:
    async with running_proxy(await make_server(settings_of(tmp_path), ENVIRONMENT)) as proxy:
        port = str(proxy.server.port)
        done = await asyncio.to_thread(home.run, "--", "probe", "--flag", PROXY_PORT=port)
        assert json.loads(done.stdout)["arguments"] == ["--flag"]


async def test_the_server_that_runs_is_used(home: Home, tmp_path: Path) -> None:
    async with running_proxy(await make_server(settings_of(tmp_path), ENVIRONMENT)) as proxy:
        done = await asyncio.to_thread(home.run, "probe", PROXY_PORT=str(proxy.server.port))
        assert json.loads(done.stdout)["url"] == f"{proxy.url}/v1"


async def test_a_server_that_runs_and_needs_another_key_is_reported(home: Home, tmp_path: Path) -> None:
    settings = settings_of(tmp_path, api_key="a secret of the server")
    async with running_proxy(await make_server(settings, ENVIRONMENT)) as proxy:
        done = await asyncio.to_thread(home.run, "probe", PROXY_PORT=str(proxy.server.port))
    assert done.returncode == 1
    assert "--key" in done.stderr


def test_a_program_that_is_not_installed_says_how_to_get_it(home: Home) -> None:
    done = home.run("claude", PATH=str(home.programs))
    assert (done.returncode, "npm install" in done.stderr) == (1, True)
    done = home.run("clade", PATH=str(home.programs))
    assert "Did you mean claude?" in done.stderr
    done = home.run("gemini")
    assert "Google's API" in done.stderr
    done = home.run("--modle", "x", "probe")
    assert "has no option --modle" in done.stderr
    done = home.run("zzzzzz")
    assert "Known clients are: claude" in done.stderr
    assert "gemini" not in done.stderr


WITH_A_PROGRAM_OF_THE_SETTINGS = pytest.mark.parametrize(
    "name", ["codex", pytest.param("claude", marks=pytest.mark.part("claude_code"))]
)


@WITH_A_PROGRAM_OF_THE_SETTINGS
def test_the_program_is_the_one_that_serve_finds(home: Home, name: str) -> None:
    agent = {"codex": "codex-app-server", "claude": "claude-code"}[name]
    named = home.path / "own" / f"my-{name}"
    named.parent.mkdir()
    shutil.copy(home.programs / "probe", named)
    shutil.copy(home.programs / "probe", home.programs / name)
    environ = {"PATH": str(home.programs)}

    def found(**settings: Any) -> str | None:
        return find_client(name, settings_of(home.temporary, **settings), environ)

    assert found() == str(home.programs / name)
    assert found(**{f"{name}_bin": str(named)}) == str(named)
    table = {"mine": AgentTable.model_validate({"agent": agent, f"{name}_bin": str(named)})}
    assert found(agents=table) == str(named)
    assert found(**{f"{name}_bin": str(home.programs / "probe")}, agents=table, agent="mine") == str(named)
    with pytest.raises(UserError, match=f"/nowhere/x, which the setting {name}_bin names"):
        found(**{f"{name}_bin": "/nowhere/x"})
    with pytest.raises(UserError, match="There is no program"):
        found(**{f"{name}_bin": str(home.path)})


@WITH_A_PROGRAM_OF_THE_SETTINGS
def test_a_program_of_the_settings_is_run_though_none_is_on_path(home: Home, name: str) -> None:
    (home.programs / "probe").rename(home.path / f"my-{name}")
    done = home.run("--agent", "fake", name, **{f"PROXY_{name.upper()}_BIN": f"~/my-{name}"})
    assert "OPENAI_MODEL" in done.stderr, (
        done.stderr
    )  # the probe has begun; this is no client of its variables


@pytest.mark.part("acp")
@pytest.mark.parametrize("name", ["opencode", "qwen"])
def test_a_client_that_speaks_acp_is_run_from_where_its_command_says(home: Home, name: str) -> None:
    """Of which the arguments are those of an agent."""
    shutil.copy(home.programs / "probe", home.programs / name)
    (named := home.path / "opt" / name).parent.mkdir()
    shutil.copy(home.programs / "probe", named)

    def found(**settings: Any) -> str | None:
        return find_client(name, settings_of(home.temporary, **settings), {"PATH": str(home.programs)})

    command = {"command": f"'{named}' --acp --model x"}
    assert found() == str(home.programs / name)
    assert found(agent=name, acp=command) == str(named)
    assert found(agents={"mine": AgentTable.model_validate({"agent": name, "acp": command})}) == str(named)
    for other in (f"{name} --acp", "npx -y a-package --acp", "'", str(home.programs / "probe")):
        assert found(agent=name, acp={"command": other}) == str(home.programs / name)
    with pytest.raises(
        UserError, match=f"There is no program /nowhere/{name}, which the setting acp.command"
    ):
        found(agent=name, acp={"command": f"/nowhere/{name} --acp"})


def test_a_server_that_does_not_start_is_reported(home: Home) -> None:
    done = home.run("--agent", "nobody", "probe")
    assert done.returncode == 1
    assert "nobody" in done.stderr
    assert home.is_empty()


@pytest.mark.exhaustive
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_program_and_the_server(home: Home, number: signal.Signals) -> None:
    with home.waiting() as process:
        processes = of_group(process)
        process.send_signal(number)
        assert process.wait(PATIENCE) == 128 + number
    assert psutil.wait_procs(processes, PATIENCE)[1] == []
    assert home.is_empty()


@pytest.mark.exhaustive
def test_ctrl_c_is_the_programs_and_the_server_ends_with_it(home: Home) -> None:
    with home.waiting() as process:
        processes = of_group(process)
        os.killpg(process.pid, signal.SIGINT)
        assert process.wait(PATIENCE) != 0
    assert psutil.wait_procs(processes, PATIENCE)[1] == []
    assert home.is_empty()


def test_the_folder_of_a_command_that_was_killed_is_removed_by_the_next_one(home: Home) -> None:
    with home.waiting() as process:
        processes = of_group(process)
        [left] = home.temporary.iterdir()
        process.kill()
        process.wait(PATIENCE)
        home.run("--agent", "fake", "probe")
        assert list(home.temporary.iterdir()) == [left], "the program still uses it"
        assert process.stdin is not None
        process.stdin.close()
        assert psutil.wait_procs(processes, PATIENCE)[1] == []
    home.run("--agent", "fake", "probe")
    assert home.is_empty()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a child with its parent")
async def test_the_server_ends_with_a_command_that_is_killed(home: Home) -> None:
    with home.waiting() as process:
        children = psutil.Process(process.pid).children()
        (server,) = [each for each in children if each.status() != "zombie" and "serve" in each.cmdline()]
        process.kill()
        await eventually(lambda: not server.is_running() or server.status() == "zombie")
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize("name", [name for name, program in PROGRAMS.items() if not program.unserved])
def test_what_a_program_is_given_has_no_placeholder_left(name: str, tmp_path: Path) -> None:
    environment, arguments = prepare(PROGRAMS[name], ACCESS, tmp_path, {}, tmp_path)
    written = [each.read_text() for each in tmp_path.iterdir() if each.is_file()]
    assert "{{" not in " ".join([*environment.values(), *arguments, *written])
    assert "127.0.0.1:1" in " ".join([*environment.values(), *arguments, *written])


def test_a_program_that_was_used_before_keeps_its_own_folder(tmp_path: Path) -> None:
    (tmp_path / ".codex").mkdir()
    environment, _ = prepare(PROGRAMS["codex"], ACCESS, tmp_path, {}, tmp_path)
    assert "CODEX_HOME" not in environment
    environment, _ = prepare(PROGRAMS["codex"], ACCESS, tmp_path, {}, tmp_path / "elsewhere")
    assert Path(environment["CODEX_HOME"]).is_dir()


@pytest.mark.parametrize(("name", "variable"), [("codex", "CODEX_HOME"), ("claude", "CLAUDE_CONFIG_DIR")])
def test_a_folder_that_the_user_has_chosen_stays(tmp_path: Path, name: str, variable: str) -> None:
    environment, _ = prepare(PROGRAMS[name], ACCESS, tmp_path, {variable: "/own"}, tmp_path)
    assert environment[variable] == "/own"


async def test_codex_gets_the_list_of_the_servers_models(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        access = ServerAccess(base_url=f"{proxy.url}/v1", model="codex-5", key=NO_KEY)
        _, arguments = await asyncio.to_thread(prepare, PROGRAMS["codex"], access, tmp_path, {}, tmp_path)
    (given,) = [each for each in arguments if each.startswith("model_catalog_json=")]
    models = json.loads(Path(json.loads(given.partition("=")[2])).read_text())["models"]
    assert "codex-5" in [model["slug"] for model in models]


def test_codex_gets_its_settings_as_arguments(tmp_path: Path) -> None:
    _, arguments = prepare(PROGRAMS["codex"], ACCESS, tmp_path, {}, tmp_path)
    assert arguments[:2] == ["-c", 'model="codex-5"']
    assert 'model_providers.codex-proxy.env_key="CODEX_PROXY_KEY"' in arguments
    keyless = ServerAccess(base_url=ACCESS.base_url, model="codex-5", key=NO_KEY)
    assert "env_key" not in " ".join(prepare(PROGRAMS["codex"], keyless, tmp_path, {}, tmp_path)[1])


@pytest.mark.exhaustive
@pytest.mark.real
@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("claude", ("-p", "[[fake:text say='Hello there.']]")),
        ("codex", ("exec", "--skip-git-repo-check", "[[fake:text say='Hello there.']]")),
    ],
)
def test_a_real_client_answers_where_nothing_is_configured(
    home: Home, name: str, arguments: tuple[str, ...]
) -> None:
    program = os.environ.get("TEST_CLAUDE") if name == "claude" else str(codex_path())
    if not program:
        pytest.skip("needs Claude Code (TEST_CLAUDE)")
    (home.programs / name).symlink_to(program)
    done = home.run("--agent", "fake", name, "--", *arguments)
    assert done.returncode == 0, done.stderr
    assert re.search("Hello there", done.stdout), done.stderr
    assert home.is_empty()
