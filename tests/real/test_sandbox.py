"""What a command of the agent can do, whoever has talked the model into it: what SECURITY.md says of sandboxes."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from openai import BadRequestError

from codex_proxy.agents.codex.checks import sandbox_check
from codex_proxy.agents.codex.command_sandbox import home_has_links
from codex_proxy.app.server import make_server
from codex_proxy.core.faults import UserError
from tests.real.codex_home import CodexHome
from tests.real.model_scenarios import items_of
from tests.real.model_server import ModelServer
from tests.real.proxy import Proxy, chat_request, settings_of
from tests.real.proxy import proxy as running
from tests.real.release import codex_path
from tests.real.shared import Proxies
from tests.waiting import eventually

SECRET = "the private file says this"


async def output_of(proxy: Proxy, model: ModelServer, command: str) -> str:
    """What a command said, which the model has asked for."""
    await proxy.client.chat.completions.create(**chat_request(f'[[model:shell cmd="{command}"]]'))
    return str(items_of(model.calls[-1].body)[-1]["output"])


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("sandbox", "workspace", "elsewhere", "network"),
    [
        ("read-only", False, False, False),
        ("workspace-write", True, False, False),
        ("danger-full-access", True, True, True),
    ],
)
async def test_a_sandbox_keeps_a_command_from_writing_and_from_the_network_and_from_no_file_to_read(
    proxies: Proxies,
    model_server: ModelServer,
    sandbox: str,
    workspace: bool,
    elsewhere: bool,
    network: bool,
) -> None:
    private = proxies.home.user / "private"
    private.write_text(SECRET)
    proxy = await proxies.of(sandbox=sandbox)
    # Codex counts /tmp to what may be written; this folder is as far from the workspace as any other.
    with tempfile.TemporaryDirectory(dir="/var/tmp") as outside:
        output = await output_of(
            proxy,
            model_server,
            f"cat {private}; touch within; touch {outside}/made; "
            f"(exec 3<>/dev/tcp/127.0.0.1/{proxy.server.port}) && echo CONNECTED",
        )
        assert any(Path(outside).iterdir()) is elsewhere
    assert SECRET in output, "no sandbox of Codex keeps a command from reading"
    assert (proxies.home.workdir / "within").exists() is workspace
    assert ("CONNECTED" in output) is network


KEY = "the key of a client"
STORED = "stored for another key"


def old_bubblewrap(folder: Path) -> str:
    """A PATH whose bubblewrap is as one before 0.9: it does not know `--argv0`. Skips the test without a bubblewrap."""
    real = shutil.which("bwrap")
    if real is None:
        pytest.skip("needs bubblewrap")
    folder.mkdir()
    script = folder / "bwrap"
    script.write_text(
        f"""#!/bin/sh
case " $* " in
  " --help ") {real} --help | grep -v argv0; exit ;;
  *" --argv0 "*) echo "bwrap: Unknown option --argv0" >&2; exit 1 ;;
