"""`codex-proxy service`: starts the server at login by systemd or launchd. Writes one file (systemd.service(5),
launchd.plist(5)); a file of somebody else is never changed. Functions raise `UserError`, and return what was done.
"""

from __future__ import annotations

import plistlib
import re
import shutil
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from codex_proxy.core.faults import UserError
from codex_proxy.files import private

LABEL: Final = "codex-proxy"
MARK: Final = "codex-proxy service install"
"""The text by which a file is known as this command's."""

UNIT: Final = """\
# Written by `codex-proxy service install`.
[Unit]
Description=codex-proxy: local coding agents behind HTTP APIs

[Service]
ExecStart={command}
WorkingDirectory={workdir}
Environment=PROXY_LOG_FORMAT=json
# A service has a short PATH, and the agent's program has to be found.
Environment={path}
# Keys and whatever else is not for `systemctl show`: PROXY_API_KEY=..., one a line, mode 600.
EnvironmentFile=-%h/.config/codex-proxy/environment
Restart=on-failure
RestartSec=2
# Running turns get PROXY_DRAIN_MS (10 s) to end; then every child is ended.
TimeoutStopSec=30
KillMode=mixed
NoNewPrivileges=yes

[Install]
WantedBy=default.target
"""


class Service(msgspec.Struct, frozen=True, kw_only=True):
    """How a system runs services of a user: their `file`, and the commands."""

    file: Path
    start: tuple[tuple[str, ...], ...]
    stop: tuple[tuple[str, ...], ...]
    forget: tuple[tuple[str, ...], ...]
    """The commands to run after the file was removed."""
    show: tuple[str, ...]
    text: Callable[[Sequence[str], Path, str], str]
    """Returns the file's content, for a command, a folder and a PATH."""


def service_of(platform: str, home: Path, user_id: int) -> Service:
    """Returns how this system runs services. `platform` is `sys.platform`."""
    if platform == "linux":
        systemctl = ("systemctl", "--user")
        return Service(
            file=home / ".config/systemd/user/codex-proxy.service",
            start=((*systemctl, "daemon-reload"), (*systemctl, "enable", "--now", LABEL)),
            stop=((*systemctl, "disable", "--now", LABEL),),
            forget=((*systemctl, "daemon-reload"),),
            show=(*systemctl, "status", "--no-pager", LABEL),
            text=unit_text,
        )
    if platform == "darwin":
        file, domain = home / "Library/LaunchAgents/codex-proxy.plist", f"gui/{user_id}"
        return Service(
            file=file,
            start=(("launchctl", "bootstrap", domain, str(file)),),
            stop=(("launchctl", "bootout", f"{domain}/{LABEL}"),),
            forget=(),
            show=("launchctl", "print", f"{domain}/{LABEL}"),
            text=plist_text,
        )
    raise UserError(f"A service can be installed with systemd or launchd, not on {platform}.")


def unit_text(command: Sequence[str], workdir: Path, path: str) -> str:
    """Returns the unit. Raises `UserError` for text that a unit cannot contain."""
    program, *arguments = map(_unit_word, command)
    quoted = " ".join((program, *(each.replace("$", "$$") for each in arguments)))
    return UNIT.format(command=quoted, workdir=_unit_path(str(workdir)), path=_unit_word(f"PATH={path}"))


def plist_text(command: Sequence[str], workdir: Path, path: str) -> str:
    body = {
        "Label": LABEL,
        "ProgramArguments": [_checked(each) for each in command],
        "WorkingDirectory": _checked(str(workdir)),
        "EnvironmentVariables": {"PATH": _checked(path), "PROXY_LOG_FORMAT": "json", "WRITTEN_BY": MARK},
        "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False},
        "ExitTimeOut": 30,
    }
    return plistlib.dumps(body).decode()


def install(service: Service, command: Sequence[str], workdir: Path, environ: Mapping[str, str]) -> str:
    _check_program(service)
    if not workdir.is_dir():
        raise UserError(f"{workdir} is not a folder. Name the agent's folder with --workdir.")
    replaced = _is_ours(service.file)
    if replaced is False:
        raise UserError(f"{service.file} was not written by this command. Move it away first.")
    text = service.text(command, workdir, environ.get("PATH", ""))
    private.make_folder(service.file.parent)
    with private.replace_file(service.file) as file:  # only for the owner: a flag may be a key
        file.write(text.encode())
    if replaced:
        for each in service.stop:
            _run(each, must_succeed=False)
    try:
        for each in service.start:
            _run(each)
    except UserError as error:
        raise UserError(
            f"{error}. The service does not run; {service.file} stays (`codex-proxy service uninstall` removes it). "
            "Run this command in a login session of your user, or start the server with `codex-proxy serve`."
        ) from error
    return f"Wrote {service.file} and started the service. `codex-proxy service status` shows it."


def uninstall(service: Service) -> str:
    ours = _is_ours(service.file)
    if ours is None:
        return f"There is no {service.file}: nothing to do."
    if not ours:
        raise UserError(f"{service.file} was not written by this command. Remove it by hand.")
    _check_program(service)
    for each in service.stop:
        _run(each, must_succeed=False)  # it may have been stopped by hand
    service.file.unlink()
    for each in service.forget:
        _run(each, must_succeed=False)  # the file is gone: there is nothing more to do
    return f"Stopped the service and removed {service.file}."


def status(service: Service) -> int:
    """Prints what the system says about the service, and returns its exit status."""
    if _is_ours(service.file) is None:
        raise UserError("The service is not installed. `codex-proxy service install` installs it.")
    _check_program(service)
    return subprocess.run(service.show, check=False).returncode


def _is_ours(file: Path) -> bool | None:
    try:
        return MARK in file.read_text("utf-8", "replace")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror}.") from error


def _check_program(service: Service) -> None:
    program = service.show[0]
    if shutil.which(program) is None:
        raise UserError(f"There is no {program} on PATH, which runs services here.")


def _run(argv: Sequence[str], *, must_succeed: bool = True) -> None:
    done = subprocess.run(argv, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    if done.returncode and must_succeed:
        reason = done.stdout.strip()
        raise UserError(f"`{' '.join(argv)}` failed: {reason or f'exit status {done.returncode}'}")


_PLAIN: Final = re.compile(r"[\w@+=:,./-]+", re.ASCII)
_ESCAPES: Final = {"\\": "\\\\", '"': '\\"', "\n": "\\n", "\t": "\\t", "%": "%%"}
_UNWRITABLE: Final = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


def _unit_word(text: str) -> str:
    """Returns the text as one word of a unit (systemd.syntax(7), "Quoting"). In a command `$` is special, too."""
    if _PLAIN.fullmatch(_checked(text)):
        return text
    return '"' + "".join(_ESCAPES.get(character, character) for character in text) + '"'


def _unit_path(path: str) -> str:
    """Returns a path as a whole value, which systemd takes as it is, but for `%`. Raises `UserError`."""
    if path != path.strip() or set(path) & {"\n", "\t"} or path.endswith("\\"):
        raise UserError(
            f"The folder {path!r} cannot be written into a unit of systemd. Name another with --workdir."
        )
    return _checked(path).replace("%", "%%")


def _checked(text: str) -> str:
    """Returns the text. Raises `UserError` if neither systemd nor launchd can read it from a file."""
    if _UNWRITABLE.search(text):
        raise UserError(f"{text!r} has characters that the file of a service cannot contain.")
    return text
