"""The state folder is laid out from what is on the machine, and whatever cannot be used is said in a sentence."""

from __future__ import annotations

import asyncio
import os
import stat
from pathlib import Path

import pytest

import codex_proxy.process.child as child
from codex_proxy.agents.codex.command_sandbox import ConfinedReads
from codex_proxy.agents.codex.plain_home import CodexPaths
from codex_proxy.agents.codex.process_config import Profiles
from codex_proxy.agents.codex.program import (
    BUILT_BY_HAND,
    SHARES_SERVER_SINCE,
    Version,
    find_version,
    resume_command,
)
from codex_proxy.agents.codex_app_server.agent import AppServerProcesses
from codex_proxy.agents.codex_app_server.app_server_setup import lite_form, prepare_app_server
from codex_proxy.agents.spec import AgentContext
from codex_proxy.app.system import SystemClock
from codex_proxy.core.faults import Fault, FaultKind
from codex_proxy.files.private import make_folder
from codex_proxy.process.child import Command
from codex_proxy.settings.fields import Settings
from tests.codex_schemas import TOO_OLD, schema_file, speaks
from tests.process.children import have_ended, pid_in
from tests.real.codex_home import bundled_catalog
from tests.waiting import PATIENCE, eventually

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "TMPDIR": "/nonexistent",  # Codex is asked whether it can confine commands in a home that is below it
    "PROXY_API_KEY": "secret",
    "MY_KEY": "key of the provider",
}

CONFIG = """
model = "own-model"
model_provider = "mine"
developer_instructions = "stay behind"

[model_providers.mine]
base_url = "http://127.0.0.1:1/v1"
env_key = "MY_KEY"

[mcp_servers.tool]
command = "never"
"""


def codex_script(
    folder: Path, version: str = "codex-cli 0.163.0", more: str = "", schema: Path | None = None
) -> str:
    """A `codex` of shell: tells this version, what its app-server speaks, and the real one's catalog. Writes down what
    it is asked."""
    (folder / "catalog.json").write_bytes(bundled_catalog())
    program = folder / "codex"
    program.write_text(
        f"""#!/bin/sh
echo "$*" >> "{folder}/asked"
{more}
{speaks(schema)}
case "$1" in
  --version) echo "{version}";;
  debug) exec cat "{folder}/catalog.json";;
esac
"""
    )
    program.chmod(0o755)
    return str(program)


@pytest.fixture
def places(tmp_path: Path) -> CodexPaths:
    for name in ("bin", "home", "state", "work"):
        (tmp_path / name).mkdir()
    (tmp_path / "home" / "config.toml").write_text(CONFIG)
    return CodexPaths(
        codex_script(tmp_path / "bin"),
        str(tmp_path / "home"),
        str(tmp_path / "state"),
        str(tmp_path / "work"),
    )


async def prepare(places: CodexPaths) -> AppServerProcesses:
    settings = Settings(
        codex_bin=places.program,
        codex_home=Path(places.codex_home),
        state_dir=Path(places.state),
        workdir=Path(places.workdir),
        agent_confinement="none",
    )
    if (
        not settings.codex_home.exists()
    ):  # as for who has not used Codex yet: only a default home may be missing
        settings.model_fields_set.discard("codex_home")
    return await prepare_app_server(AgentContext(settings, ENVIRONMENT, SystemClock()))


def agent_of(setup: AppServerProcesses) -> Command:
    assert setup.agent is not None
    return setup.agent


async def refusal_of(places: CodexPaths) -> str:
    with pytest.raises(Fault) as caught:
        await prepare(places)
    return caught.value.failure.message


async def test_the_shadow_home_holds_the_provider_and_the_sign_in_and_nothing_else(
    places: CodexPaths,
) -> None:
    setup = await prepare(places)
    shadow = Path(setup.plain.env["CODEX_HOME"])
    assert sorted(path.name for path in shadow.iterdir()) == ["auth.json", "config.toml"]
    text = (shadow / "config.toml").read_text()
    assert "127.0.0.1:1" in text
    assert "stay behind" not in text
    assert "mcp_servers" not in text
    assert (shadow / "auth.json").is_symlink()
    assert not (shadow / "auth.json").exists(), "nobody has signed in yet"
    (Path(places.codex_home) / "auth.json").write_text("signed in")
    assert (shadow / "auth.json").read_text() == "signed in"


async def test_each_kind_of_process_has_its_home_its_folder_and_only_its_variables(
    places: CodexPaths,
) -> None:
    setup = await prepare(places)
    agent = agent_of(setup)
    assert agent.env["CODEX_HOME"] == places.codex_home
    assert agent.cwd == places.workdir
    assert setup.plain.cwd == setup.empty_folder
    assert os.listdir(setup.empty_folder) == []
    for command in (agent, setup.plain):
        assert command.env["MY_KEY"] == "key of the provider"
        assert "PROXY_API_KEY" not in command.env
        assert command.env["CODEX_SQLITE_HOME"].startswith(places.state)


