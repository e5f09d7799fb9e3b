"""The processes of plain-model turns read nothing of the user's, and the operator is told where nothing keeps them from
it."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from codex_proxy.agents.confinement.confine import Confinement, find_confinement, read_list
from codex_proxy.agents.confinement.confinement_setup import confinement_check
from codex_proxy.agents.confinement.plain_turns import PlainConfinement
from codex_proxy.app.server import make_server
from codex_proxy.commands.doctor import examine
from codex_proxy.commands.serve import banner
from codex_proxy.core.faults import Failure, Fault, FaultKind
from codex_proxy.process.child import Command
from tests.http.serving import ENVIRONMENT, Proxy, running_proxy, settings_of

ROOT = Path(__file__).parents[2]
PLANTED = "planted words of the user"
SYSTEM = {"role": "system", "content": "Be brief."}

TRYING = """#!{python}
import json, os, runpy, sys
def read(path):
    try:
        return open(path).read()
    except OSError:
        return ""
with open(os.path.join(os.environ["HOME"], ".claude", "seen"), "a") as seen:
    found = {{"plain": "--strict-mcp-config" in sys.argv, "read": [read(path) for path in {paths}]}}
    seen.write(json.dumps(found) + "\\n")
sys.argv[0:1] = ["fake_proto", "claude"]
runpy.run_module("fake_proto", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def tmp_path(disk_path: Path) -> Path:
    return disk_path


@pytest.fixture
async def landlock(tmp_path: Path) -> Confinement:
    found = await find_confinement("landlock", tmp_path / "confined", codex=None, path="", reading=True)
    if found.confinement is None:
        pytest.skip(f"Landlock does not work here: {found.why_none()}")
    return found.confinement


def write_file(path: Path, text: str = PLANTED, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def private_files(folder: Path) -> list[str]:
    """What a user has that is no affair of a plain model."""
    paths = ("home/.ssh/id_x", "home/notes", "work/source.py", "state/log")
    return [str(write_file(folder / path)) for path in paths]


def flags(folder: Path, program: str, **more: Any) -> dict[str, Any]:
    """The settings of a server whose Claude Code is this script."""
    (folder / "home" / ".claude").mkdir(parents=True, exist_ok=True)
    (folder / "work").mkdir(exist_ok=True)
    path = write_file(folder / "bin" / "claude", program, 0o700)
    own: dict[str, Any] = {"agent": "claude-code", "claude_bin": str(path), "child_env": "PYTHONPATH"}
    own |= {"workdir": folder / "work", "state_dir": folder / "state", "agent_confinement": "auto"}
    return own | more


def environment(folder: Path) -> dict[str, str]:
    return ENVIRONMENT | {"HOME": str(folder / "home"), "PYTHONPATH": str(ROOT)}


@asynccontextmanager
async def claude_proxy(folder: Path, program: str, **more: Any) -> AsyncIterator[Proxy]:
    settings = settings_of(folder, **flags(folder, program, **more))
    async with running_proxy(await make_server(settings, environment(folder))) as proxy:
        yield proxy


def reader_script(paths: list[str]) -> str:
    return TRYING.format(python=sys.executable, paths=paths)


@pytest.mark.part("claude_code")
async def test_a_process_of_plain_turns_reads_nothing_of_the_users_and_one_of_agent_turns_does(
    tmp_path: Path, landlock: Confinement
) -> None:
    async with claude_proxy(tmp_path, reader_script(private_files(tmp_path))) as proxy:
        for messages in ([SYSTEM, {"role": "user", "content": "Hi."}], [{"role": "user", "content": "Hi."}]):
            answer = await proxy.ask({"model": "codex-5", "messages": messages})
            assert answer.status == 200, answer.text
        assert proxy.server.agent.warning == ""
    lines = (tmp_path / "home" / ".claude" / "seen").read_text().splitlines()
    seen = [json.loads(line) for line in lines]
    assert {each["plain"] for each in seen} == {True, False}
    for each in seen:
        assert each["read"] == ([""] * 4 if each["plain"] else [PLANTED] * 4)


TRYING_ACP = """#!{python}
import json, os, runpy, sys
def read(path):
    try:
        return open(path).read()
    except OSError:
        return ""
with open(os.path.join(os.environ["HOME"], ".agent", "seen"), "a") as seen:
    seen.write(json.dumps({{"folder": os.getcwd(), "read": [read(path) for path in {paths}]}}) + "\\n")
sys.argv[0:1] = ["fake_proto", "acp"]
runpy.run_module("fake_proto", run_name="__main__", alter_sys=True)
"""


@pytest.mark.part("acp")
async def test_an_agent_that_speaks_acp_has_a_process_for_plain_turns_that_reads_nothing_of_the_users(
    tmp_path: Path, landlock: Confinement
) -> None:
    (tmp_path / "home" / ".agent").mkdir(parents=True)
    paths = private_files(tmp_path)
    program = write_file(
        tmp_path / "bin" / "agent", TRYING_ACP.format(python=sys.executable, paths=paths), 0o700
    )
    settings = settings_of(
        tmp_path,
        agent="acp",
        acp={"command": str(program), "env": "PYTHONPATH"},
        agent_confinement="auto",
        agent_state_folders=str(tmp_path / "home" / ".agent"),
        workdir=tmp_path / "work",
    )
    async with running_proxy(await make_server(settings, environment(tmp_path))) as proxy:
        for messages in ([SYSTEM, {"role": "user", "content": "Hi."}], [{"role": "user", "content": "Hi."}]):
            answer = await proxy.ask({"model": "codex-5", "messages": messages})
            assert answer.status == 200, answer.text
        assert "Nothing keeps" not in proxy.server.agent.warning
    lines = (tmp_path / "home" / ".agent" / "seen").read_text().splitlines()
    seen = {each["folder"]: each["read"] for each in map(json.loads, lines)}
    assert seen == {str(tmp_path / "work"): [PLANTED] * 4, str(tmp_path / "state" / "empty"): [""] * 4}


HELPLESS = """#!/bin/sh
cat {path} > /dev/null || {{ echo "it needs its library" >&2; exit 3; }}
exec {python} -P -m fake_proto claude "$@"
"""


@pytest.mark.part("claude_code")
async def test_a_program_that_does_not_work_confined_is_served_and_banner_health_and_doctor_say_so(
    tmp_path: Path, landlock: Confinement
) -> None:
    library = write_file(tmp_path / "home" / "library")
    program = HELPLESS.format(path=library, python=shlex.quote(sys.executable))
    async with claude_proxy(tmp_path, program) as proxy:
        answer = await proxy.ask(
            {"model": "codex-5", "messages": [SYSTEM, {"role": "user", "content": "Hi."}]}
        )
        assert answer.status == 200, answer.text
        async with proxy.session.get(f"{proxy.url}/healthz") as reply:
            health = await reply.json()
        for text in (banner(proxy.server), health["warning"]):
            assert "Nothing keeps plain-model turns of Claude Code from reading your files" in text
            assert "it needs its library" in text
            assert "PROXY_AGENT_STATE_FOLDERS" in text
    checkup = await examine(flags(tmp_path, program), None, environment(tmp_path))
    [check] = [each for each in checkup.checks if each.name == "plain-model turns"]
    assert (check.status, check.facts["confinement"]) == ("warning", "none")
    assert "PROXY_AGENT_STATE_FOLDERS" in check.advice


@pytest.mark.part("claude_code")
@pytest.mark.exhaustive
async def test_a_program_that_does_not_work_with_the_mechanism_that_was_named_is_not_served(
    tmp_path: Path, landlock: Confinement
) -> None:
    library = write_file(tmp_path / "home" / "library")
    program = HELPLESS.format(path=library, python=shlex.quote(sys.executable))
    settings = settings_of(tmp_path, **flags(tmp_path, program, agent_confinement="landlock"))
    with pytest.raises(Fault, match="it needs its library"):
        async with running_proxy(await make_server(settings, environment(tmp_path))):
            raise AssertionError("it was served")


@pytest.mark.part("claude_code")
@pytest.mark.exhaustive
async def test_doctor_names_what_confines_plain_turns(tmp_path: Path, landlock: Confinement) -> None:
    checkup = await examine(flags(tmp_path, reader_script([])), None, environment(tmp_path))
    [check] = [each for each in checkup.checks if each.name == "plain-model turns"]
    assert (check.status, check.facts["confinement"]) == ("ok", "landlock")


# --- trying out -----------------------------------------------------------------------------------

COMMAND = Command((sys.executable,), {}, "/")


def is_confined(command: Command) -> bool:
    return command != COMMAND


async def signed_in_unless_confined(command: Command) -> bool:
    return not is_confined(command)


async def failing_if_confined(command: Command) -> bool:
    if is_confined(command):
        raise Fault(Failure(kind=FaultKind.SPAWN_FAILED, message="It did not start."))
    return True


@pytest.mark.parametrize("start", [signed_in_unless_confined, failing_if_confined])
async def test_what_works_only_unconfined_is_not_confined(start: Any, landlock: Confinement) -> None:
    plain = PlainConfinement("It", landlock)
    assert is_confined(plain.wrap(COMMAND))
    assert await plain.try_out(start, COMMAND, bool)
    assert not is_confined(plain.wrap(COMMAND))
    assert "reading your files" in plain.warning
    check = confinement_check(plain)
    assert (check.advice in plain.warning, check.advice in check.message) == (True, False)


async def test_what_works_no_better_unconfined_stays_confined(landlock: Confinement) -> None:
    async def failing(command: Command) -> bool:
        raise Fault(Failure(kind=FaultKind.SPAWN_FAILED, message="It did not start."))

    async def signed_out(command: Command) -> bool:
        return False

    plain = PlainConfinement("It", landlock)
    assert not await plain.try_out(signed_out, COMMAND, bool)
    with pytest.raises(Fault):
        await plain.try_out(failing, COMMAND, bool)
    assert is_confined(plain.wrap(COMMAND))
    assert plain.warning == ""


# --- what a program needs -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("program", "listed", "unlisted"),
    [
        ("home/.nvm/v22/lib/node_modules/a/b.js", ["home/.nvm/v22/lib/node_modules"], ["home/.nvm", "home"]),
        ("home/venvs/a/bin/agent", ["home/venvs/a"], ["home/venvs"]),
        ("home/.local/bin/agent", ["home/.local/lib"], ["home/.local", "home/.local/bin"]),
        ("home/bin/agent", ["home/bin/agent", "home/lib"], ["home", "home/bin"]),
        ("home/agent", ["home/agent"], ["home"]),
        (
            "home/.local/share/claude/versions/2.1",
            ["home/.local/share/claude/versions"],
            ["home/.local/share"],
        ),
    ],
)
def test_a_program_may_read_its_package_and_never_the_home(
    program: str, listed: list[str], unlisted: list[str], tmp_path: Path
) -> None:
    path = write_file(tmp_path / program, "", 0o700)
    found = read_list(Command((str(path),), {"HOME": str(tmp_path / "home")}, "/"))
    assert str(path) in found
    assert {str(tmp_path / each) for each in listed} <= set(found)
    assert not {str(tmp_path / each) for each in unlisted} & set(found)


def test_the_interpreter_of_a_script_and_what_variables_and_arguments_name_are_readable(
    tmp_path: Path,
) -> None:
    home = tmp_path / "home"
    node = write_file(tmp_path / "node" / "bin" / "node", "", 0o700)
    script = write_file(
        tmp_path / "node" / "lib" / "node_modules" / "a" / "cli.js", "#!/usr/bin/env node\n", 0o700
    )
    link = tmp_path / "bin" / "a"
    link.parent.mkdir()
    link.symlink_to(script)
    certificates = write_file(home / "ca.pem")
    settings = write_file(home / "settings" / "a.json")
    (home / ".aws").mkdir()
    env = {"HOME": str(home), "PATH": str(node.parent), "NODE_EXTRA_CA_CERTS": str(certificates)}
    env |= {"CLAUDE_CODE_USE_BEDROCK": "1", "OLDPWD": str(home), "ROOT": "/", "USER_HOME": str(home)}
    found = set(read_list(Command((str(link), "--settings", str(settings), "--cd", str(home)), env, "/")))
    assert {str(each) for each in (tmp_path / "node", script, link, certificates, settings)} <= found
    assert str(home / ".aws") in found
    assert not {str(home), "/", str(tmp_path)} & found


def test_nothing_of_the_system_that_is_listed_holds_a_users_files() -> None:
    found = read_list(Command((sys.executable,), {"HOME": os.path.expanduser("~")}, "/"))
    assert not {"/", "/home", "/root", "/tmp", "/var", "/var/tmp", "/run", "/dev", "/dev/shm", "/mnt"} & set(
        found
    )
