"""A variable of the server that this one replaces is answered with today's name, as docs/migration.md has it."""

from __future__ import annotations

import re
from pathlib import Path

from codex_proxy.settings.fields import Settings
from codex_proxy.settings.load import OF_OTHER_SERVERS, unknown_variables

MIGRATION = Path(__file__).parents[2] / "docs" / "migration.md"


OTHERS = (
    MIGRATION.read_text()
    .partition("The others, and what replaces them:")[2]
    .partition("\n`codex-proxy doctor`")[0]
)
LINES = re.findall(r"^- ((?:`[^`]+`(?:, )?)+): (.*)$", OTHERS, re.MULTILINE)
"""The old names in each line of the page, and what it says of them."""


def test_every_variable_on_the_page_of_migration_is_answered_with_what_the_page_says() -> None:
    known = {f"PROXY_{name.upper()}" for name in Settings.model_fields}
    answered = set()
    for names, said in LINES:
        for old in re.findall(r"`(PROXY_\w+\*?)[`=]", names):
            if old in known:
                continue
            given = old.replace("*", "ANYTHING")
            hint = unknown_variables({given: "1"})[given]
            assert "is meant?" not in hint, old
            (new,) = re.findall(r"it is `(\w+)`", hint) or [""]
            assert said.startswith(f"`{new}") if new else not re.match(r"`PROXY_", said), old
            answered.add(old)
    assert answered == OF_OTHER_SERVERS.keys()
    assert len(answered) >= 17


def test_a_misspelled_variable_is_still_answered_with_a_similar_one() -> None:
    assert unknown_variables({"PROXY_METRIC": "1"}) == {"PROXY_METRIC": "is `PROXY_METRICS` meant?"}
