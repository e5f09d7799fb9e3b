"""docs/agents.md says what the agents declare, and which releases of Codex are taken."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

import pytest

from codex_proxy.agent_choice import FAKE_CAPABILITIES, PROTO_CAPABILITIES
from codex_proxy.agents.base import Capability
from codex_proxy.agents.codex_app_server.launch import Dialect, Version, refusal
from codex_proxy.runs.app_server_agent import AppServerAgent

PAGE = (Path(__file__).parents[2] / "docs" / "agents.md").read_text("utf-8")


def rows(title: str) -> list[list[str]]:
    """The cells of a section's table, without its head."""
    section = PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.split("\n") if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_the_table_of_capabilities_is_what_agents_declare() -> None:
    app_server = AppServerAgent.capabilities
    declared = (app_server, PROTO_CAPABILITIES, FAKE_CAPABILITIES, app_server)
    found = {row[0].strip("`"): row[2:] for row in rows("Capabilities")}
    assert found == {
        name: ["yes" if name in able else "no" for able in declared] for name in get_args(Capability)
    }


@pytest.mark.parametrize("dialect", get_args(Dialect))
def test_the_releases_on_the_page_are_those_that_are_taken(dialect: Dialect) -> None:
    (taken,) = [row[1] for row in rows("Releases") if row[0] == f"`{dialect}`"]
    first, end = (Version(*map(int, each.split("."))) for each in re.findall(r"\d+\.\d+\.\d+", taken))
    assert refusal(dialect, first) is None
    assert refusal(dialect, first._replace(minor=first.minor - 1)) is not None
    assert refusal(dialect, end._replace(minor=end.minor - 1, patch=99)) is None
    assert refusal(dialect, end) is not None
