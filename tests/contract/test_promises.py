"""What SECURITY.md, docs/contract.md and docs/wire-rules.md promise has tests: the files beside this one name them."""

from __future__ import annotations

import ast
import re
import tomllib
from functools import cache
from pathlib import Path

import pytest

from tests.contract.absent import OF_ABSENT_PARTS
from tests.contract.statements import statements
from tests.syntax import parse

ROOT = Path(__file__).parents[2]
FILES = {
    "SECURITY.md": "security.toml",
    "docs/contract.md": "contract.toml",
    "docs/wire-rules.md": "wire_rules.toml",
}

Promises = dict[str, dict[str, list[str]]]
"""The tests of each promise, by the heading or row of the page and the promise (of the contract: its first words)."""


def page_of(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def promises_of(page: str) -> Promises:
    return tomllib.loads((Path(__file__).parent / FILES[page]).read_text("utf-8"))


@cache
def functions_of(file: str) -> frozenset[str]:
    """The names of the functions of a module; empty if there is none."""
    path = ROOT / file
    body = parse(path.read_text("utf-8")).body if path.is_file() else []
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def without_test(promises: Promises) -> list[str]:
    """What is wrong with the tests that are named: a promise that names none, or a test that is not there."""
    found = []
    for promise, tests in (each for row in promises.values() for each in row.items()):
        found += [] if tests else [f"no test: {promise}"]
        for test in tests:
            file, _, name = test.partition("::")
            if file.startswith(OF_ABSENT_PARTS):
                continue
            if not name.startswith("test_") or name not in functions_of(file):
                found.append(f"no such test: {test}")
    return found


def unlike(page: str, promises: Promises) -> list[str]:
    """The statements of a page without a promise of the same beginning, and the other way round."""
    found = []
    on_page = statements(page)
    for heading in {**on_page, **promises}:
        texts, keys = on_page.get(heading, []), promises.get(heading, {})
        found += [text for text in texts if sum(text.startswith(key) for key in keys) != 1]
        found += [key for key in keys if sum(text.startswith(key) for text in texts) != 1]
    return found


@pytest.mark.parametrize("page", FILES)
def test_every_promise_has_tests_and_they_exist(page: str) -> None:
    assert without_test(promises_of(page)) == []


@pytest.mark.parametrize("page", ["docs/contract.md", "docs/wire-rules.md"])
def test_every_statement_of_the_contract_is_a_promise(page: str) -> None:
    assert unlike(page_of(page), promises_of(page)) == []


def test_every_row_of_the_security_page_has_promises() -> None:
    defended, _, rest = (
        page_of("SECURITY.md").partition("\n## What is defended\n")[2].partition("\n## What is not")
    )
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|", defended + rest, re.MULTILINE)
    assert list(promises_of("SECURITY.md")) == rows
    assert all(promises_of("SECURITY.md").values())


def test_a_system_of_the_security_page_has_a_word_in_every_row() -> None:
    section = page_of("SECURITY.md").partition("\n## Systems\n")[2]
    rows = [line.strip("|").split("|") for line in section.splitlines() if line.startswith("|")]
    assert len(rows) > 6
    assert all(len(row) == 4 and all(map(str.strip, row)) for row in rows[2:])


def test_a_promise_without_a_test_is_found() -> None:
    here = "tests/contract/test_promises.py"
    wrong = {
        "row": {
            "a": [],
            "b": [f"{here}::test_gone"],
            "c": ["tests/gone.py::test_a"],
            "d": [f"{here}::page_of"],
        }
    }
    right = {"row": {"a": [f"{here}::test_a_promise_without_a_test_is_found"]}}
    assert len(without_test(wrong)) == 4
    assert without_test(right) == []


@pytest.mark.parametrize(
    ("page", "keys"),
    [
        ("## A\n\n- One rule\n  in two lines.\n- Another one.\n", ["One rule"]),
        ("## A\n\nA text.\n\n| head | head |\n| --- | --- |\n| row | cell |\n", ["A text."]),
        ("## A\n\n1. One.\n\nText:\n", ["One.", "Text"]),
        ("## A\n\n- Same rule.\n- Same rules.\n", ["Same"]),
    ],
)
def test_a_statement_without_a_promise_is_found(page: str, keys: list[str]) -> None:
    assert unlike(page, {"A": {key: ["tests/a.py::test_a"] for key in keys}}) != []


def test_a_statement_is_a_point_a_row_or_a_paragraph() -> None:
    page = "# P\n\nIntroduction.\n\n## A\n\nA text\nin two lines.\n\nThese:\n\n- one,\n  long\n- two\n\n### B\n\n"
    assert statements(page + "| h | h |\n| --- | --- |\n| a | b |\n1. three\n") == {
        "A": ["A text in two lines.", "one, long", "two"],
        "B": ["a | b", "three"],
    }
