"""What a test does where a program of the machine, or a package of its own, is missing."""

from __future__ import annotations

import importlib
import os
import re
from pathlib import Path
from typing import Final, NoReturn

import pytest

PACKAGES: Final = frozenset({
    "asyncpg", "axe_playwright_python", "compose_spec", "cryptography", "fpdf", "jsonschema", "langchain_anthropic",
    "langchain_core", "langchain_openai", "mcp", "mcp_types", "opentelemetry", "playwright", "pypdf",
    "schemathesis",
})  # fmt: skip
"""What only some tests import. `scripts/test --all` installs them (requirements/dev.txt)."""

_MISSING: Final = re.compile(r"(?:ModuleNotFoundError: No module named '|need the extra `)(\w+)")


def skip_unless_ci(reason: str) -> NoReturn:
    """Skips the test, but fails in CI."""
    if _is_ci():
        pytest.fail(reason)
    pytest.skip(reason)


def missing_package(error: str) -> str:
    """Returns the package of `PACKAGES` that an error says is missing, if it does and this is not CI; else empty."""
    found = _MISSING.findall(error)
    return found[-1] if found and found[-1] in PACKAGES and not _is_ci() else ""


def _is_ci() -> bool:
    return os.environ.get("CI") == "true"


def command_for(path: Path) -> str:
    """Says how to get what the tests of a file or folder lack."""
    return f"scripts/test --all {path} installs it"


def require(package: str) -> None:
    """Imports a package for a test whose server or child uses it: the test is skipped where only some tests need it."""
    importlib.import_module(package)
