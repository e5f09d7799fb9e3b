"""docs/agents.md says what the agents declare, and what can be off."""

from __future__ import annotations

import re
from pathlib import Path
from typing import get_args

from codex_proxy.agents.codex_app_server.contract import Feature
from codex_proxy.agents.registry import specs
from codex_proxy.agents.spec import AgentSpec
from codex_proxy.core.options import Capability
from codex_proxy.parts.acp.presets import PRESETS

ROOT = Path(__file__).parents[2]
LIST = "What each agent declares:"
PAGE = (ROOT / "docs" / "agents.md").read_text("utf-8")
SPECS = specs()


def rows(title: str) -> list[list[str]]:
    """The cells of a section's first table, without its head."""
    section = f"\n{PAGE}".partition(f"\n{title}\n")[2]
    lines = re.search(r"(?:^\|.*\n)+", section, re.MULTILINE)
    assert lines is not None
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[0].splitlines()]
    return cells[2:]


def column(spec: AgentSpec) -> str:
    """The head of the agent's column."""
    return spec.family or f"`{spec.name}`"


def test_agents_of_one_family_can_do_the_same() -> None:
    for family in {spec.family for spec in SPECS} - {""}:
        assert len({spec.capabilities for spec in SPECS if spec.family == family}) == 1


def test_an_agent_counts_as_confined_where_it_declares_a_sandbox() -> None:
    for spec in SPECS:
        assert spec.plain_only or spec.confined == ("sandbox" in spec.capabilities) or spec.family, spec.name


def test_the_list_of_agents_is_what_they_say_of_themselves() -> None:
    assert "\n".join(f"- `{spec.name}`: {spec.summary}" for spec in SPECS) in PAGE


def words_of(able: frozenset[Capability]) -> str:
    """The capabilities, or those that are missing if these are fewer."""
    has = [f"`{name}`" for name in get_args(Capability) if name in able]
    lacks = [f"`{name}`" for name in get_args(Capability) if name not in able]
    return ", ".join(has) if len(has) <= len(lacks) else f"all but {', '.join(lacks)}"


def test_the_page_has_the_capabilities_that_agents_declare() -> None:
    declared = {
        column(spec) + (f" ({variant})" if variant else ""): able
        for spec in SPECS
        for variant, able in (spec.variants or {"": spec.capabilities}).items()
    }
    agents: dict[str, list[str]] = {}
    for name, able in declared.items():
        agents.setdefault(words_of(able), []).append(name)
    lines = [f"- {', '.join(names)}: {words}" for words, names in agents.items()]
    found = PAGE.partition(f"\n{LIST}\n\n")[2].partition("\n\n")[0]
    assert found == "\n".join(lines)


def test_every_capability_is_explained() -> None:
    assert [row[0].strip("`") for row in rows("## Capabilities")] == list(get_args(Capability))


def test_every_feature_that_can_be_off_is_on_the_page() -> None:
    further = [name for alternative in get_args(Feature) for name in get_args(alternative)]
    listed = {row[0].strip("`") for row in rows("### Features that can be off")}
    assert listed - {"a capability"} == set(further) - set(get_args(Capability))


def test_the_table_of_programs_that_speak_acp_is_what_their_presets_say() -> None:
    found = {row[0].strip("`"): row[1:] for row in rows("### The programs")}
    assert list(found) == list(PRESETS)
    for name, preset in PRESETS.items():
        package, mode, usage, together, reopens, apart, largest = found[name]
        assert package == f"`{preset.package}` {preset.tested_release}"
        assert mode.startswith(f"`{preset.read_only[0].rpartition('#')[2]}`")
        assert usage == ("nothing" if preset.usage is None else f"`{preset.usage}`")
        assert together == ("no" if preset.one_call_at_a_time else "yes")
        assert reopens == ("yes" if preset.reopens else "no")
        assert apart == preset.apart
        assert largest == ("any" if preset.max_output is None else f"{preset.max_output // 1000} kB")
