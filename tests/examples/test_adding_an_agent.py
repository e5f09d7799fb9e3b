"""docs/adding-an-agent.md says what is true of the example and of the names for authors of agents."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import codex_proxy.agent_plugin

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "adding-an-agent.md").read_text("utf-8")
EXAMPLE = ROOT / "examples" / "oneshot_agent"


def test_the_modules_that_the_page_names_have_the_names_that_it_gives() -> None:
    section = PAGE.partition("| module | contains |")[2].partition("\n## ")[0]
    missing = []
    for line in section.splitlines():
        modules, _, holds = line.removeprefix("|").partition("|")
        found = [importlib.import_module(name) for name in re.findall(r"`(codex_proxy[\w.]+)`", modules)]
        names = re.findall(r"`(\w+)`", holds)
        missing += [name for name in names if not any(hasattr(module, name) for module in found)]
    assert missing == []


def test_every_name_for_authors_is_there() -> None:
    module = codex_proxy.agent_plugin
    assert [name for name in module.__all__ if not hasattr(module, name)] == []


def test_the_example_imports_nothing_but_the_modules_of_the_page() -> None:
    allowed = set(re.findall(r"`(codex_proxy\.[\w.]+)`", PAGE.partition("| module | contains |")[2]))
    for path in (EXAMPLE / "oneshot_agent").glob("*.py"):
        used = set(re.findall(r"^(?:from|import) (codex_proxy[\w.]*)", path.read_text("utf-8"), re.MULTILINE))
        assert used <= allowed, path


def test_the_spec_and_the_entry_point_on_the_page_are_those_of_the_example() -> None:
    spec = re.search(r"^SPEC = .*?^\)$", PAGE, re.MULTILINE | re.DOTALL)
    assert spec is not None
    assert spec[0] in (EXAMPLE / "oneshot_agent" / "spec.py").read_text("utf-8")
    entry = re.search(r"```toml\n(.*?)```", PAGE, re.DOTALL)
    assert entry is not None
    assert entry[1] in (EXAMPLE / "pyproject.toml").read_text("utf-8")
