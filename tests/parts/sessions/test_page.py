"""What docs/agents-api.md says in tables and numbers is the code's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.parts.sessions.service import MAX_AT_WORK
from codex_proxy.parts.sessions.state import MAX_QUEUED
from codex_proxy.parts.sessions.stream import MAX_BEHIND
from codex_proxy.parts.sessions.streams import MAX_STREAMS
from codex_proxy.parts.sessions.wire import MAX_TOOL_BYTES
from codex_proxy.surfaces.errors import INVALID_BETA, row_of

PAGE = (Path(__file__).parents[3] / "docs" / "agents-api.md").read_text()


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def test_the_page_has_the_errors_that_differ_from_those_of_chat_completions() -> None:
    said = set(re.findall(r"\| (\d{3}) \| `(\w+)`", section("Errors")))
    rows = {
        (kind, row_of(Failure(kind, ""), "agents"), row_of(Failure(kind, ""), "chat")) for kind in FaultKind
    }
    others = {(str(row.status), row.type) for _, row, chat in rows if row != chat}
    assert others <= said
    known = {(str(row.status), row.type) for _, row, _ in rows}
    assert said - {("400", INVALID_BETA)} <= known


@pytest.mark.parametrize(
    "text",
    [
        f"Up to {MAX_QUEUED} batches",
        f"At most {MAX_AT_WORK} sessions",
        f"{MAX_STREAMS} streams of a key",
        f"{MAX_BEHIND >> 20} MiB behind",
        f"tools have {MAX_TOOL_BYTES >> 20} MiB",
    ],
)
def test_the_page_has_the_limits_of_the_code(text: str) -> None:
    assert text in PAGE


def test_the_reason_for_a_missing_beta_header_is_a_type_of_its_own() -> None:
    failure = Failure(FaultKind.INVALID_REQUEST, "", code=INVALID_BETA)
    assert row_of(failure, "agents")[:3] == (400, INVALID_BETA, INVALID_BETA)
