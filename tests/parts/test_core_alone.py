"""Tests of the core pass in a copy of the tree without the folders of parts and their tests."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

import pytest

from codex_proxy.parts import KNOWN

ROOT: Final = Path(__file__).parents[2]
HANGS: Final = 1800
"""Seconds after which the tests of a copy are given up."""
DECLARED: Final = ("agents/test_registry.py", "contract", "scripts/test_configuration.py", "settings")
"""The tests of what parts declare: agents, settings, pages."""
TENTHS: Final = 10
OTHER_PROGRAMS: Final = ("clients", "parts", "real")
"""The folders of tests that run programs of others, and of those of parts."""


def copy_without(names: Iterable[str], folder: Path) -> Path:
    """Copies the tree without these parts and their tests. Tests beside the folders of parts need several parts."""
    left_out = shutil.ignore_patterns(
        ".git", ".venv", ".*_cache", "__pycache__", "node_modules", "build", "dist"
    )
    copy = folder / "copy"
    shutil.copytree(ROOT, copy, ignore=left_out, symlinks=True)
    for name in names:
        shutil.rmtree(copy / "codex_proxy" / "parts" / name)
        shutil.rmtree(copy / "tests" / "parts" / name)
    for file in (copy / "tests" / "parts").glob("*.py"):
        if file.name != "__init__.py":
            file.unlink()
    return copy


def run_tests(copy: Path, *arguments: str) -> str:
    """Runs tests of the copy, and returns what they print. Nothing of the tested program itself can be
    imported.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_XDIST_")}
    told = subprocess.run(
        [sys.executable, "-P", "-m", "pytest", "-p", "no:cacheprovider", "--tb=short", "-rfEX", *arguments],
        env={**own, "PYTHONPATH": str(copy)},
        cwd=copy,
        capture_output=True,
        text=True,
        timeout=HANGS,
        check=False,
    )
    assert told.returncode == 0, told.stdout[-8000:] + told.stderr[-2000:]
    return told.stdout


@pytest.mark.exhaustive
@pytest.mark.timeout(HANGS + 60)
def test_the_tests_of_what_parts_declare_pass_without_any_part(tmp_path: Path) -> None:
    copy = copy_without(KNOWN, tmp_path)
    run_tests(copy, "-n", "2", "--dist", "loadfile", *(f"tests/{file}" for file in DECLARED))


@pytest.mark.exhaustive
@pytest.mark.timeout(HANGS + 60)
def test_every_test_file_of_the_core_is_collected_without_any_part(tmp_path: Path) -> None:
    """But for those that `NEED_A_PART` names, which cannot be."""
    copy = copy_without(KNOWN, tmp_path)
    collected = run_tests(copy, "--collect-only", "tests")
    assert len(re.findall(r"^tests/", collected, re.MULTILINE)) > 300


@pytest.mark.exhaustive
@pytest.mark.timeout(HANGS + 60)
@pytest.mark.parametrize("tenth", range(TENTHS))
def test_the_tests_of_the_core_pass_without_any_part(tenth: int, tmp_path: Path) -> None:
    tests = copy_without(KNOWN, tmp_path) / "tests"
    found = sorted(str(file.relative_to(tests.parent)) for file in tests.rglob("test_*.py"))
    files = [file for file in found if file.split("/")[1] not in OTHER_PROGRAMS]
    run_tests(tests.parent, "-n", "2", *files[tenth::TENTHS])
