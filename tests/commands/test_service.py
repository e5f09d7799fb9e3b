"""`codex-proxy service`: what it writes and calls, with a `systemctl` that notes its arguments."""

from __future__ import annotations

from pathlib import Path

import pytest

from codex_proxy.commands.service import Service, install, service_of, status, uninstall
from codex_proxy.core.faults import UserError

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
