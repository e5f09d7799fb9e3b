"""`codex-proxy service`: what it writes and calls, with a `systemctl` that notes its arguments."""

from __future__ import annotations

import plistlib
import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from codex_proxy.core.faults import UserError
from codex_proxy.parts.service.login_service import (
    UNIT,
    Service,
    install,
    plist_text,
    service_of,
    status,
    uninstall,
    unit_text,
)
from tests.deployment.examples import example as deployed

COMMAND = ("codex-proxy", "serve")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file in which `systemctl` and `launchctl` note their arguments. They fail where `failing` names one."""
    notes = tmp_path / "calls"
    notes.touch()
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("systemctl", "launchctl"):
        program = programs / name
        program.write_text(
            f'#!/bin/sh\necho "$@" >> {notes}\ncase "$*" in *"$FAILING"*) [ -z "$FAILING" ] || exit 5;; esac\n'
        )
        program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    monkeypatch.setenv("FAILING", "")
    return notes


def make_service(tmp_path: Path, platform: str = "linux") -> Service:
    return service_of(platform, tmp_path / "home", 501)


def test_a_service_is_installed_started_and_removed_again(tmp_path: Path, calls: Path) -> None:
    service = make_service(tmp_path)
    install(service, COMMAND, tmp_path, {"PATH": "/opt/bin"})
    text = service.file.read_text()
    assert "ExecStart=codex-proxy serve\n" in text
    assert f"WorkingDirectory={tmp_path}\n" in text
    assert "Environment=PATH=/opt/bin\n" in text
    assert status(service) == 0
    uninstall(service)
    assert not service.file.exists()
    assert calls.read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable --now codex-proxy",
        "--user status --no-pager codex-proxy",
        "--user disable --now codex-proxy",
        "--user daemon-reload",
    ]


def test_launchd_gets_its_property_list(tmp_path: Path, calls: Path) -> None:
    service = make_service(tmp_path, "darwin")
    install(service, COMMAND, tmp_path, {})
    uninstall(service)
    assert calls.read_text().splitlines() == [
        f"bootstrap gui/501 {service.file}",
        "bootout gui/501/codex-proxy",
    ]


def test_installing_again_replaces_what_runs(tmp_path: Path, calls: Path) -> None:
    service = make_service(tmp_path)
    install(service, COMMAND, tmp_path, {})
    install(service, (*COMMAND, "--port", "8080"), tmp_path, {})
    assert "--port 8080" in service.file.read_text()
    assert calls.read_text().splitlines()[2] == "--user disable --now codex-proxy"


def test_a_file_of_somebody_else_is_left_alone(tmp_path: Path, calls: Path) -> None:
    service = make_service(tmp_path)
    service.file.parent.mkdir(parents=True)
    service.file.write_text("[Service]\n")
    with pytest.raises(UserError, match="not written by this command"):
        install(service, COMMAND, tmp_path, {})
    with pytest.raises(UserError, match="not written by this command"):
        uninstall(service)
    assert (service.file.read_text(), calls.read_text()) == ("[Service]\n", "")


def test_a_command_that_fails_is_named(tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAILING", "enable")
    with pytest.raises(UserError, match="`systemctl --user enable --now codex-proxy` failed: exit status 5"):
        install(make_service(tmp_path), COMMAND, tmp_path, {})


def test_a_system_without_a_service_manager_is_reported_and_nothing_is_left(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make_service(tmp_path)
    monkeypatch.setenv("FAILING", "--user")
    with pytest.raises(UserError, match=r"does not run; .*`codex-proxy service uninstall` removes it.*login"):
        install(service, COMMAND, tmp_path, {})
    assert "removed" in uninstall(service)
    assert not service.file.exists()


def test_the_error_names_what_is_impossible(
    tmp_path: Path, calls: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = make_service(tmp_path)
    with pytest.raises(UserError, match="is not a folder"):
        install(service, COMMAND, tmp_path / "missing", {})
    with pytest.raises(UserError, match="not installed"):
        status(service)
    assert "nothing to do" in uninstall(service)
    with pytest.raises(UserError, match="not on win32"):
        service_of("win32", tmp_path, 0)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UserError, match="There is no systemctl on PATH"):
        install(service, COMMAND, tmp_path, {})


HARD = st.text(
    st.sampled_from(" \t\n$%\"'\\;#aé/:-=~{}") | st.characters(codec="utf-8", exclude_categories=["Cc", "Cn"])
)
ESCAPED = {"n": "\n", "t": "\t", "\\": "\\", '"': '"'}


def words_of(value: str) -> list[str]:
    """What systemd makes of a value (systemd.syntax(7)): words with quotes and C's escapes, then `%`."""
    words: list[str] = []
    word: str | None = None
    quote, position = "", 0
    while position < len(value):
        character = value[position]
        if character == "\\":
            position += 1
            word = (word or "") + ESCAPED[value[position]]
        elif quote:
            quote = "" if character == quote else quote
            word = (word or "") + ("" if not quote else character)
        elif character in "\"'":
            word, quote = word or "", character
        elif character in " \t":
            words, word = words + ([] if word is None else [word]), None
        else:
            word = (word or "") + character
        position += 1
    assert not quote
    words += [] if word is None else [word]
    assert all("%" not in each.replace("%%", "") for each in words)
    return [each.replace("%%", "%") for each in words]


