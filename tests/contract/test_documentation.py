"""The tests that docs/contract.md names exist, and the parameters in docs/chat-completions.md are the code's."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from codex_proxy.surfaces.chat.answer import SAMPLING
from codex_proxy.surfaces.chat.wire import ChatRequest
from codex_proxy.surfaces.field_lists import Ignored
from tests.syntax import parse

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "chat-completions.md").read_text()
CONTRACT = (ROOT / "docs" / "contract.md").read_text()
NAMED = re.findall(r"`(tests/[^`]+)::([^`]+)`", CONTRACT)


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_every_test_that_the_page_names_exists() -> None:
    assert len(NAMED) > 60
    assert [(file, name) for file, name in NAMED if name not in defined_in(ROOT / file)] == []


@cache
def defined_in(file: Path) -> set[str]:
    """The tests of a module."""
    body = parse(file.read_text()).body
    return {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_the_parameters_that_are_ignored_are_all_named() -> None:
    paragraph = section("What is ignored").strip().split("\n\n")[1]
    ignored = [
        name
        for name, field in ChatRequest.model_fields.items()
        if name in SAMPLING or any(isinstance(mark, Ignored) for mark in field.metadata)
    ]
    assert sorted(re.findall(r"`(\w+)`", paragraph)) == sorted(ignored)