async def test_nothing_is_written_to_the_users_home_and_nobody_else_reads_ours(places: CodexPaths) -> None:
    await prepare(places)
    assert os.listdir(places.codex_home) == ["config.toml"]
    for folder in [path for path in Path(places.state).rglob("*") if path.is_dir()]:
        assert stat.S_IMODE(folder.stat().st_mode) & 0o077 == 0, folder


async def test_a_second_start_asks_for_the_version_only_and_changes_no_file(places: CodexPaths) -> None:
    await prepare(places)
    before = {path: path.lstat().st_mtime_ns for path in Path(places.state).rglob("*") if not path.is_dir()}
    await prepare(places)
    after = {path: path.lstat().st_mtime_ns for path in Path(places.state).rglob("*") if not path.is_dir()}
    assert after == before
    asked = Path(places.program).with_name("asked").read_text().splitlines()
    firsts = [" ".join(line.split()[:2]) for line in asked]
    schema = ["app-server generate-json-schema", "app-server --strict-config"]
    assert firsts == ["--version", *schema, "debug models", "--version"]


async def test_a_change_of_the_users_config_is_followed(places: CodexPaths) -> None:
    first = await prepare(places)
    config = Path(places.codex_home) / "config.toml"
    config.write_text(CONFIG.replace("127.0.0.1:1", "127.0.0.1:2"))
    second = await prepare(places)
    assert first.plain.env["CODEX_HOME"] == second.plain.env["CODEX_HOME"]
    assert "127.0.0.1:2" in (Path(second.plain.env["CODEX_HOME"]) / "config.toml").read_text()


async def test_a_link_to_elsewhere_is_set_right(places: CodexPaths) -> None:
    link = Path((await prepare(places)).plain.env["CODEX_HOME"]) / "auth.json"
    link.unlink()
    link.write_text("a sign-in that was written over the link")
    await prepare(places)
    assert os.readlink(link) == f"{places.codex_home}/auth.json"


async def test_many_at_once_lay_out_the_same(places: CodexPaths) -> None:
    setups = await asyncio.gather(*(prepare(places) for _ in range(6)))
    assert all(setup.plain == setups[0].plain for setup in setups)
    assert all(agent_of(setup).env == agent_of(setups[0]).env for setup in setups)
    assert not list(Path(places.state).rglob("*.temporary")), (
        "nothing half-made, and no home of a question, is left"
    )


