"""The tests that pages name as what shows their claims exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from tests.syntax import parse

ROOT = Path(__file__).parents[2]


@cache
def functions_of(file: str) -> frozenset[str]:
    """The names of the functions of a module."""
    body = parse((ROOT / file).read_text("utf-8")).body
    return frozenset(node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("page", ["docs/contract.md", "SECURITY.md"])
def test_every_test_that_a_page_names_exists(page: str) -> None:
    named = re.findall(r"`(tests/[^`]+)::([^`]+)`", (ROOT / page).read_text("utf-8"))
    assert named
    assert [f"{file}::{name}" for file, name in named if name not in functions_of(file)] == []
