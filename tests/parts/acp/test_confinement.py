"""The confinement of agents that speak ACP and ask nobody."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from codex_proxy.agents.confinement.confine import (
    MECHANISMS,
    Mechanism,
)
from codex_proxy.agents.spec import AgentContext
from codex_proxy.app.server import make_server
from codex_proxy.app.system import SystemClock
from codex_proxy.commands.serve import banner
from codex_proxy.core.checks import Check
from codex_proxy.parts.acp.acp_specs import ACP_SPEC
from codex_proxy.parts.acp.agent import AcpAgent
from tests.agents.test_confinement import PATH, find_here
from tests.http.serving import ENVIRONMENT, Answer, Proxy, fake_proxy, settings_of, user
from tests.waiting import eventually


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path


BIN = os.path.dirname(shutil.which("bwrap", path=PATH) or "") or "/usr/bin"
UNASKED = {"FAKE_CODEX_MISBEHAVE": "no_modes", "PATH": f"{BIN}:{ENVIRONMENT['PATH']}"}
"""An agent that asks nobody."""


async def writes_to(proxy: Proxy, path: Path) -> bool:
    """Whether a model wrote the file, by a tool of the agent that asks nobody."""
    marker = f'[[fake:activity misbehave=no_modes,unasked path="{path}"]]'
    answer: Answer = await proxy.ask(user(marker))
    assert answer.status == 200, answer.text
    return path.exists()


def proxy_without_questions(folder: Path, **settings: Any) -> Any:
    own = {
        "agent": "acp",
        "acp": {"command": f"{sys.executable} -P -m fake_proto acp", "unconfined": True},
        "agent_confinement": "auto",
    }
    return fake_proxy(folder, UNASKED, **(own | settings))


@pytest.mark.sampled(every=3, first=1)
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_a_model_that_tries_writes_nothing_outside_of_its_workspace(
    mechanism: Mechanism, tmp_path: Path
) -> None:
    found = await find_here(mechanism, tmp_path, UNASKED["PATH"])
    if found.confinement is None:
        pytest.skip(f"{mechanism} does not work here: {found.why_none()}")
    work = tmp_path / "work"
    work.mkdir()
    own: dict[str, Any] = {"agent_confinement": mechanism, "workdir": work, "state_dir": tmp_path / "proxy"}
    async with proxy_without_questions(tmp_path, sandbox="workspace-write", **own) as proxy:
        assert not await writes_to(proxy, tmp_path / "outside.txt")
        assert await writes_to(proxy, work / "inside.txt")
    async with proxy_without_questions(tmp_path, sandbox="read-only", **own) as proxy:
        assert not await writes_to(proxy, work / "read_only.txt")


def names_of(processes: set[psutil.Process]) -> set[str]:
    names = set()
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            names.add(process.name())
    return names


@pytest.mark.sampled(every=3, first=2)
@pytest.mark.parametrize("mechanism", MECHANISMS)
async def test_nothing_that_a_confined_agent_has_started_is_left_after_the_server(
    mechanism: Mechanism, tmp_path: Path
) -> None:
    found = await find_here(mechanism, tmp_path, UNASKED["PATH"])
    if found.confinement is None:
        pytest.skip(f"{mechanism} does not work here: {found.why_none()}")
    before = set(psutil.Process().children(recursive=True))
    async with proxy_without_questions(tmp_path, agent_confinement=mechanism) as proxy:
        await proxy.ask(user("[[fake:text misbehave=no_modes,grandchild]]"))
        # The answer does not wait for the program that was forked twice, in a session of its own.
        await eventually(lambda: "sleep" in names_of(set(psutil.Process().children(recursive=True)) - before))
        started = set(psutil.Process().children(recursive=True)) - before
    await eventually(lambda: not any(process.is_running() for process in started))


async def test_without_a_confinement_the_model_writes_and_a_warning_is_logged(tmp_path: Path) -> None:
    async with proxy_without_questions(tmp_path, agent_confinement="none") as proxy:
        assert await writes_to(proxy, tmp_path / "outside.txt")
        assert "can run commands and write files" in banner(proxy.server)
        assert "no sandbox" in banner(proxy.server)


async def test_the_banner_and_health_name_what_confines_the_agent(tmp_path: Path) -> None:
    found = await find_here("auto", tmp_path, UNASKED["PATH"])
    if found.confinement is None:
        pytest.skip(f"nothing works here: {found.why_none()}")
    async with proxy_without_questions(tmp_path) as proxy:
        assert found.confinement.title in banner(proxy.server)
        async with proxy.session.get(f"{proxy.url}/healthz") as reply:
            assert found.confinement.title in (await reply.json())["warning"]


@pytest.mark.exhaustive
async def test_doctor_names_what_confines_the_agent_and_warns_where_nothing_does(tmp_path: Path) -> None:
    own: dict[str, Any] = {
        "agent": "acp",
        "acp": {"command": f"{sys.executable} -P -m fake_proto acp", "unconfined": True},
    }
    own |= {"agent_confinement": "auto"}

    async def check_confinement(**more: Any) -> Check:
        context = AgentContext(
            settings_of(tmp_path, **(own | more)), {**ENVIRONMENT, **UNASKED}, SystemClock()
        )
        checks = {check.name: check for check in await ACP_SPEC.check(context)}
        return checks["confinement"]

    unconfined = await check_confinement(agent_confinement="none")
    assert (unconfined.status, unconfined.facts["confinement"]) == ("warning", "none")
    confined = await check_confinement()
    here = (await find_here("auto", tmp_path, UNASKED["PATH"])).confinement
    assert confined.facts["confinement"] == ("none" if here is None else here.mechanism)
    assert confined.status == ("warning" if here is None else "ok")
    if here is not None:  # the sandbox, and not the machine, is why nothing confines it
        widest = await check_confinement(sandbox="danger-full-access")
        assert (widest.status, "no mechanism" in widest.message) == ("warning", False)
        assert "--sandbox danger-full-access" in widest.message


async def test_temporary_files_of_confined_processes_are_removed_at_the_next_start(tmp_path: Path) -> None:
    if (await find_here("landlock", tmp_path)).confinement is None:
        pytest.skip("Landlock does not work here")
    left = tmp_path / "state" / "confined" / "tmp"
    (left / "folder").mkdir(parents=True)
    (left / "folder" / "file").write_text("left")
    (left / "link").symlink_to(tmp_path)
    async with proxy_without_questions(tmp_path, agent_confinement="landlock"):
        assert os.listdir(left) == []
    assert tmp_path.exists()


@pytest.mark.exhaustive
async def test_each_writable_folder_has_its_own_process_and_only_so_many_are_kept(tmp_path: Path) -> None:
    if (await find_here("landlock", tmp_path)).confinement is None:
        pytest.skip("Landlock does not work here")
    folders = [tmp_path / f"work{number}" for number in range(6)]
    for folder in folders:
        folder.mkdir()
    own: dict[str, Any] = {
        "workdir": folders[0],
        "workdir_roots": str(tmp_path),
        "agent_confinement": "landlock",
    }
    own |= {"state_dir": tmp_path / "proxy"}
    async with proxy_without_questions(tmp_path, sandbox="workspace-write", **own) as proxy:
        for folder in folders:
            marker = f'[[fake:activity misbehave=no_modes,unasked path="{folders[0] / folder.name}"]]'
            answer = await proxy.ask(user(marker), headers={"X-Codex-Workdir": str(folder)})
            assert answer.status == 200, answer.text
        assert os.listdir(folders[0]) == ["work0"], "only the turn whose workspace it is wrote there"
        agent = proxy.server.agent
        assert isinstance(agent, AcpAgent)
        await eventually(lambda: 1 < agent.processes().idle + agent.processes().busy <= 4)


async def test_a_server_does_not_start_with_a_mechanism_that_does_not_work(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, fake_dialect="acp", agent_confinement="bubblewrap")
    with pytest.raises(Exception, match="--agent-confinement bubblewrap does not work here: bwrap is not"):
        await make_server(settings, {**ENVIRONMENT, "PATH": str(tmp_path)})


async def test_a_state_folder_that_holds_the_servers_own_files_is_refused(tmp_path: Path) -> None:
    settings = settings_of(
        tmp_path,
        fake_dialect="acp",
        acp={"unconfined": True},
        agent_confinement="auto",
        agent_state_folders=str(tmp_path),
        state_dir=tmp_path / "s",
    )
    with pytest.raises(Exception, match="A confined agent may not write to"):
        await make_server(settings, ENVIRONMENT)


REFUSING = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    done = {"result": {"protocolVersion": 1}} if asked["method"] == "initialize" else {"error": json.loads(sys.argv[1])}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **done}), flush=True)
"""


@pytest.mark.parametrize(
    ("code", "text", "advised"),
    [
        (-32000, "Authentication required", "Sign in"),
        (-32603, "It cannot be used by root", "Start the agent directly"),
    ],
)
async def test_doctor_advises_to_sign_in_only_where_that_is_missing(
    code: int, text: str, advised: str, tmp_path: Path
) -> None:
    script = tmp_path / "agent.py"
    script.write_text(REFUSING)
    error = json.dumps({"code": code, "message": text})
    command = shlex.join([sys.executable, str(script), error])
    context = AgentContext(
        settings_of(tmp_path, agent="acp", acp={"command": command, "unconfined": True}),
        {**ENVIRONMENT, **UNASKED},
        SystemClock(),
    )
    [session] = [check for check in await ACP_SPEC.check(context) if check.name == "session"]
    assert session.status == "failed"
    assert advised in session.advice