async def test_two_homes_have_two_shadows(places: CodexPaths, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    first = await prepare(places)
    second = await prepare(CodexPaths(places.program, str(other), places.state, places.workdir))
    assert first.plain.env["CODEX_HOME"] != second.plain.env["CODEX_HOME"]


async def test_a_home_that_does_not_exist_is_not_named_to_the_agent(
    places: CodexPaths, tmp_path: Path
) -> None:
    missing = CodexPaths(places.program, str(tmp_path / "none"), places.state, places.workdir)
    setup = await prepare(missing)
    assert "CODEX_HOME" not in agent_of(setup).env
    assert (Path(setup.plain.env["CODEX_HOME"]) / "auth.json").is_symlink()


async def test_a_broken_config_is_named(places: CodexPaths) -> None:
    config = Path(places.codex_home) / "config.toml"
    for text in (b"model = [", b"model = \xff"):
        config.write_bytes(text)
        assert str(config) in await refusal_of(places)


@pytest.mark.parametrize(
    ("release", "says"),
    [(TOO_OLD, "Codex 0.163.0 cannot be used with codex-app-server, which needs thread/inject_items")],
)
async def test_a_binary_that_lacks_what_every_turn_needs_is_refused_by_its_name(
    places: CodexPaths, release: str, says: str
) -> None:
    codex_script(Path(places.program).parent, schema=schema_file(release))
    assert says in await refusal_of(places)


async def test_a_binary_of_a_release_that_is_too_old_is_refused_by_its_version(places: CodexPaths) -> None:
    codex_script(Path(places.program).parent, "codex-cli 0.135.0")
    assert "Codex 0.135.0 is too old: 0.136.0 is the oldest release" in await refusal_of(places)


async def test_a_binary_is_driven_by_the_protocol_that_it_supports_whatever_its_later_version(
    places: CodexPaths,
) -> None:
    codex_script(Path(places.program).parent, "codex-cli 9.0.0")
    assert str((await prepare(places)).version) == "9.0.0"
    codex_script(Path(places.program).parent, "bash 5.2")
    assert "did not print a version" in await refusal_of(places)


async def test_a_binary_that_fails_says_its_own_last_words(places: CodexPaths) -> None:
    codex_script(
        Path(places.program).parent, more="echo first >&2; echo cannot open shared object >&2; exit 3"
    )
    assert "cannot open shared object" in await refusal_of(places)
    codex_script(Path(places.program).parent, more="kill -9 $$")
    assert "signal 9" in await refusal_of(places)


async def test_the_error_about_a_missing_program_names_the_flag(places: CodexPaths) -> None:
    for program in ("/nowhere/codex", places.workdir, places.codex_home + "/config.toml"):
        with pytest.raises(Fault, match="--codex-bin") as caught:
            await find_version(program, ENVIRONMENT)
        assert caught.value.failure.kind is FaultKind.SPAWN_FAILED


async def test_a_binary_that_hangs_is_given_up_and_leaves_no_process(
    places: CodexPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "ASK_SECONDS", 0.5)
    folder = Path(places.program).parent
    codex_script(folder, more=f'trap "" TERM; echo $$ > "{folder}/pid"; while :; do sleep 1000; done')
    assert "did not answer within 0.5 s" in await refusal_of(places)
    await eventually(lambda: have_ended([int((folder / "pid").read_text())]))


async def test_a_binary_that_leaves_another_process_with_its_pipes_is_not_waited_for(
    places: CodexPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "ASK_SECONDS", PATIENCE)
    folder = Path(places.program).parent
    codex_script(folder, more=f"(setsid sh -c 'echo $$ > \"{folder}/pid\"; exec sleep 1000' &) ; sleep 0.2")
    assert str((await prepare(places)).version) == "0.163.0"
    await eventually(lambda: have_ended([int((folder / "pid").read_text())]))


async def test_a_question_that_is_broken_off_leaves_no_process(places: CodexPaths) -> None:
    folder = Path(places.program).parent
    codex_script(folder, more=f'echo $$ > "{folder}/pid"; sleep 1000')
    asking = asyncio.create_task(prepare(places))
    pid = await pid_in(folder / "pid")
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    await eventually(lambda: have_ended([pid]))


async def test_a_stored_catalog_that_cannot_be_read_is_asked_for_anew(places: CodexPaths) -> None:
    first = await prepare(places)
    [kept] = Path(places.state).glob("catalogs/bundled-*.json")
    kept.write_text("{")
    assert (await prepare(places)).models == first.models


async def test_a_catalog_of_nothing_but_brackets_is_reported(places: CodexPaths) -> None:
    Path(places.program).with_name("catalog.json").write_bytes(b"[" * 100_000)
    assert "is not JSON" in await refusal_of(places)


async def test_a_stored_catalog_of_nothing_but_brackets_is_asked_for_anew(places: CodexPaths) -> None:
    kept = Path(places.state) / "catalogs" / "bundled-0.163.0.json"
    kept.parent.mkdir()
    kept.write_bytes(b"[" * 100_000)
    assert (await prepare(places)).models
    assert kept.read_bytes() == bundled_catalog()


@pytest.mark.parametrize(("status", "can"), [(0, True), (1, False)])
async def test_whether_commands_can_be_kept_from_reading_is_asked_of_codex_itself(
    tmp_path: Path, status: int, can: bool
) -> None:
    program = codex_script(tmp_path, more=f'[ "$1" = sandbox ] && exit {status}')
    profiles = Profiles("name", ("/hidden",))
    assert await ConfinedReads(program, profiles, ENVIRONMENT).can_confine() is can
    asked = (tmp_path / "asked").read_text()
    assert '"/hidden"="deny"' in asked
    assert "-P name_read -C / -- true" in asked
    assert list(tmp_path.rglob("*.temporary")) == []


async def test_what_a_killed_start_has_left_is_removed_by_the_next_one(places: CodexPaths) -> None:
    left = Path(places.state) / "codex-proxy-home-abcd1234.temporary"
    make_folder(left / "sessions")
    await prepare(places)
    assert not left.exists()


async def test_a_catalog_that_cannot_be_read_is_reported(places: CodexPaths) -> None:
    Path(places.program).with_name("catalog.json").write_text("nonsense")
    assert "catalog of Codex 0.163.0" in await refusal_of(places)


@pytest.mark.parametrize(
    ("settings", "lite"),
    [
        ({}, None),
        ({"enable_parallel_tool_calls": True}, False),
    ],
)
def test_who_wants_parallel_calls_gets_the_form_of_requests_that_has_them(
    settings: dict[str, bool], lite: bool | None
) -> None:
    assert lite_form(Settings(**settings)) is lite  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("version", "command"),
    [
        (Version(0, 155, 1), "codex resume"),
        (SHARES_SERVER_SINCE, "codex resume --no-daemon"),
        (BUILT_BY_HAND, "codex resume --no-daemon"),
    ],
)
def test_a_terminal_gets_a_thread_without_the_server_that_would_keep_it(
    version: Version, command: str
) -> None:
    assert resume_command(version) == command