def value_of(unit: str, name: str) -> str:
    """The value of the last line `NAME=VALUE`, which has no continuation."""
    [*_, line] = [line for line in unit.split("\n") if line.startswith(f"{name}=")]
    assert not line.endswith("\\")
    return line.partition("=")[2].strip(" \t")


@given(path=HARD, argument=HARD)
@example(path="/mnt/c/Program Files/x:/usr/bin", argument="--model=a b")
@example(path="/100%h:$HOME:/a\\", argument="")
def test_systemd_reads_the_very_path_and_arguments_that_were_given(path: str, argument: str) -> None:
    unit = unit_text((*COMMAND, argument), Path("/w"), path)
    assert words_of(value_of(unit, "Environment")) == [f"PATH={path}"]
    words = words_of(value_of(unit, "ExecStart"))
    assert all("$" not in each.replace("$$", "") for each in words)
    assert [each.replace("$$", "$") for each in words] == [*COMMAND, argument]
    read = plistlib.loads(plist_text((*COMMAND, argument), Path("/w"), path).encode())
    assert read["EnvironmentVariables"]["PATH"] == path
    assert read["ProgramArguments"][-1] == argument


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
@pytest.mark.parametrize(
    "text", ["/mnt/c/Program Files", "100%h $HOME ${X} $$", "\"'\\;#", "two\nlines\tand", " é "]
)
def test_systemd_finds_no_fault_in_a_unit(tmp_path: Path, text: str) -> None:
    file = tmp_path / "codex-proxy.service"
    file.write_text(unit_text(("/bin/true", text), tmp_path, text))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", file], capture_output=True, text=True, check=False
    )
    assert str(file.name) not in done.stderr, done.stderr


@pytest.mark.parametrize("platform", ["linux", "darwin"])
@pytest.mark.parametrize("path", ["/a\0b", "/a\x1bb", "/\udcff"])
def test_a_value_that_a_file_cannot_hold_is_refused_before_anything_is_changed(
    tmp_path: Path, calls: Path, platform: str, path: str
) -> None:
    service = make_service(tmp_path, platform)
    with pytest.raises(UserError, match="cannot contain"):
        install(service, COMMAND, tmp_path, {"PATH": path})
    assert not service.file.exists()
    assert calls.read_text() == ""


def test_the_unit_and_the_property_list_are_those_that_the_command_writes() -> None:
    path = "PATH=%h/.local/bin:/usr/local/bin:/usr/bin:/bin"
    unit = UNIT.format(command="%h/codex-proxy/scripts/start", workdir="%h/projects", path=path)
    assert deployed("codex-proxy.service") == unit
    home = Path("/Users/YOU")
    path = f"{home}/.local/bin:/opt/homebrew/bin:/usr/local/bin:/usr/bin:/bin"
    command = (str(home / "codex-proxy/scripts/start"),)
    assert deployed("codex-proxy.plist") == plist_text(command, home / "projects", path)


def test_the_property_list_keeps_every_argument_as_it_is() -> None:
    command = ("serve", "--upstream-url", "http://x/<&'\">")
    assert plistlib.loads(plist_text(command, Path("/w"), "/bin").encode())["ProgramArguments"] == list(
        command
    )
