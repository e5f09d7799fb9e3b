"""SECURITY.md claims nothing without a test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text("utf-8")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")
CLAIMS = ("What is defended", "What is not defended")


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


@pytest.mark.parametrize("title", CLAIMS)
def test_every_row_names_the_tests_that_show_it(title: str) -> None:
    claims = rows(title)
    assert len(claims) > 8
    for claim in claims:
        assert len(claim) == 3, claim
        assert TEST.findall(claim[2]), f"no test beside: {claim[0]}"
        assert not TEST.sub("", claim[2]).strip(), claim[2]


def test_every_system_has_its_word_in_every_row() -> None:
    systems = rows("Systems")
    assert len(systems) > 4
    assert all(len(row) == 4 and all(row) for row in systems)
