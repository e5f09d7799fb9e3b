"""SECURITY.md claims nothing without a test, and names no test that there is not."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.syntax import parse

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
CLAIMS = ("What is defended", "What is not defended")
NAMED = sorted(set(TEST.findall(PAGE)))


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@functools.cache
def defined_in(file: str) -> frozenset[str]:
    tree = parse((ROOT / file).read_text("utf-8"))
    return frozenset(
        node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    )


@pytest.mark.parametrize("title", CLAIMS)
def test_every_row_names_the_tests_that_show_it(title: str) -> None:
    claims = rows(title)
    assert len(claims) > 8
    for claim in claims:
        assert len(claim) == 3, claim
        assert TEST.findall(claim[2]), f"no test beside: {claim[0]}"
        assert not TEST.sub("", claim[2]).strip(), claim[2]


def test_every_test_that_the_page_names_exists() -> None:
    assert [(file, name) for file, name in NAMED if name not in defined_in(file)] == []


def test_every_system_has_its_word_in_every_row() -> None:
    systems = rows("Systems")
    assert len(systems) > 4
    assert all(len(row) == 4 and all(row) for row in systems)
