"""codex-proxy doctor: what it finds in a home of each kind, and that it says what to do."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
from pathlib import Path
from typing import Any

import psutil
import pytest

from codex_proxy.agents.codex import checks as codex_checks
from codex_proxy.agents.codex.program import NEWEST_TESTED, NOT_SIGNED_IN, OLDEST_SERVED, Version
from codex_proxy.commands import checks
from codex_proxy.commands import doctor as doctor_module
from codex_proxy.commands.doctor import as_text, examine, report_value, setting_sources
from codex_proxy.core.faults import UserError
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import load, variables_of
from tests.codex_schemas import NEWEST, ONE_CALL_AT_A_TIME, TOO_OLD
from tests.commands.codexes import CommandResult, codex, command, environment
from tests.http.serving import fake_proxy, settings_of
from tests.real.codex_home import KEY_NAME, make_codex_home
from tests.real.release import codex_path
from tests.waiting import PATIENCE

KEYS = {"schema", "version", "ok", "checks", "settings", "next"}


async def doctor(home: Path, *arguments: str, **more: Any) -> CommandResult:
    """`doctor --json` on a port that is any free one, where no argument says otherwise."""
    port = () if "--port" in arguments else ("--port", "0")
    return await command(home, "doctor", "--json", *port, *arguments, **more)


def sign_in(home: Path) -> Path:
    """A home of Codex that somebody has signed in to."""
    folder = home / ".codex"
    folder.mkdir()
    auth = folder / "auth.json"
    auth.write_text('{"OPENAI_API_KEY": "sk-nothing"}')
    auth.chmod(0o600)
    return folder


async def test_where_everything_is_there_it_says_how_to_go_on_and_ends_with_0(tmp_path: Path) -> None:
    sign_in(tmp_path)
    done = await doctor(tmp_path, "--codex-bin", str(codex(tmp_path)))
    found = {check["name"]: check["status"] for check in done.json["checks"]}
    assert found.pop("plain-model turns") in ("ok", "warning")  # as this machine can confine
    assert found == {
        "settings": "ok",
        "agent": "warning",  # a script is no native binary
        "version": "ok",
        "protocol": "ok",
        "sign-in": "ok",
        "sandbox": "ok",
        "port": "ok",
        "spawner": "ok",
        "store": "ok",
        "state folder": "ok",
        "keys": "ok",
        "codex home": "ok",
        "workspace": "ok",
    }
    assert done.status == 0
    assert done.json["ok"] is True
    assert "codex-proxy serve" in done.json["next"][-1]


async def test_what_to_do_next_repeats_the_flags_but_no_secret(tmp_path: Path) -> None:
    workdir = tmp_path / "my work"
    workdir.mkdir()
    flags = {"agent": "fake", "port": 0, "workdir": workdir, "log_content": True, "api_key": "a-secret"}
    checkup = await examine(flags | {"state_dir": tmp_path / "s"}, None, environment(tmp_path))
    step = checkup.next_steps[-1]
    assert "`codex-proxy serve --agent fake --port 0 " in step
    assert f"--workdir '{workdir}' --log-content --api-key KEY" in step
    assert "a-secret" not in step


@pytest.mark.part("terminal")
async def test_what_to_do_next_names_the_port_for_the_client_too(tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    flags = {"agent": "fake", "port": port, "workdir": tmp_path, "state_dir": tmp_path / "s"}
    step = (await examine(flags, None, environment(tmp_path))).next_steps[-1]
    assert f"`codex-proxy chat --base-url http://127.0.0.1:{port}/v1`" in step


async def test_what_to_do_next_names_no_command_of_an_absent_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = {"agent": "fake", "port": 0, "workdir": tmp_path, "state_dir": tmp_path / "s"}
    absent = {"chat"}
    monkeypatch.setattr(
        "codex_proxy.commands.doctor.absent_part", lambda kind, name: "a part" if name in absent else ""
    )
    step = (await examine(flags, None, environment(tmp_path))).next_steps[-1]
    assert step.endswith(", then try `codex-proxy connect` for your editor or SDK in another terminal.")
    absent.add("connect")
    step = (await examine(flags, None, environment(tmp_path))).next_steps[-1]
    assert (step.startswith("Start the server with `"), step.endswith("`.")) == (True, True)


async def test_the_first_sentence_of_an_error_is_what_was_found_and_the_rest_is_to_do(tmp_path: Path) -> None:
    flags = {"agent": "fake", "port": 0, "workdir": tmp_path, "state_dir": tmp_path / "s", "host": "0.0.0.0"}
    checkup = await examine(flags, None, environment(tmp_path))
    assert checkup.checks[0].message == "--host 0.0.0.0 exposes a coding agent to other machines."
    assert checkup.next_steps[0].startswith("Create a key with `codex-proxy keys add NAME`")


async def test_its_json_has_the_keys_that_are_documented(tmp_path: Path) -> None:
    done = await doctor(tmp_path, "--agent", "fake")
    assert set(done.json) == KEYS
    assert done.json["schema"] == 1
    for check in done.json["checks"]:
        assert set(check) == {"name", "status", "message", "advice", "facts"}
        assert check["status"] in ("ok", "warning", "failed", "skipped")
    assert {each["name"] for each in done.json["settings"]} == set(Settings.model_fields)
    for each in done.json["settings"]:
        assert set(each) == {"name", "value", "source", "origin"}
    document = (Path(__file__).parents[2] / "docs" / "operations.md").read_text("utf-8")
    assert [key for key in (*KEYS, "advice", "facts", "source", "origin") if f"`{key}`" not in document] == []


async def test_a_setting_is_shown_with_the_variable_that_it_is_from(tmp_path: Path) -> None:
    flags = {"agent": "fake", "port": 0, "workdir": tmp_path, "state_dir": tmp_path / "s"}
    checkup = await examine(flags, None, environment(tmp_path) | {"PROXY_LOG_LEVEL": "error"})
    report = as_text(checkup, every_setting=False)
    assert re.search(r"^  log_level = \S+  \(PROXY_LOG_LEVEL\)$", report, re.MULTILINE), report


async def test_without_a_codex_doctor_fails_and_says_how_to_get_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codex_checks, "find_codex", lambda named, search_path: None)
    checkup = await examine(
        {"port": 0, "state_dir": tmp_path / "s", "workdir": tmp_path}, None, environment(tmp_path)
    )
    assert checkup.ok is False
    assert "npm install -g @openai/codex" in checkup.next_steps[0]


@pytest.mark.parametrize(
    ("schema", "agent", "says"),
    [
        (TOO_OLD, "auto", "thread/inject_items"),
        (None, "codex-app-server", "could not be read"),
        (NEWEST, "codex-proto", "has no `codex proto`"),
    ],
)
async def test_a_release_that_cannot_be_driven_fails_by_what_it_lacks(
    tmp_path: Path, schema: str | None, agent: str, says: str
) -> None:
    program = codex(tmp_path, "0.150.0", schema=schema)
    done = await doctor(tmp_path, "--codex-bin", str(program), "--agent", agent)
    assert done.status == 1
    assert done.check("version")["facts"]["version"] == "0.150.0"
    assert says in done.check("protocol")["message"]
    assert "Codex 0.150.0" in done.check("protocol")["message"]


@pytest.mark.parametrize("agent", ["auto", "codex-app-server", "codex-exec"])
async def test_a_release_that_is_too_old_fails_with_its_version_and_what_to_install(
    tmp_path: Path, agent: str
) -> None:
    for old in ("0.43.0", "0.135.9"):
        done = await doctor(tmp_path, "--codex-bin", str(codex(tmp_path, old)), "--agent", agent)
        assert done.status == 1
        said = str(done.check("protocol"))
        assert f"Codex {old} is too old: {OLDEST_SERVED} is the oldest release" in said
        assert "npm install -g @openai/codex@latest" in said


@pytest.mark.parametrize("version", [str(OLDEST_SERVED), "0.0.0"])
async def test_the_oldest_release_and_one_that_was_built_by_hand_will_do(
    tmp_path: Path, version: str
) -> None:
    sign_in(tmp_path)
    done = await doctor(tmp_path, "--codex-bin", str(codex(tmp_path, version)))
    assert done.check("protocol")["facts"]["agent"] == "codex-app-server"


async def test_any_release_will_do_if_it_supports_what_is_needed(tmp_path: Path) -> None:
    sign_in(tmp_path)
    done = await doctor(tmp_path, "--codex-bin", str(codex(tmp_path, "7.0.0")))
    assert done.status == 0
    assert done.check("version")["message"] == (
        f"Found Codex 7.0.0, not tested with codex-proxy; the newest tested release is {NEWEST_TESTED}."
    )
    assert done.check("version")["facts"] == {
        "version": "7.0.0",
        "newest_tested": str(NEWEST_TESTED),
        "tested": False,
        "tests_failed": None,
    }
    assert done.check("protocol")["facts"]["off"] == ""


async def test_a_release_that_was_tested_is_reported_as_such(tmp_path: Path) -> None:
    sign_in(tmp_path)
    done = await doctor(tmp_path, "--codex-bin", str(codex(tmp_path, str(NEWEST_TESTED))))
    version = done.check("version")
    assert f"Codex {NEWEST_TESTED}, tested with codex-proxy" in version["message"]
    assert version["facts"]["tested"] is True


@pytest.mark.parametrize(
    ("failed", "said"), [(0, ""), (3, " 3 of the compatibility tests fail with it; docs/agents.md")]
)
def test_what_failed_with_a_release_is_reported(
    monkeypatch: pytest.MonkeyPatch, failed: int, said: str
) -> None:
    monkeypatch.setattr(codex_checks, "TESTED_RELEASES", {Version(0, 150, 0): failed})
    assert said in codex_checks.version_check(Version(0, 150, 0)).message


async def test_a_feature_that_is_off_with_a_release_is_reported_with_what_the_release_lacks(
    tmp_path: Path,
) -> None:
    sign_in(tmp_path)
    done = await doctor(tmp_path, "--codex-bin", str(codex(tmp_path, schema=ONE_CALL_AT_A_TIME)))
    assert done.status == 0
    protocol = done.check("protocol")
    assert protocol["status"] == "warning"
    assert "parallel_calls (it has no rawResponse/completed)" in protocol["message"]
    assert protocol["facts"]["off"] == "imported_turns, parallel_calls"


async def test_an_old_release_that_speaks_proto_is_reported_as_such(tmp_path: Path) -> None:
    sign_in(tmp_path)
    done = await doctor(tmp_path, "--codex-bin", str(codex(tmp_path, "0.42.0", schema=None, proto=True)))
    assert done.check("protocol")["facts"] == {"agent": "codex-proto"}
    assert done.status == 0


async def test_a_program_that_is_no_codex_fails(tmp_path: Path) -> None:
    done = await doctor(tmp_path, "--codex-bin", "/bin/true")
    assert done.check("version")["status"] == "failed"
    done = await doctor(tmp_path, "--codex-bin", str(tmp_path / "nowhere"))
    assert done.check("version")["status"] == "failed"
    assert "--codex-bin" in done.check("version")["advice"]


async def test_without_a_sign_in_the_error_names_the_command(tmp_path: Path) -> None:
    program = codex(tmp_path)
    done = await doctor(tmp_path, "--codex-bin", str(program), more={"FAKE_CODEX_ACCOUNT": "none"})
    assert (done.status, done.check("sign-in")["status"]) == (1, "failed")
    assert done.json["next"][0] == f"Run `{program} login`."
    home = tmp_path / "a home"
    home.mkdir()
    named = ("--codex-bin", str(program), "--codex-home", str(home))
    done = await doctor(tmp_path, *named, more={"FAKE_CODEX_ACCOUNT": "none"})
    assert done.json["next"][0] == f"Run `CODEX_HOME='{home}' {program} login`."
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin", "FAKE_CODEX_ACCOUNT": "none"}
    assert (await doctor(tmp_path, more=path)).json["next"][0] == "Run `codex login`."


async def test_how_to_sign_in_is_said_once_also_where_a_running_server_says_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fake_proxy(tmp_path) as proxy:
        monkeypatch.setattr(proxy.server.agent, "trouble", lambda: NOT_SIGNED_IN)
        named = ("--codex-bin", str(codex(tmp_path)), "--port", str(proxy.server.port))
        done = await doctor(tmp_path, *named, more={"FAKE_CODEX_ACCOUNT": "none"})
    assert "Run `codex login`" in done.check("port")["message"]
    assert len([step for step in done.json["next"] if "login" in step]) == 1


async def test_where_codex_cannot_be_asked_the_advice_is_the_command_too(tmp_path: Path) -> None:
    program = codex(tmp_path, "0.42.0", schema=None, proto=True)
    done = await doctor(tmp_path, "--codex-bin", str(program))
    assert done.check("sign-in")["advice"] == f"Run `{program} login`."


async def test_a_provider_whose_key_is_not_set_is_reported_by_the_name_of_its_variable(
    tmp_path: Path,
) -> None:
    home = make_codex_home(tmp_path, "http://127.0.0.1:9/v1")
    arguments = ("--codex-bin", str(codex(tmp_path)), "--codex-home", str(home.path))
    done = await doctor(tmp_path, *arguments)
    assert KEY_NAME in done.check("sign-in")["advice"]
    done = await doctor(tmp_path, *arguments, more={KEY_NAME: "set"})
    assert done.check("sign-in")["status"] == "ok"


NEEDS_LINKS = """case "$CODEX_HOME" in
  "$TMPDIR"/*) echo "bwrap: execvp codex-linux-sandbox: No such file or directory" >&2; exit 1 ;;
esac"""
"""What `codex sandbox` does with a bubblewrap that has no `--argv0`: Codex makes its links in no home below TMPDIR."""


@pytest.mark.parametrize("below", [False, True])
async def test_a_sandbox_that_fails_for_the_place_of_codexs_home_is_reported_by_that_place(
    tmp_path: Path, below: bool
) -> None:
    sign_in(tmp_path)
    program = codex(tmp_path, before=f'if [ "$1" = sandbox ]; then {NEEDS_LINKS}; fi')
    temporary = tmp_path if below else tmp_path / "temporary"
    temporary.mkdir(exist_ok=True)
    done = await doctor(tmp_path, "--codex-bin", str(program), more={"TMPDIR": str(temporary)})
    check = done.check("sandbox")
    assert check["status"] == ("warning" if below else "ok")
    assert (f"{tmp_path / '.codex'} is below the temporary folder {temporary}." in check["message"]) is below
    assert any("install bubblewrap 0.9" in step for step in done.json["next"]) is below
    assert not any("apt install" in step for step in done.json["next"])


async def test_a_sandbox_that_does_not_work_is_a_warning(tmp_path: Path) -> None:
    sign_in(tmp_path)
    done = await doctor(tmp_path, "--codex-bin", str(codex(tmp_path, sandbox=1)))
    assert (done.status, done.check("sandbox")["status"]) == (0, "warning")
    assert any("bubblewrap" in step for step in done.json["next"])


@pytest.mark.exhaustive
async def test_a_codex_that_hangs_does_not_hang_doctor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(codex_checks, "START_SECONDS", 0.3)
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    environ = environment(tmp_path, {"FAKE_CODEX_MISBEHAVE": "hang_start,ignore_sigterm"})
    flags = {"port": 0, "codex_bin": str(codex(tmp_path)), "workdir": tmp_path, "state_dir": tmp_path / "s"}
    checkup = await examine(flags, None, environ)
    [found] = [check for check in checkup.checks if check.name == "sign-in"]
    assert found.status == "failed"
    assert "did not answer" in found.message
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before


async def test_all_checks_together_end_in_a_limited_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_module, "MAX_SECONDS", 0.2)
    program = codex(tmp_path)
    program.write_text("#!/bin/sh\nexec sleep 60\n")
    flags = {"port": 0, "codex_bin": str(program), "workdir": tmp_path, "state_dir": tmp_path / "s"}
    checkup = await examine(flags, None, environment(tmp_path))
    assert [check.status for check in checkup.checks if check.name == "agent"] == ["failed"]
    assert checkup.checks[-1].name == "workspace"


async def test_the_port_of_another_program_fails_even_if_that_never_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "ANSWER_SECONDS", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as other:
        settings = settings_of(tmp_path, port=other.getsockname()[1])
        check = await checks.port_check(settings)
    assert check.status == "failed"
    assert "--port" in check.advice


@pytest.mark.part("terminal")
async def test_the_port_of_a_codex_proxy_is_fine(tmp_path: Path) -> None:
    async with fake_proxy(tmp_path) as proxy:
        done = await doctor(tmp_path, "--agent", "fake", "--port", str(proxy.server.port))
        assert done.check("port")["facts"]["ours"] is True
        assert "codex-proxy chat" in done.json["next"][-1]


async def test_a_running_server_with_several_agents_is_known_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "ANSWER_SECONDS", PATIENCE)
    async with fake_proxy(tmp_path, agents={"one": {"agent": "fake"}, "two": {"agent": "fake"}}) as proxy:
        flags = {"agent": "fake", "port": proxy.server.port, "workdir": tmp_path, "state_dir": tmp_path / "s"}
        checkup = await examine(flags, None, environment(tmp_path))
    [port] = [check for check in checkup.checks if check.name == "port"]
    assert port.status == "ok"
    assert "one, two on" in port.message


async def test_an_address_for_others_without_a_key_fails_as_the_start_would(tmp_path: Path) -> None:
    done = await doctor(tmp_path, "--agent", "fake", "--host", "0.0.0.0")
    assert (done.status, done.check("settings")["status"]) == (1, "failed")
    done = await doctor(tmp_path, "--agent", "fake", "--host", "0.0.0.0", "--api-key", "the-secret-key")
    assert done.status == 0
    assert "the-secret-key" not in done.out


async def test_folders_that_others_can_read_are_warned_of(tmp_path: Path) -> None:
    home = sign_in(tmp_path)
    (home / "auth.json").chmod(0o644)
    state = tmp_path / "state"
    state.mkdir(mode=0o755)
    more = {"PROXY_STATE_DIR": str(state)}
    done = await doctor(tmp_path, "--codex-bin", str(codex(tmp_path)), more=more)
    assert done.check("state folder")["facts"]["mode"] == "0755"
    assert f"Run `chmod 700 {state}`." in done.json["next"]
    assert f"Run `chmod 600 {home / 'auth.json'}`." in done.json["next"]


async def test_a_home_that_was_named_and_is_not_there_fails(tmp_path: Path) -> None:
    named = ("--codex-home", str(tmp_path / "none"))
    done = await doctor(tmp_path, "--codex-bin", str(codex(tmp_path)), *named)
    assert (done.status, done.check("codex home")["status"]) == (1, "failed")
    assert [step for step in done.json["next"] if "login" in step] == [done.check("codex home")["advice"]]


async def test_doctor_makes_neither_a_state_folder_nor_a_home(tmp_path: Path) -> None:
    program = codex(tmp_path)
    await doctor(tmp_path, "--codex-bin", str(program))
    assert [path.name for path in tmp_path.iterdir()] == ["codex"]


async def test_a_wrong_setting_fails_alone_and_is_named(tmp_path: Path) -> None:
    for more in ({"PROXY_PORT": "many"}, {"PROXY_BUILTIN_TOOLS": "perhaps"}):
        [name] = more
        done = await command(tmp_path, "doctor", "--json", more=more)
        assert done.status == 1
        assert [check["name"] for check in done.json["checks"]] == ["settings"]
        assert f"{name} is invalid" in done.check("settings")["message"]


async def test_a_settings_file_that_is_no_toml_fails(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text("port = = 1")
    done = await command(tmp_path, "doctor", "--json", "--config", str(file))
    assert done.status == 1
    assert "TOML" in done.check("settings")["message"]


async def test_every_value_is_reported_with_where_it_came_from(tmp_path: Path) -> None:
    file = tmp_path / "c.toml"
    file.write_text('agent = "fake"\nidle_timeout = 7.5\nport = 1\n')
    more = {"PROXY_API_KEY": "hidden", "PROXY_LOG_LEVEL": "warning", "proxy_env": "dev"}
    done = await doctor(tmp_path, "--config", str(file), more=more)
    told = {each["name"]: (each["value"], each["source"], each["origin"]) for each in done.json["settings"]}
    assert told["port"] == (0, "flag", "")
    assert told["agent"] == ("fake", "file", str(file))
    assert told["idle_timeout"] == ("7.5", "file", str(file))
    assert told["log_level"] == ("warning", "variable", "PROXY_LOG_LEVEL")
    assert told["env"] == ("dev", "variable", "proxy_env")
    assert told["api_key"] == ("********", "variable", "PROXY_API_KEY")
    assert told["host"] == ("127.0.0.1", "default", "")


@pytest.mark.parametrize(
    "table", ["agents", "routes", pytest.param("upstreams", marks=pytest.mark.part("upstream"))]
)
def test_of_tables_only_the_names_are_reported(table: str) -> None:
    assert report_value(table, {"one": {"key_file": "/secret"}, "two": {}}) == "one,two"


@pytest.mark.part("machines")
async def test_of_an_address_only_the_host_is_reported_since_the_rest_may_be_a_key(tmp_path: Path) -> None:
    more = {
        "PROXY_WEBHOOKS_URLS": "https://user:hidden@a.example/hidden?hidden,https://hidden@b.example,http://[hidden",
        "PROXY_WEBHOOKS_SECRET": "hidden",
        "PROXY_ALLOWED_ORIGINS": "http://localhost:3000,app://obsidian.md",
        "PROXY_STORE": "postgresql://user:hidden@127.0.0.1:1/a?application_name=hidden",
    }
    done = await doctor(tmp_path, "--agent", "fake", more=more)
    told = {each["name"]: each["value"] for each in done.json["settings"]}
    assert (
        told["webhooks"]
        == "urls=https://a.example/********,https://b.example/********,********, secret=********"
    )
    assert told["store"] == "postgresql://127.0.0.1/********"
    assert told["allowed_origins"] == "http://localhost:3000,app://obsidian.md"
    assert "hidden" not in done.out + done.err


async def test_the_report_for_people_is_text_with_the_steps_in_order(tmp_path: Path) -> None:
    done = await command(tmp_path, "doctor", "--agent", "fake", "--port", "0")
    assert done.status == 0
    assert "[WARN] agent" in done.out
    assert "agent = fake  (flag)" in done.out
    assert "idle_timeout" not in done.out
    assert done.out.index("Next:") < done.out.index("  1. ") < done.out.index("  2. Start the server")
    done = await command(tmp_path, "doctor", "--agent", "fake", "--port", "0", "--all")
    assert "idle_timeout = 300.0  (default)" in done.out


TRIED = (
    *(
        "7",
        "true",
        "false",
        "x",
        "x=y",
        "/nowhere",
        '{"a": {"url": "http://127.0.0.1:1/v1"}}',
        '{"fake": {}}',
        '{"a": {"to": "fake"}}',
        '{"open_files": 7}',
        '{"command": "x"}',
        '{"urls": "x"}',
        '{"quota": "1"}',
        '{"pace": "recorded"}',
        "turn",
        "dev",
        "off",
        "error",
        "json",
        "never",
        "none",
        "sample",
        "codex-completions-api",
        "ignore",
        "rerun",
        "fake",
    ),
    *("app-server", "workspace-write", "open-responses-server", "ask", "sessions"),
)
"""Texts of which every setting takes at least one that is not its default."""


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("name", "variable"), [(name, each) for name in Settings.model_fields for each in variables_of(name)]
)
def test_a_reported_variable_is_the_one_that_sets_the_value(
    name: str, variable: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for field in Settings.model_fields:
        for each in variables_of(field):
            monkeypatch.delenv(each, raising=False)
    default = getattr(load({}, None), name)
    assert setting_sources({}, None, os.environ)[name] == ("default", "")
    for text in TRIED:
        monkeypatch.setenv(variable, text)
        try:
            changed = getattr(load({}, None), name)
        except UserError:
            continue
        if changed != default:
            break
    else:
        pytest.fail(f"{variable} changes nothing")
    assert setting_sources({}, None, os.environ)[name] == ("variable", variable)


@pytest.mark.exhaustive
@pytest.mark.real
async def test_the_real_binary_is_found_asked_and_ended(tmp_path: Path) -> None:
    home = make_codex_home(tmp_path, "http://127.0.0.1:9/v1")
    flags = {
        "port": 0,
        "codex_bin": str(codex_path()),
        "codex_home": home.path,
        "workdir": home.workdir,
        "state_dir": tmp_path / "state",
    }
    before = {child.pid for child in psutil.Process().children(recursive=True)}
    checkup = await examine(flags, None, home.environment())
    checks = {check.name: check for check in checkup.checks}
    assert checks["agent"].facts["kind"] == "native"
    assert checks["version"].status == checks["protocol"].status == checks["sign-in"].status == "ok"
    assert str(checks["version"].facts["version"]) in str(checks["sign-in"].facts["user_agent"])
    assert checks["sandbox"].status in ("ok", "warning")
    assert checkup.ok
    assert {child.pid for child in psutil.Process().children(recursive=True)} <= before
    assert not (tmp_path / "state").exists()


@pytest.mark.exhaustive
@pytest.mark.real
async def test_the_real_binary_says_itself_that_nobody_is_signed_in(tmp_path: Path) -> None:
    home = make_codex_home(tmp_path, "http://127.0.0.1:9/v1")
    home.config.write_text("")
    environ = {name: value for name, value in home.environment().items() if name != "CODEX_HOME"}
    flags = {"port": 0, "codex_bin": str(codex_path()), "codex_home": home.path, "workdir": home.workdir}
    checkup = await examine(flags | {"state_dir": tmp_path / "state"}, None, environ)
    [found] = [check for check in checkup.checks if check.name == "sign-in"]
    assert found.status == "failed"
    place, program = (shlex.quote(str(path)) for path in (home.path, codex_path()))
    assert checkup.next_steps[0] == f"Run `CODEX_HOME={place} {program} login`."
    (home.path / "auth.json").write_text('{"OPENAI_API_KEY": "sk-nothing"}')
    (home.path / "auth.json").chmod(0o600)
    checkup = await examine(flags | {"state_dir": tmp_path / "state"}, None, environ)
    assert [check.status for check in checkup.checks if check.name == "sign-in"] == ["ok"]


@pytest.mark.part("mcp")
@pytest.mark.parametrize(
    ("servers", "status", "says"),
    [
        ('{"mcpServers": {"a": {"command": "sh"}, "b": {"url": "http://b/"}}}', "ok", ": a, b."),
        ('{"mcpServers": {"a": {"command": "./here"}}}', "ok", ": a."),
        (
            '{"mcpServers": {"a": {"command": "no-such"}}}',
            "warning",
            "'a' cannot start no-such: it is not on",
        ),
        ('{"mcpServers": {"a": {"command": "sh", "cwd": "none"}}}', "warning", "none does not exist"),
        ('{"mcpServers": {"a": {"command": "${UNSET}"}}}', "failed", "UNSET, which is not set"),
        ("{", "failed", "mcp.json"),
        (None, "failed", "No such file"),
        ("a pipe", "failed", "it is no regular file"),
    ],
)
async def test_mcp_servers_are_looked_for_and_not_started(
    tmp_path: Path, servers: str | None, status: str, says: str
) -> None:
    here = tmp_path / "here"
    here.write_text("#!/bin/sh\ntouch started\n")
    here.chmod(0o700)
    file = tmp_path / "mcp.json"
    if servers == "a pipe":
        os.mkfifo(file)
    elif servers is not None:
        file.write_text(servers)
    done = await doctor(tmp_path, "--agent", "fake", "--mcp-config", str(file))
    check = done.check("mcp servers")
    assert (check["status"], says in check["message"]) == (status, True), check
    assert done.status == (1 if status == "failed" else 0)
    assert not (tmp_path / "started").exists()


async def test_a_path_s_control_characters_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """Neither as text nor as JSON, which a terminal shows as well; the JSON means the same."""
    folder = tmp_path / "a\x1b]0;owned\x07\u202e"
    folder.mkdir()
    for arguments in ((), ("--json",)):
        done = await command(tmp_path, "doctor", "--agent", "fake", "--workdir", str(folder), *arguments)
        assert done.out.replace("\n", "").isprintable()
        assert "owned" in done.out
    assert str(folder) in [each["value"] for each in json.loads(done.out)["settings"]]
