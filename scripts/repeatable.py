"""Prints the tests that failed in the last run, if all of them may be repeated; else says which may not, and fails.

    .venv/bin/python -m scripts.repeatable

`tests/repeatable.toml` names those that may.
"""

from __future__ import annotations

import json
import sys
import tomllib
from collections.abc import Iterable
from pathlib import Path

import click

ROOT = Path(__file__).resolve().parent.parent
FAILED = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"


def main() -> None:
    try:
        failed = list(json.loads(FAILED.read_text("utf-8")))
    except (OSError, ValueError):
        failed = []
    for test in not_repeatable(failed):
        click.echo(f"failed, and is not repeated (tests/repeatable.toml): {test}", err=True)
    if not failed or not_repeatable(failed):
        sys.exit(1)
    click.echo("\n".join(failed))


def not_repeatable(failed: Iterable[str]) -> list[str]:
    """Returns the tests that may not be repeated. A test that is named there has all of its cases repeated."""
    return [test for test in failed if test.partition("[")[0] not in repeatable()]


def repeatable() -> dict[str, str]:
    """Returns the tests that may be repeated, each with the reason."""
    found: dict[str, str] = tomllib.loads((ROOT / "tests" / "repeatable.toml").read_text("utf-8"))["tests"]
    return found


if __name__ == "__main__":
    main()
