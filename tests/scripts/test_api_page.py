"""docs/api.md describes the same endpoints as the OpenAPI document, and every header of this server."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codex_proxy.http.endpoints import ENDPOINTS
from scripts import gen_api

ROOT = Path(__file__).parents[2]


@pytest.mark.part("machines")
def test_the_page_is_current() -> None:
    assert gen_api.TARGET.read_text("utf-8") == gen_api.page(), "run scripts/gen_api.py"


def test_every_operation_but_those_of_the_page_has_a_section_in_one_chapter() -> None:
    sections = re.findall(r"^### `(\S+) (\S+)`$", gen_api.page(), re.MULTILINE)
    assert sorted(sections) == sorted(
        (each.method, f"/v1{each.path}" if each.versioned else each.path)
        for each in ENDPOINTS
        if not each.path.startswith("/ui/")
    )


def test_every_header_of_an_answer_in_the_document_is_in_the_table_of_headers() -> None:
    paths = gen_api.whole_document()["paths"].values()
    operations = [each for path in paths for each in path.values() if "responses" in each]
    answers = [answer for operation in operations for answer in operation["responses"].values()]
    ours = {name for answer in answers for name in answer.get("headers", {}) if name.startswith("x-")}
    listed = {name.strip("`") for names, _ in gen_api.ANSWERED for name in names.split(", ")}
    assert (ours - listed, len(ours) >= 10) == (set(), True)


def test_every_header_of_this_server_is_on_the_page() -> None:
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "codex_proxy" / "http").rglob("*.py"))
    ours = set(re.findall(r'"(x-codex-[a-z-]+)"', source, re.IGNORECASE))
    page = gen_api.page().lower()
    assert {name for name in ours if f"`{name.lower()}`" not in page} == set()
    assert len(ours) >= 5
