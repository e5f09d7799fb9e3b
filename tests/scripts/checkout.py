"""A copy of the scripts in a folder with a blank in its name, and a Python that only notes what it is told."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.waiting import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
TOOLS = (
    *("bash", "sh", "dirname", "basename", "readlink", "cat", "cksum", "tr", "sed"),
    *("mkdir", "cp", "chmod", "ln", "env", "sleep"),
)

# It stands for python3, and, once `-m venv` was asked for, for that environment's own Python.
PYTHON = """#!/bin/sh
printf '%s\\n' "$*" >>"$NOTES"
case "$1 $2 $3" in "-m venv "* | "-m pip install") [ -z "$SLOW" ] || cat "$SLOW" "$SLOW" ;; esac
case "$1 $2" in
  "-m venv")
    for place in "$@"; do :; done
    mkdir -p "$place/bin"
    cp "$0" "$place/bin/python"
    for tool in codex-proxy ruff mypy pytest; do cp "$TOOL" "$place/bin/$tool"; done ;;
  "-m pip")
    case "$*" in
      *" -r "*) echo "Collecting aiohttp==1.2.3 (from -r somewhere)"; exit "${PIP_FAILS:-0}" ;;
    esac ;;
  "-m scripts.agent_programs") [ -z "$AGENTS" ] || echo "$AGENTS" ;;
  "-P "*) exec "$REAL_PYTHON" "$@" ;;
  "-V "*) echo "Python 3.9.2" ;;
  "-c "*)
    case "$2" in *ensurepip*) exit "${NO_VENV:-0}" ;; *version_info*) exit "${TOO_OLD:-0}" ;; esac ;;
esac
"""
TOOL = """#!/bin/sh
printf '%s|' "${0##*/}" "$@" >>"$NOTES"
printf '\\n' >>"$NOTES"
printf '%s\\n' "$$" "$PWD" "$@"
case "$FAILING" in "${0##*/}") exit 1 ;; esac
"""


@dataclass(frozen=True)
class Checkout:
    """A copy of the project's scripts. Nothing outside of `folder` is touched, and no network is used."""

    folder: Path
    tools: Path
    notes: Path

    @property
    def calls(self) -> list[str]:
        """What the Python was told, a line per call."""
        return self.notes.read_text().splitlines() if self.notes.exists() else []

    @property
    def installs(self) -> list[str]:
        return [line for line in self.calls if " install " in line]

    def forget(self) -> None:
        self.notes.unlink(missing_ok=True)

    def environment(self, **more: str) -> dict[str, str]:
        real = {"REAL_PYTHON": sys.executable, "NOTES": str(self.notes), "TOOL": str(self.tools / "a-tool")}
        home = {"PATH": str(self.tools), "HOME": str(self.folder.parent / "home")}
        return real | home | more

    def run(
        self, script: str | Path, *arguments: str, cwd: Path | None = None, **variables: str
    ) -> subprocess.CompletedProcess[str]:
        """Runs a script of the copy, from a folder that is not the copy."""
        elsewhere = cwd or self.folder.parent
        return subprocess.run(
            [str(self.folder / "scripts" / script), *arguments],
            cwd=elsewhere,
            env=self.environment(**variables),
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )

    def served(self, done: subprocess.CompletedProcess[str]) -> list[str]:
        """The arguments that the server got."""
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[2:]

    def install_program(self, name: str, text: str) -> None:
        program = self.tools / name
        program.write_text(text)
        program.chmod(0o755)


def make_checkout(root: Path) -> Checkout:
    folder = root / "a checkout"
    shutil.copytree(ROOT / "scripts", folder / "scripts", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copytree(ROOT / "requirements", folder / "requirements")
    shutil.copy(ROOT / "pyproject.toml", folder)
    tools = root / "tools"
    tools.mkdir()
    for name in TOOLS:
        found = shutil.which(name)
        assert found is not None, f"{name} is not on PATH"
        os.symlink(found, tools / name)
    checkout = Checkout(folder, tools, root / "notes")
    checkout.install_program("python3", PYTHON)
    checkout.install_program("a-tool", TOOL)
    return checkout
