"""docs/api.md says what is served: it is the document in words, and names every header of ours."""

from __future__ import annotations

import re
from pathlib import Path

from codex_proxy.http.endpoints import ENDPOINTS
from codex_proxy.http.openapi.document import document
from scripts import gen_api

ROOT = Path(__file__).parents[2]


def test_the_page_is_current() -> None:
    assert gen_api.TARGET.read_text("utf-8") == gen_api.page(), "run scripts/gen_api.py"


def test_every_operation_has_a_section_in_one_chapter() -> None:
    sections = re.findall(r"^### `(\S+) (\S+)`$", gen_api.page(), re.MULTILINE)
    assert sorted(sections) == sorted(
        (each.method, f"/v1{each.path}" if each.versioned else each.path) for each in ENDPOINTS
    )


def test_every_header_that_the_document_tells_of_a_reply_is_among_those_of_replies() -> None:
    paths = document(ENDPOINTS, max_choices=5)["paths"].values()
    operations = [each for path in paths for each in path.values() if "responses" in each]
    replies = [reply for operation in operations for reply in operation["responses"].values()]
    ours = {name for reply in replies for name in reply.get("headers", {}) if name.startswith("x-codex-")}
    told = {name.strip("`") for names, _ in gen_api.TOLD for name in names.split(", ")}
    assert (ours - told, len(ours) >= 7) == (set(), True)


def test_every_header_of_ours_is_on_the_page() -> None:
    source = "\n".join(path.read_text("utf-8") for path in (ROOT / "codex_proxy" / "http").rglob("*.py"))
    ours = set(re.findall(r'"(x-codex-[a-z-]+)"', source, re.IGNORECASE))
    page = gen_api.page().lower()
    assert {name for name in ours if f"`{name.lower()}`" not in page} == set()
    assert len(ours) >= 5
