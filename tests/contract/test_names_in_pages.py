"""The settings, flags, headers, paths and error codes that the pages for users name are the server's."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from click import Command, Group, Option
from pydantic import BaseModel

from codex_proxy.cli import main
from codex_proxy.http.endpoints import ENDPOINTS
from codex_proxy.settings.fields import Settings
from scripts.gen_configuration import variable

ROOT = Path(__file__).parents[2]
DEVELOPERS = frozenset(
    (
        "adding-an-agent",
        "architecture",
        "contract",
        "decisions",
        "performance",
        "releasing",
        "testing",
        "wire-rules",
    )
)
PAGES = {page.stem: page.read_text("utf-8") for page in sorted((ROOT / "docs").glob("*.md"))}
USERS = {
    name: text for name, text in PAGES.items() if name not in DEVELOPERS and not name.startswith("migration")
} | {name: (ROOT / f"{name}.md").read_text("utf-8") for name in ("README", "SECURITY")}
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text("utf-8")


def each_page(**parts: str) -> list[Any]:
    """The pages, each as a parameter. `parts`: the part without whose code a page names what is nowhere, by page."""
    marks = {page.replace("_", "-"): pytest.mark.part(part) for page, part in parts.items()}
    return [pytest.param(page, marks=marks.get(page, ())) for page in USERS]


SOURCE = "\n".join(path.read_text("utf-8") for path in (ROOT / "codex_proxy").rglob("*.py"))
OTHERS_FLAGS = frozenset(
    (
        "--acp",
        "--all",
        "--cassettes",
        "--init",
        "--no-daemon",
        "--its-acp-flag",
        "--only",
        "--output-format",
        "--rm",
        "--strict",
        "--user",
        "--with-codex",
    )
)
"""Flags of other programs, and of this project's scripts."""


def inline(text: str) -> list[str]:
    """The texts in backticks, outside of code blocks."""
    return re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


def flags_of(command: Command) -> set[str]:
    """The long options of a command and of the commands below it."""
    own = {"--help"} | {
        name for option in command.params if isinstance(option, Option) for name in option.opts
    }
    below = command.commands.values() if isinstance(command, Group) else ()
    return own.union(*map(flags_of, below))


@pytest.mark.part("acp", "cassettes", "claude_code", "mcp", "upstream")
def test_every_setting_that_a_page_names_exists() -> None:
    known = {variable(name, field) for name, field in Settings.model_fields.items()}
    known |= {f"PROXY_{name.upper()}" for name in Settings.model_fields}
    for name, field in Settings.model_fields.items():
        if isinstance(field.default, BaseModel):
            known |= {f"PROXY_{name}_{key}".upper() for key in type(field.default).model_fields}
    named = {
        page: set(re.findall(r"\bPROXY_[A-Z][A-Z_]*[A-Z]\b(?![*_])", text)) for page, text in USERS.items()
    }
    assert {page: names - known for page, names in named.items() if names - known} == {}


@pytest.mark.part("clients", "terminal")
def test_every_flag_that_a_page_names_exists() -> None:
    known = flags_of(main) | OTHERS_FLAGS
    for page, whole in USERS.items():
        named = {word for text in inline(whole) for word in re.findall(r"(?:^|\s)(--[a-z][a-z-]+)", text)}
        assert named - known == set(), page


@pytest.mark.parametrize("page", each_page(cassettes="cassettes", agents_api="sessions"))
def test_every_header_of_this_server_that_a_page_names_exists(page: str) -> None:
    named = {
        name.lower() for name in re.findall(r"\bx-(?:codex|conc)-[a-z-]+[a-z]\b", USERS[page], re.IGNORECASE)
    }
    source = SOURCE.lower()
    assert {name for name in named if name not in source} == set()


@pytest.mark.parametrize("page", each_page(cassettes="cassettes"))
def test_every_error_code_that_a_page_names_exists(page: str) -> None:
    named = set(re.findall(r"\b[45]\d\d `([a-z]+(?:_[a-z]+)+)`", USERS[page]))
    assert {code for code in named if f'"{code}"' not in SOURCE} == set()


@pytest.mark.part("machines")
def test_every_path_that_a_page_names_is_served() -> None:
    served = {("/v1" if each.versioned else "") + each.path for each in ENDPOINTS}
    served |= {each.path for each in ENDPOINTS}
    named = {
        path
        for whole in USERS.values()
        for text in inline(whole)
        for path in re.findall(r"^(?:(?:GET|POST|DELETE|HEAD) )?(/(?:v1|api|ui)/[\w/{}.-]+)$", text)
    }
    assert {path for path in named if not any(f"{each}/".startswith(f"{path}/") for each in served)} == set()


def test_the_modules_that_the_map_of_the_code_names_exist() -> None:
    rows = re.findall(r"^\| `(codex_proxy\S*)`.*?\| (.*) \|$", CONTRIBUTING, re.MULTILINE)
    named = [Path(folder, word) for folder, text in rows for word in re.findall(r"`([a-z_]+)`", text)]
    assert Path("codex_proxy/surfaces/answers") in named
    assert [path for path in named if not (ROOT / path).is_dir() and not (ROOT / f"{path}.py").exists()] == []
