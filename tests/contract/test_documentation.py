"""docs/chat-completions.md says nothing that is not so: its tests exist, its table of errors is the code's."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from codex_proxy.core.faults import Failure
from codex_proxy.surfaces.chat.answer import IGNORED
from codex_proxy.surfaces.errors import TABLE, row_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "chat-completions.md").read_text()
NAMED = re.findall(r"`(tests/\S+\.py)::(\w+)`", PAGE)


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    lines = [line for line in section(title).split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_sentence_of_the_contract_has_exactly_one_test_beside_it() -> None:
    sentences = [row for row in rows("The contract and its tests") if not row[0].startswith("**")]
    assert len(sentences) > 60
    for sentence, test in sentences:
        assert re.fullmatch(r"`tests/\S+\.py::test_\w+`", test), sentence


@pytest.mark.parametrize(("file", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_the_page_names_exists(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text())
    defined = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert name in defined


def test_the_table_of_errors_is_the_one_in_the_code() -> None:
    expected = []
    for kind in TABLE:
        row = row_of(Failure(kind=kind, message=""), "chat")
        code = f"`{row.code}`" if row.code else "(the field's own)"
        expected.append([f"`{kind}`", str(row.status), f"`{row.type}`", code])
    assert rows("Errors") == expected


def test_the_parameters_that_are_ignored_are_all_named() -> None:
    paragraph = section("What is ignored").strip().split("\n\n")[1]
    assert re.findall(r"`(\w+)`", paragraph) == list(IGNORED)
