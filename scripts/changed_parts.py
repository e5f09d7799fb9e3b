"""Prints arguments for pytest that leave out the tests of parts that no change since origin/main concerns.

    .venv/bin/python -m scripts.changed_parts

A change concerns a part if it is in its folder or that of its tests, or in a module that one of these imports. What
every turn passes (`EVERY_TURN`) concerns all parts, and so does what is no module of the core, its tests and scripts
(packages, golden files, the fake agent). Pages concern no part.
Without origin/main every part is tested.
"""

from __future__ import annotations

import ast
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path

import click

from codex_proxy.parts import KNOWN

ROOT = Path(__file__).resolve().parent.parent
BASE = "origin/main"
MODULES = ("codex_proxy/", "tests/", "scripts/", "examples/")
"""Where a module concerns only the parts that import it."""
EVERY_TURN = tuple(
    f"codex_proxy/{layer}/"
    for layer in ("core", "runs", "responses", "http", "surfaces", "admission", "tools", "app")
)


def main() -> None:
    changed = changed_files()
    for part in sorted(KNOWN.keys() - (KNOWN.keys() if changed is None else concerned(changed))):
        click.echo(f"--ignore=tests/parts/{part}")


def changed_files() -> set[str] | None:
    """Returns the files that differ from origin/main where this branch has left it, also new ones; None if that is not
    known.
    """
    try:
        base = _git("merge-base", "HEAD", BASE)[0]
        return {*_git("diff", "--name-only", base), *_git("ls-files", "--others", "--exclude-standard")}
    except (OSError, subprocess.CalledProcessError, IndexError):
        return None


def concerned(changed: Iterable[str]) -> set[str]:
    """Returns the parts that a change of these files concerns."""
    files = set(changed)
    own = {part: {file for file in files if file.startswith(folders_of(part))} for part in KNOWN}
    if any(map(_concerns_all, files.difference(*own.values()))):
        return set(KNOWN)
    return {part for part in KNOWN if own[part] or not files.isdisjoint(used_files(part))}


def folders_of(part: str) -> tuple[str, str]:
    return f"codex_proxy/parts/{part}/", f"tests/parts/{part}/"


def _concerns_all(file: str) -> bool:
    if file.startswith(EVERY_TURN):
        return True
    is_module = file.startswith(MODULES) and file.endswith(".py") and file != "tests/conftest.py"
    return not is_module and not file.endswith(".md")


def used_files(part: str) -> set[str]:
    """Returns the files of the modules that a part and its tests import, and of the packages that these are in."""
    sources = [source for folder in folders_of(part) for source in ROOT.glob(f"{folder}**/*.py")]
    found = set[str]()
    for name in {name for source in sources for name in _imported(source)}:
        place = name.replace(".", "/")
        found |= {f"{place}.py", f"{place}/__init__.py"}
    return found


def _imported(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _git(*arguments: str) -> list[str]:
    command = ("git", "-C", str(ROOT), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()


if __name__ == "__main__":
    main()
