"""Finds the Codex binary: the one that the operator names, the one on PATH, or the one of the extra `[codex]`.

npm's package puts a Node program on PATH, which starts the native binary. It costs 30 ms and 43 MiB for each child,
and leaves the binary running when it is killed, so the native binary beside it is used instead.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import sys
from pathlib import Path

NATIVE_PATTERNS = (
    "vendor/{machine}-*/codex/codex",
    "vendor/{machine}-*/bin/codex",
    "node_modules/@openai/codex-*/vendor/{machine}-*/codex/codex",
    "node_modules/@openai/codex-*/vendor/{machine}-*/bin/codex",
    "../codex-*/vendor/{machine}-*/codex/codex",
    "../codex-*/vendor/{machine}-*/bin/codex",
)
"""Where npm's packages keep the native binary, below the package's folder. Older packages hold the binaries of all
machines, in folders such as `x86_64-unknown-linux-musl`."""

SYSTEMS = {"linux": "linux", "darwin": "apple"}
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def find_codex(named: str | None, search_path: str) -> str | None:
    """Returns the program to start; None where there is none. `named` is returned unchecked: a start reports its
    fault."""
    if named:
        program = os.path.expanduser(named)
        if os.sep not in program:
            program = shutil.which(program, path=search_path) or program
        return native_of(_absolute(program))
    found = shutil.which("codex", path=search_path)
    return native_of(_absolute(found)) if found else bundled_codex()


def _absolute(program: str) -> str:
    """Returns a relative path as an absolute one, because children start in other folders. A bare name stays as it
    is."""
    return os.path.abspath(program) if os.sep in program else program


def bundled_codex() -> str | None:
    """Returns the binary that the extra `[codex]` installed; None where it is not installed."""
    if importlib.util.find_spec("codex_cli_bin") is None:
        return None
    from codex_cli_bin import bundled_codex_path

    try:
        return str(bundled_codex_path())
    except FileNotFoundError:
        return None


def native_of(program: str) -> str:
    """Returns the native binary behind a Node wrapper; the program itself where it is no wrapper, or none is found."""
    path = Path(os.path.realpath(program))
    if not path.is_file() or not _is_node_program(path):
        return program
    package, machine, system = path.parent.parent, _machine(), SYSTEMS.get(sys.platform, "")
    for pattern in NATIVE_PATTERNS:
        for native in sorted(package.glob(pattern.format(machine=machine))):
            if system in native.parent.parent.name and native.is_file() and os.access(native, os.X_OK):
                return os.path.abspath(native)
    return program


def _machine() -> str:
    """Returns the name of this machine's architecture in Rust's spelling."""
    name = platform.machine().lower()
    return MACHINES.get(name, name)


def _is_node_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            first = file.readline(200)
    except OSError:  # it may be executed but not read: then it is no script
        return False
    return first.startswith(b"#!") and b"node" in first
