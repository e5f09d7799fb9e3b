"""Links between the pages lead to files and headings that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.contract.absent import OF_ABSENT_PARTS

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("examples/*/*.md"),
        ROOT / "fake_proto" / "README.md",
    ]
)


def anchors(page: Path) -> set[str]:
    """What a link may name behind `#`: the headings as they are made into anchors."""
    headings = re.findall(r"^#+ (.+)$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8")):
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def test_the_index_leads_to_every_page_and_the_readme_to_the_index() -> None:
    index = ROOT / "docs" / "index.md"
    linked = {
        (index.parent / link).resolve() for link in re.findall(r"\]\(([^)\s#]+)\)", index.read_text("utf-8"))
    }
    pages = {page.resolve() for page in PAGES if "examples" not in page.parts}
    assert pages - linked == {index.resolve()}
    assert "](docs/index.md)" in (ROOT / "README.md").read_text("utf-8")


def test_the_map_has_a_row_for_every_package() -> None:
    packages = {path.parent.name for path in ROOT.glob("codex_proxy/*/__init__.py")}
    rows = re.findall(r"^\| `codex_proxy/(\w+)`", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.MULTILINE)
    assert set(rows) == packages


@pytest.mark.parametrize("page", ["CONTRIBUTING.md", "docs/adding-an-agent.md"])
def test_the_files_that_a_guide_names_are_there(page: str) -> None:
    named = re.findall(
        r"`((?:codex_proxy|docs|examples|fake_proto|scripts|tests)/[\w./-]+)`", (ROOT / page).read_text()
    )
    assert len(named) > 5
    assert [
        path
        for path in named
        if "NAME" not in path and not path.startswith(OF_ABSENT_PARTS) and not (ROOT / path).exists()
    ] == []
