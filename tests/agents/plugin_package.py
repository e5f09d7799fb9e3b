"""Modules that a test can name as plugins: written into a folder that Python imports from for as long as the test."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

GOOD = """
from codex_proxy.agent_plugin import AgentSpec, Check

async def make(context):
    raise RuntimeError("no agent comes of this")

async def check(context):
    return [Check(name="agent", status="ok", message="It is there.")]

SPEC = AgentSpec(name="parrot", summary="repeats", make=make, check=check)
TAKEN = AgentSpec(name="fake", summary="repeats", make=make, check=check)
NOTHING = 7
"""


def write_plugin(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, source: str = GOOD) -> None:
    """A module of this name, which can be imported until the test is over."""
    (folder / f"{name}.py").write_text(source)
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.delitem(sys.modules, name, raising=False)


def write_entry_point(folder: Path, name: str, reference: str) -> None:
    """What an installed package with such an agent leaves beside its code."""
    info = folder / "parrots-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: parrots\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[codex_proxy.agents]\n{name} = {reference}\n")