esac
exec {real} "$@"
"""
    )
    script.chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


@pytest.mark.parametrize("below", [False, True])
async def test_an_old_bubblewrap_confines_commands_unless_codexs_home_is_in_the_temporary_folder(
    codex_home: CodexHome, below: bool
) -> None:
    environ = codex_home.environment({"PATH": old_bubblewrap(codex_home.path.parent / "bin")})
    environ |= {"TMPDIR": str(codex_home.path.parent)} if below else {}
    settings = settings_of(codex_home)
    check = await sandbox_check(str(codex_path()), settings, environ)
    assert check.status == ("warning" if below else "ok"), check.message
    server = await make_server(settings, environ)
    try:
        assert ("is below the temporary folder" in server.agent.warning) is below
    finally:
        await server.stop()


def test_codex_makes_links_to_its_helpers_in_the_homes_of_tests(
    codex_home: CodexHome, proxies: Proxies
) -> None:
    """Else the tests would need a newer bubblewrap than a user does."""
    for home in (codex_home, proxies.home):
        assert home_has_links(home.path, home.environment())


def foreign_state_folder(proxies: Proxies, name: str) -> Path:
    """A state folder with something in it that looks like what another client has stored."""
    state = proxies.home.path.parent / name
    state.mkdir(exist_ok=True, parents=True)
    (state / "another.sqlite3").write_text(STORED)
    return state


@pytest.mark.exhaustive
@pytest.mark.parametrize("agent", ["codex-app-server", "codex-exec"])
@pytest.mark.parametrize("sandbox", ["read-only", "workspace-write"])
async def test_a_command_for_a_client_with_a_key_reads_nothing_that_the_server_keeps(
    proxies: Proxies, model_server: ModelServer, sandbox: str, agent: str
) -> None:
    state, sign_in = (
        foreign_state_folder(proxies, f"state-{agent}-{sandbox}"),
        proxies.home.path / "auth.json",
    )
    sign_in.write_text('{"OPENAI_API_KEY": "a sign-in"}')
    private = proxies.home.user / "private"
    private.write_text(SECRET)
    thread = proxies.home.path / "sessions" / "another.jsonl"
    thread.parent.mkdir(exist_ok=True)
    thread.write_text("a thread")
    proxy = await proxies.of(agent=agent, sandbox=sandbox, state_dir=state, api_key=KEY)
    asked = chat_request(
        f'[[model:shell cmd="cat {private}; ls {state}; cat {sign_in} {state}/another.sqlite3 {thread}; touch within"]]'
    )
    await proxy.client.with_options(api_key=KEY).chat.completions.create(**asked)
    output = str(items_of(model_server.calls[-1].body)[-1]["output"])
    sign_in.unlink()
    thread.unlink()
    assert STORED not in output
    assert "a thread" not in output
    assert "a sign-in" not in output
    assert "Permission denied" in output
    assert SECRET in output, "other files are not hidden"
    assert (proxies.home.workdir / "within").exists() is (sandbox == "workspace-write")


@pytest.mark.exhaustive
@pytest.mark.parametrize("variable", ["", "TMPDIR"])
async def test_a_temporary_folder_with_the_servers_own_files_is_not_written_to(
    own_proxies: Proxies, model_server: ModelServer, variable: str
) -> None:
    """The state folder of this test lies below /tmp, which commands may write to otherwise."""
    state = foreign_state_folder(own_proxies, "other/state")
    environment = {variable: str(state.parent)} if variable else {}
    async with running(own_proxies.home, environment, sandbox="workspace-write", state_dir=state) as proxy:
        output = await output_of(
            proxy, model_server, f"touch within {state}/made {state.parent}/made; echo RAN"
        )
    assert "RAN" in output
    assert not (state / "made").exists()
    assert not (state.parent / "made").exists()
    assert (own_proxies.home.workdir / "within").exists()


@pytest.mark.exhaustive
async def test_a_trusted_projects_own_configuration_widens_no_sandbox(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    with tempfile.TemporaryDirectory(dir="/var/tmp") as outside:
        project = codex_home.workdir / ".codex"
        project.mkdir()
        (project / "config.toml").write_text(
            f'sandbox_mode = "danger-full-access"\n[sandbox_workspace_write]\nwritable_roots = ["{outside}"]\n'
        )
        (codex_home.workdir / ".git").mkdir()
        codex_home.config.write_text(
            codex_home.config.read_text() + f'[projects."{codex_home.workdir}"]\ntrust_level = "trusted"\n'
        )
        async with running(codex_home, sandbox="workspace-write") as proxy:
            output = await output_of(proxy, model_server, f"touch within {outside}/made; echo RAN")
        assert "RAN" in output
        assert not any(Path(outside).iterdir())
    assert (codex_home.workdir / "within").exists()


@pytest.mark.exhaustive
async def test_a_writable_workspace_with_the_servers_own_files_is_refused(
    codex_home: CodexHome, model_server: ModelServer
) -> None:
    """Both at the start and for a turn: a command could write `mcp_servers` into the shadow home there."""
    state = codex_home.workdir / "state"
    with pytest.raises(UserError, match=r"the state folder is \(.*/work/state\)"):
        await make_server(settings_of(codex_home, sandbox="workspace-write", state_dir=state))
    elsewhere = codex_home.path.parent / "elsewhere"
    elsewhere.mkdir()
    settings: dict[str, Any] = {
        "workdir": elsewhere,
        "workdir_roots": str(codex_home.path.parent),
        "state_dir": state,
    }
    async with running(codex_home, sandbox="workspace-write", **settings) as proxy:
        headers = {"X-Codex-Workdir": str(codex_home.workdir)}
        prompt = chat_request('[[model:shell cmd="touch state/made"]]', extra_headers=headers)
        with pytest.raises(BadRequestError, match="the state folder is") as refused:
            await proxy.client.chat.completions.create(**prompt)
        assert refused.value.param == "X-Codex-Workdir"
        prompt["extra_headers"]["X-Codex-Sandbox"] = "read-only"
        await proxy.client.chat.completions.create(**prompt)
    assert not (state / "made").exists()


def running_commands(mark: str) -> list[int]:
    """The processes below the agent's whose command line has this mark."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if mark in " ".join(process.cmdline()):
                found.append(process.pid)
    return found


