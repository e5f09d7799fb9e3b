"""Where the Codex binary is: the one that was named, the one on PATH, or the one of the `[codex]` extra.

The npm package puts a Node program on PATH that starts the native binary; the wrapper costs 30 ms and 43 MiB a
child, and on SIGKILL leaves the binary behind, so the binary itself is looked for beside it.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path

NATIVE_PATTERNS = (
    "vendor/*/codex/codex",
    "vendor/*/bin/codex",
    "node_modules/@openai/codex-*/vendor/*/codex/codex",
    "../codex-*/vendor/*/codex/codex",
)
"""Where npm's packages keep the native binary, seen from the package's folder."""


def find_codex(named: str | None, search_path: str) -> str | None:
    """The program to start, or None. `named` wins and is not checked here: its fault is told when it starts."""
    if named:
        return native_of(os.path.expanduser(named))
    found = shutil.which("codex", path=search_path)
    return native_of(found) if found else bundled_codex()


def bundled_codex() -> str | None:
    """The binary that the `[codex]` extra installed."""
    if importlib.util.find_spec("codex_cli_bin") is None:
        return None
    from codex_cli_bin import bundled_codex_path

    try:
        return str(bundled_codex_path())
    except FileNotFoundError:
        return None


def native_of(program: str) -> str:
    """The native binary behind a Node wrapper; the program itself where it is none, or where none is found."""
    path = Path(os.path.realpath(program))
    if not path.is_file() or not _is_node_program(path):
        return program
    package = path.parent.parent
    for pattern in NATIVE_PATTERNS:
        for native in sorted(package.glob(pattern)):
            if os.access(native, os.X_OK):
                return str(native)
    return program


def _is_node_program(path: Path) -> bool:
    with path.open("rb") as file:
        first = file.readline(200)
    return first.startswith(b"#!") and b"node" in first
