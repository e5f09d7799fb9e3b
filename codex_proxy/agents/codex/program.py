"""The Codex binary: of the settings, on PATH, or of the extra `[codex]`. npm's Node wrapper takes 30 ms and 43 MiB for
each child and, killed, leaves the binary running, so the native one is used.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final, NamedTuple

from codex_proxy.agents.codex.tested import TESTED
from codex_proxy.core.faults import Failure, Fault, FaultKind, misconfigured
from codex_proxy.files.private import temporary_folder
from codex_proxy.process.child import Command, SpawnError, run_short

NATIVE_PATTERNS = (
    "vendor/{machine}-*/codex/codex",
    "vendor/{machine}-*/bin/codex",
    "node_modules/@openai/codex-*/vendor/{machine}-*/codex/codex",
    "node_modules/@openai/codex-*/vendor/{machine}-*/bin/codex",
    "../codex-*/vendor/{machine}-*/codex/codex",
    "../codex-*/vendor/{machine}-*/bin/codex",
)

SYSTEMS = {"linux": "linux", "darwin": "apple"}
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
"""Rust's names of architectures that Python spells in another way."""


def find_codex(named: str | None, search_path: str) -> str | None:
    """Returns the `codex` to start: `named` in the settings (unchecked), else that on `search_path`, else the extra's;
    None without any.
    """
    wanted = os.path.expanduser(named or "codex")
    program = shutil.which(wanted, path=search_path) or (wanted if named else None)
    if program is None:
        return bundled_codex()
    # Children start in another folder, where a relative path would not lead to it.
    return find_native_binary(os.path.abspath(program) if os.sep in program else program)


def bundled_codex() -> str | None:
    if importlib.util.find_spec("codex_cli_bin") is None:
        return None
    from codex_cli_bin import bundled_codex_path

    try:
        return str(bundled_codex_path())
    except FileNotFoundError:
        return None


def find_native_binary(program: str) -> str:
    """Returns the native binary of npm's wrapper; other programs unchanged."""
    path = Path(os.path.realpath(program))
    if not path.is_file() or not _is_node_program(path):
        return program
    package, system = path.parent.parent, SYSTEMS.get(sys.platform, "")
    machine = platform.machine().lower()
    machine = MACHINES.get(machine, machine)
    for pattern in NATIVE_PATTERNS:
        for native in sorted(package.glob(pattern.format(machine=machine))):
            if system in native.parent.parent.name and native.is_file() and os.access(native, os.X_OK):
                return os.path.abspath(native)
    return program


def _is_node_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            first = file.readline(200)
    except OSError:  # it may be executed but not read: then it is no script
        return False
    return first.startswith(b"#!") and b"node" in first


class Version(NamedTuple):
    """A release without its pre-release suffix."""

    major: int
    minor: int
    patch: int

    def __str__(self) -> str:
        return f"{self.major}.{self.minor}.{self.patch}"


_VERSION = re.compile(r"(?:^codex-cli |^[^/\n]*/)(\d+)\.(\d+)\.(\d+)", re.MULTILINE)


def version_from(text: str) -> Version | None:
    found = _VERSION.search(text)
    return Version(*(int(part) for part in found.groups())) if found else None


TESTED_RELEASES: Final[Mapping[Version, int]] = {
    Version(*(int(part) for part in release.split("."))): failed for release, failed in TESTED.items()
}
"""Number of failed tests by release."""

NEWEST_TESTED: Final = max(TESTED_RELEASES)
"""The newest tested release. A newer one is used, too, if its schema has what is needed."""

OLDEST_SERVED: Final = Version(0, 136, 0)
"""The oldest release whose app-server is used: the releases of six months, of June 2026 and later."""
NEWEST_WITH_PROTO: Final = Version(0, 42, 0)
"""The last release with `codex proto`."""
BUILT_BY_HAND: Final = Version(0, 0, 0)
"""What a Codex reports that somebody has built from its source."""

SHARES_SERVER_SINCE: Final = Version(0, 156, 0)
"""The first release whose terminals share a server in the background. It keeps a thread for 30 minutes after the
terminal was closed, and no other process can go on with it meanwhile.
"""


def resume_command(version: Version) -> str:
    """Returns the command that opens a thread in a terminal, if the thread's id is put behind it, and that gives the
    thread back when the terminal is closed.
    """
    alone = version >= SHARES_SERVER_SINCE or version == BUILT_BY_HAND
    return "codex resume --no-daemon" if alone else "codex resume"


def refusal_of_old(version: Version) -> str:
    """Returns why the app-server of this release is not used, with what to do; empty if it is."""
    if version >= OLDEST_SERVED or version == BUILT_BY_HAND:
        return ""
    return (
        f"Codex {version} is too old: {OLDEST_SERVED} is the oldest release whose app-server is used. Install a newer "
        "one (`npm install -g @openai/codex@latest`, or `pip install --upgrade 'codex-openai-proxy[codex]'`)."
    )


NOT_SIGNED_IN = Failure(
    FaultKind.AGENT_NOT_AUTHENTICATED,
    "Codex is not signed in. Run `codex login` on the machine that runs this server, then try again; "
    "`codex-proxy doctor` prints the exact command.",
)


async def find_version(program: str, environment: Mapping[str, str]) -> Version:
    """Asks a program for its release. Raises `Fault`."""
    text = await output_of((program, "--version"), dict(environment))
    version = version_from(text.decode(errors="replace"))
    if version is None:
        raise misconfigured(f"{program} --version did not print a version. Check that it is the Codex CLI.")
    return version


async def output_of(command: tuple[str, ...], environment: dict[str, str]) -> bytes:
    """Runs a short command as `run_short` does, but in an empty Codex home if `environment` names none: Codex would
    create the user's.
    """
    with temporary_folder("home") as (home, _):
        try:
            return await run_short(Command(command, {"CODEX_HOME": home, **environment}, os.getcwd()))
        except SpawnError as error:
            raise Fault.of(FaultKind.SPAWN_FAILED, f"{error} (--codex-bin).") from error
