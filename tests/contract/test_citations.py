"""What code and tests cite of the contract, the wire rules and the Messages API is a section of those pages."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.contract.test_links import ROOT, anchors

CITED = re.compile(r"\bdocs/(contract|messages|wire-rules)\.md#([\w-]+)")

SOURCES = sorted(
    path
    for folder in ("codex_proxy", "fake_proto", "tests", "scripts", "examples")
    for path in (ROOT / folder).rglob("*.py")
)


@pytest.mark.parametrize("page", ["contract", "messages", "wire-rules"])
def test_every_section_that_is_cited_exists(page: str) -> None:
    there = anchors(ROOT / "docs" / f"{page}.md")
    cited = [
        (str(path.relative_to(ROOT)), anchor)
        for path in SOURCES
        if path != Path(__file__)
        for named, anchor in CITED.findall(path.read_text("utf-8"))
        if named == page
    ]
    assert cited
    assert [each for each in cited if each[1] not in there] == []