@pytest.mark.exhaustive
@pytest.mark.parametrize("sandbox", ["read-only", "danger-full-access"])
@pytest.mark.parametrize("kept_threads", [32, 0])
async def test_a_command_ends_with_its_turn_also_where_the_thread_is_kept(
    proxies: Proxies, model_server: ModelServer, sandbox: str, kept_threads: int
) -> None:
    proxy = await proxies.of(sandbox=sandbox, kept_threads=kept_threads)
    seconds = 4000 + kept_threads
    answer = await proxy.client.chat.completions.create(
        **chat_request(f'[[model:shell cmd="echo HERE; sleep {seconds}" yield=500]]')
    )
    assert answer.choices[0].message.content
    output = str(items_of(model_server.calls[-1].body)[-1]["output"])
    assert "HERE" in output
    assert "running" in output, "the agent did not wait for its end"
    pids = [process.pid for process in proxy.processes]
    await eventually(lambda: not running_commands(f"sleep {seconds}"))
    assert len(proxy.server.runs.services.idle_sessions) == min(kept_threads, 1)
    assert [process.pid for process in proxy.processes] == pids, "the agent itself goes on"


@pytest.mark.exhaustive
@pytest.mark.parametrize("trusted", [True, False])
async def test_a_trusted_projects_own_mcp_servers_run_outside_of_the_sandbox_for_agent_turns_only(
    codex_home: CodexHome, model_server: ModelServer, trusted: bool
) -> None:
    """Codex starts what a project that the operator trusts asks for; a plain-model turn knows of no project."""
    started = codex_home.path.parent / "started"
    project = codex_home.workdir / ".codex"
    project.mkdir()
    (codex_home.workdir / ".git").mkdir()
    program = f'command = "sh"\nargs = ["-c", "touch {started}; exec cat"]\n'
    (project / "config.toml").write_text(f"[mcp_servers.planted]\n{program}")
    if trusted:
        codex_home.config.write_text(
            codex_home.config.read_text() + f'[projects."{codex_home.workdir}"]\ntrust_level = "trusted"\n'
        )
    async with running(codex_home, sandbox="read-only") as proxy:
        await proxy.client.chat.completions.create(
            **chat_request("[[model:text]]", system="You are a model.")
        )
        assert not started.exists()
        await proxy.client.chat.completions.create(**chat_request('[[model:shell cmd="true"]]'))
        await eventually(lambda: started.exists() or not trusted)
    assert started.exists() is trusted
