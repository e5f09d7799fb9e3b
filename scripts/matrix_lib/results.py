"""The results of each release: the JSON in docs/, the list in docs/agents.md, and the module of the package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final, Literal, get_args

import msgspec

from scripts.matrix_lib.releases import version_of

ROOT: Final = Path(__file__).resolve().parents[2]
FILE: Final = ROOT / "docs" / "codex-matrix.json"
PAGE: Final = ROOT / "docs" / "agents.md"
PACKAGE: Final = ROOT / "codex_proxy" / "agents" / "codex" / "tested.py"

BEGIN: Final = "<!-- releases: scripts/codex-matrix -->"
END: Final = "<!-- end -->"

Tests = Literal["all", "core", "proto"]


class LeftOut(msgspec.Struct, frozen=True):
    """Why tests were left out, and how many."""

    reason: str
    tests: int


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """The results of one release."""

    release: str
    source: str
    protocol: str
    """The protocol by which it is driven: `app-server` or `proto`."""
    tests: Tests
    """The tests that were run: all of tests/real, those of the core, or those of `codex proto`."""
    passed: int
    failed: tuple[str, ...]
    """The names of the tests that failed."""
    left_out: tuple[LeftOut, ...]
    off: dict[str, tuple[str, ...]]
    """The features that are off with it, each with what its schema lacks."""
    date: str
    seconds: int


def read() -> list[Result]:
    """Returns the results so far, oldest release first."""
    if not FILE.exists():
        return []
    return msgspec.json.decode(FILE.read_bytes(), type=list[Result])


def write(results: list[Result]) -> None:
    """Writes all three files."""
    ordered = sorted(results, key=lambda result: version_of(result.release))
    FILE.write_text(json.dumps(msgspec.to_builtins(ordered), indent=1, ensure_ascii=False) + "\n", "utf-8")
    PAGE.write_text(with_results(PAGE.read_text("utf-8"), ordered), "utf-8")
    PACKAGE.write_text(module(ordered), "utf-8")


def with_results(page: str, results: list[Result]) -> str:
    """Returns the page with the list of these results. Raises `ValueError` if it has no place for one."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{PAGE.name} has no {BEGIN} ... {END}")
    return f"{before}{BEGIN}\n{listing(results)}\n{END}{after}"


def listing(results: list[Result]) -> str:
    """Returns a line for each kind of tests with its releases, newest first, and what failed or is off with each."""
    groups = {tests: [each for each in reversed(results) if each.tests == tests] for tests in get_args(Tests)}
    return "\n".join(f"- {tests}: {', '.join(map(_release, group))}" for tests, group in groups.items())


def _release(result: Result) -> str:
    notes = [
        f"{title}: " + ", ".join(f"`{name}`" for name in names)
        for title, names in (("failed", result.failed), ("off", result.off))
        if names
    ]
    return f"{result.release} ({'; '.join(notes)})" if notes else result.release


def module(results: list[Result]) -> str:
    """Returns the module of the package that lists the tested releases."""
    rows = "\n".join(f'    "{each.release}": {len(each.failed)},' for each in results)
    return (
        '"""The releases of Codex with which this version was tested, '
        "and the number of tests that failed with each.\n\n"
        'Written by `scripts/codex-matrix`; docs/codex-matrix.json has all results.\n"""\n\n'
        "from collections.abc import Mapping\nfrom typing import Final\n\n"
        f"TESTED: Final[Mapping[str, int]] = {{\n{rows}\n}}\n"
    )
