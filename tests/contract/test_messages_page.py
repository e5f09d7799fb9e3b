"""The tables of docs/messages.md are the code's."""

from __future__ import annotations

import re
from pathlib import Path

from codex_proxy.surfaces.messages.answer import STATUSES, STOP_REASONS, type_of

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "messages.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_page_has_every_kind_of_error_and_every_reason() -> None:
    said = re.findall(r"\| (\d{3}) `(\w+)`", section("Errors"))
    rows = {(str(status), type_of(status)) for status in STATUSES.values() if status not in (405, 409, 431)}
    assert {(status, kind) for status, kind in said if kind != "prompt"} == rows
    assert set(re.findall(r"\| `(\w+)`", section("Streams"))) == {"stop_reason", *STOP_REASONS}
