"""What code and tests cite of the contract and the wire rules is a section of those pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.contract.test_links import PAGES, ROOT, anchors

CITED = re.compile(r"\bdocs/(contract|wire-rules)\.md#([\w-]+)")
NOWHERE = re.compile(r"\bseeds?(?:'s)?\s+0\d\d|OpenAI's\s+wire\s+rules", re.IGNORECASE)
"""Documents that a reader of this repository does not have."""

SOURCES = sorted(
    path
    for folder in ("codex_proxy", "fake_proto", "tests", "scripts", "examples", "test-results", ".ci")
    for path in (ROOT / folder).rglob("*")
    if path.is_file() and "__pycache__" not in path.parts and "recordings" not in path.parts
)


def text_of(path: Path) -> str:
    return path.read_text("utf-8", "replace")


@pytest.mark.parametrize("page", ["contract", "wire-rules"])
def test_every_section_that_is_cited_exists(page: str) -> None:
    there = anchors(ROOT / "docs" / f"{page}.md")
    cited = [
        (str(path.relative_to(ROOT)), anchor)
        for path in SOURCES
        if path.suffix == ".py" and path != Path(__file__)
        for named, anchor in CITED.findall(text_of(path))
        if named == page
    ]
    assert len(cited) > 10
    assert [each for each in cited if each[1] not in there] == []


def test_nothing_is_cited_that_is_not_in_the_repository() -> None:
    assert [str(path.relative_to(ROOT)) for path in (*SOURCES, *PAGES) if NOWHERE.search(text_of(path))] == []
