"""A package of another author can be a part, by the same object `PART`, once the settings name its agent."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from codex_proxy.agents.registry import chosen_spec
from codex_proxy.agents.spec import NoAgentError
from codex_proxy.app.server import make_server
from codex_proxy.commands.checks import machine_checks
from codex_proxy.settings.fields import Settings
from codex_proxy.settings.protected_paths import write_conflict
from tests.agents.plugin_package import GOOD, write_entry_point, write_plugin
from tests.http.serving import ENVIRONMENT

PARROTS = (
    GOOD
    + """
from codex_proxy.agents.fake.fake_setup import make
from codex_proxy.agent_plugin import Part
from codex_proxy.app.server_parts import ServerPart

class Parrots(ServerPart):
    def banner(self):
        return ["  PARROTS    one"]

async def checks(settings, environ):
    return [Check(name="parrots", status="ok", message="It has been fed.")]

def server_part(settings, environ):
    return Parrots()

FAKE = AgentSpec(name="parrot", summary="repeats", make=make, check=check)
PART = Part(
    name="parrots",
    agents={"parrot": "parrots:FAKE"},
    checks="parrots:checks",
    server="parrots:server_part",
)
OWN = Part(name="parrots", agents={"parrot": "parrots:OWN"})
BROKEN = Part(
    name="parrots",
    agents={"parrot": "parrots:FAKE"},
    checks="parrots:raising",
    server="parrots:nowhere",
)

async def raising(settings, environ):
    raise RuntimeError("it is ill")

EMPTY = Part(name="parrots")
"""
)


@pytest.fixture
def named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """Settings that name the agent of an installed package, which is a part."""
    write_plugin(tmp_path, monkeypatch, "parrots", PARROTS)
    write_entry_point(tmp_path, "parrot", "parrots:PART")
    return Settings(agent="parrot", workdir=tmp_path, state_dir=tmp_path / "state")


def test_the_agent_of_a_part_is_the_plugins(named: Settings) -> None:
    assert chosen_spec(named).name == "parrot"


async def test_a_plugins_part_has_checks_and_what_a_server_has_of_it(named: Settings) -> None:
    found = await machine_checks(named, ENVIRONMENT, runs=False)
    assert "It has been fed." in [check.message for check in found]
    server = await make_server(named, ENVIRONMENT)
    assert "  PARROTS    one" in [line for part in server.parts for line in part.banner()]


async def test_a_part_that_no_setting_names_is_not_imported(named: Settings) -> None:
    other = named.model_copy(update={"agent": "fake"})
    found = await machine_checks(other, ENVIRONMENT, runs=False)
    server = await make_server(other, ENVIRONMENT)
    assert "parrots" not in [check.name for check in found]
    assert "  PARROTS    one" not in [line for part in server.parts for line in part.banner()]
    assert "parrots" not in sys.modules


@pytest.mark.parametrize(
    ("reference", "text"),
    [
        *(("parrots:EMPTY", "nor a Part with agents"), ("parrots:NOTHING", "a value of the type int")),
        ("parrots:OWN", "a value of the type Part"),
    ],
)
def test_a_part_without_agents_is_refused_and_named(named: Settings, reference: str, text: str) -> None:
    with pytest.raises(NoAgentError, match=text):
        chosen_spec(named.model_copy(update={"agent": "auto", "agent_plugin": reference}))


async def test_an_error_in_a_plugins_part_is_named(named: Settings) -> None:
    broken = named.model_copy(update={"agent": "auto", "agent_plugin": "parrots:BROKEN"})
    messages = [check.message for check in await machine_checks(broken, ENVIRONMENT, runs=False)]
    assert any("The checks of the part parrots failed (RuntimeError: it is ill)" in text for text in messages)
    with pytest.raises(NoAgentError, match=r"parrots:nowhere .* failed \(AttributeError"):
        await make_server(broken, ENVIRONMENT)


def test_the_code_of_a_plugins_part_is_protected(
    named: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    write_plugin(elsewhere, monkeypatch, "parrot_agent", "from parrots import FAKE")
    source = PARROTS.replace('"parrots:FAKE"', '"parrot_agent:FAKE"')
    write_plugin(tmp_path, monkeypatch, "parrots", source)
    writes = named.model_copy(update={"workdir": elsewhere, "sandbox": "workspace-write"})
    assert "parrot_agent" in (write_conflict(writes, ENVIRONMENT) or "")
