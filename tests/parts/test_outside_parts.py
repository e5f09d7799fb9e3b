"""A package of another author can be a part, by the same object `PART` and an entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

PATIENCE = 60
PARROTS = """
from codex_proxy.parts import Part

PART = Part(
    name="parrots",
    summary="a parrot that repeats",
    page="https://parrots.example",
    agents={"parrot": "parrots.agent:SPEC"},
    settings="parrots.settings:ParrotSettings",
    checks="parrots.agent:checks",
    server="parrots.agent:server_part",
)
OTHER_NAME = Part(name="parakeets", summary="others", page="")
TAKEN = Part(name="traces", summary="others", page="")
NO_SETTINGS = Part(name="parrots", summary="a parrot", page="", settings="parrots.nowhere:Settings")
NOTHING = 7
"""
SETTINGS = """
from pydantic import BaseModel, Field

class ParrotSettings(BaseModel):
    parrot_name: str = Field("Polly", description="name of the parrot")
"""
AGENT = """
from parrots.settings import ParrotSettings

from codex_proxy.agent_plugin import AgentSpec, Check
from codex_proxy.parts import own_settings

async def make(context):
    raise RuntimeError("no agent comes of this")

async def check(context):
    return [Check(name="agent", status="ok", message="It repeats.")]

async def checks(settings, environ):
    name = own_settings(settings, ParrotSettings).parrot_name
    return [Check(name="parrots", status="ok", message=f"The parrot is called {name}.")]

def server_part(settings, environ):
    return None

SPEC = AgentSpec(name="parrot", summary="repeats", make=make, check=check)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder of packages, as `pip install --target` would fill it."""
    package = tmp_path / "packages" / "parrots"
    package.mkdir(parents=True)
    for name, source in (("__init__", PARROTS), ("settings", SETTINGS), ("agent", AGENT)):
        (package / f"{name}.py").write_text(source)
    return package.parent


def declare(folder: Path, reference: str) -> None:
    info = folder / "parrots-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parrots\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[codex_proxy.parts]\nparrots = {reference}\n")


def checked(folder: Path, *arguments: str, **environment: str) -> dict[str, dict[str, str]]:
    """Runs `codex-proxy doctor` beside these packages, and returns its checks by name."""
    home = folder.parent / "home"
    home.mkdir(exist_ok=True)
    told = subprocess.run(
        [sys.executable, "-m", "codex_proxy", "doctor", "--json", *arguments],
        env={"PATH": os.defpath, "HOME": str(home), "PYTHONPATH": str(folder), **environment},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert told.stdout, told.stderr
    return {check["name"]: check for check in json.loads(told.stdout)["checks"]}


def test_a_part_of_another_package_has_agents_settings_and_checks(folder: Path) -> None:
    declare(folder, "parrots:PART")
    found = checked(folder, "--agent", "parrot", PROXY_PARROT_NAME="Coco")
    assert found["parrots"]["message"] == "The parrot is called Coco."
    assert found["agent"]["message"] == "It repeats."
    assert "part" not in found


@pytest.mark.parametrize(
    ("reference", "trouble"),
    [
        ("parrots:MISSING", "cannot be imported (AttributeError"),
        ("parrots:NO_SETTINGS", "cannot be imported (ModuleNotFoundError"),
        ("parrots:NOTHING", "is no `Part`"),
        ("parrots:OTHER_NAME", "is called parakeets"),
        ("parrots:TAKEN", "is called traces"),
    ],
)
def test_a_part_of_another_package_that_cannot_be_used_is_named_and_left_out(
    folder: Path, reference: str, trouble: str
) -> None:
    declare(folder, reference)
    found = checked(folder, "--agent", "fake")
    assert (found["part"]["status"], found["part"]["message"]) == (
        "warning",
        "The part parrots is not used.",
    )
    assert trouble in found["part"]["advice"]
    assert "parrots" not in found
