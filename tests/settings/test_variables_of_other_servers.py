"""A variable of the server that this one replaces is answered with today's name, as docs/migration.md has it."""

from __future__ import annotations

import re
from pathlib import Path

from codex_proxy.settings.load import OF_OTHER_SERVERS, unknown_variables

MIGRATION = Path(__file__).parents[2] / "docs" / "migration.md"


def test_a_renamed_variable_is_named_by_the_page_of_migration() -> None:
    page = MIGRATION.read_text()
    for old, hint in OF_OTHER_SERVERS.items():
        (new,) = re.findall(r"`(\w+)`", hint)
        (line,) = (line for line in page.splitlines() if line.startswith(f"- `{old}"))
        assert f"`{new}" in line
        assert unknown_variables({old: "1"}) == {old: hint}


def test_a_misspelled_variable_is_still_answered_with_a_similar_one() -> None:
    assert unknown_variables({"PROXY_METRIC": "1"}) == {"PROXY_METRIC": "is `PROXY_METRICS` meant?"}
