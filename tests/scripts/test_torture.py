"""`scripts/torture` finds each fault that it can plant, for the right reason, and nothing in a server without one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from scripts.torture_lib.plants import PLANTS
from tests.postgres import programs

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 120
"""For how long a fault may hide. A run ends when it is found; most take half a minute."""
WELL_SECONDS = 100
"""How long a server without a fault is attacked: it takes nearly a minute until it needs no more RAM."""
BOUND = 280
"""Seconds for a run with its start and its end."""
HELD = 0.3
"""Seconds for which a busy machine may hold the loop. The planted fault does so for longer."""

pytestmark = [pytest.mark.exhaustive, pytest.mark.timeout(BOUND + 20)]


def torture(folder: Path, *flags: str, seconds: int = SECONDS) -> tuple[int, dict[str, Any], str]:
    """The exit code of a run, its figures and its output."""
    file = folder / "figures.json"
    argv = [
        sys.executable,
        "-m",
        "scripts.torture_lib",
        "--seconds",
        str(seconds),
        "--json",
        str(file),
        *flags,
    ]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=BOUND)
    assert file.exists(), done.stderr[-3000:]
    return done.returncode, json.loads(file.read_text()), done.stdout


@pytest.mark.parametrize("name", PLANTS)
def test_a_planted_fault_is_found(name: str, tmp_path: Path) -> None:
    if PLANTS[name].database:
        programs()
    code, figures, said = torture(tmp_path, "--plant", name)
    assert (code, PLANTS[name].is_found_in(figures)) == (1, True), said


@pytest.mark.parametrize("flags", [(), ("--database",)], ids=["alone", "two on a database"])
def test_nothing_is_found_in_a_server_without_a_planted_fault(flags: tuple[str, ...], tmp_path: Path) -> None:
    if flags:
        programs()
    _, figures, said = torture(tmp_path, *flags, seconds=WELL_SECONDS)
    found = {kind: figures[kind] for kind in ("crossed", "lost", "stuck", "leaked", "wrong", "grown")}
    assert not any(found.values()), said
    assert figures["loop_delay_p999"] < HELD, said
