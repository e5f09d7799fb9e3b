"""`scripts/bench` runs: what its figures are is not for a test to say."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.bench_lib.__main__ import merged
from scripts.bench_lib.figures import Figure, quantile, table
from tests.scripts.checkout import ROOT
from tests.waiting import PATIENCE


@pytest.mark.exhaustive
@pytest.mark.real
def test_a_quick_run_gives_a_figure_for_everything(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench_lib", "--quick", "--json", str(file)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    figures = json.loads(file.read_text())["figures"]
    # The last one wants programs that are not in the locked packages.
    assert {figure["row"] for figure in figures} - {"10"} == set("123456789")
    assert all(figure["value"] or figure["ratio"] > 0 for figure in figures)
    assert len(done.stdout.splitlines()) == len(figures) + 1


@pytest.mark.exhaustive
def test_figures_that_mean_nothing_are_not_saved() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "scripts.bench_lib", "--quick", "--save"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=4 * PATIENCE,
    )
    assert done.returncode == 2
    assert "are not saved" in done.stderr


def test_rows_that_are_measured_anew_take_the_place_of_the_saved_ones() -> None:
    saved = {
        "python": "1",
        "load": {"1": [0.1, 0.2], "2": [0.3, 0.4]},
        "figures": [{"row": "1"}, {"row": "2"}],
    }
    new = {"python": "2", "load": {"1": [5.0, 6.0]}, "figures": [{"row": "1", "what": "new"}]}
    both = merged(saved, new)
    assert both["figures"] == [{"row": "1", "what": "new"}, {"row": "2"}]
    assert both["load"] == {"1": [5.0, 6.0], "2": [0.3, 0.4]}
    assert both["python"] == "2"


def test_a_quantile_is_a_sample() -> None:
    samples = [float(number) for number in range(100, 0, -1)]
    assert quantile(samples, 0.5) == 51
    assert quantile(samples, 0.99) == 100
    assert quantile([7.0], 0.99) == 7


def test_the_table_has_a_line_per_figure_under_its_head() -> None:
    figure = Figure("2", "deltas", "the loop", 0.4321, ">= 0.4", 5)
    head, line = table([figure]).splitlines()
    assert head.split()[:2] == ["row", "what"]
    assert line.split() == ["2", "deltas", "the", "loop", "0.43", ">=", "0.4", "5"]


def test_a_figure_without_a_ratio_has_its_value() -> None:
    figure = Figure("3", "memory", "", None, "<= 100 KB", 5, "40 KB")
    _, line = table([figure]).splitlines()
    assert line.split() == ["3", "memory", "40", "KB", "<=", "100", "KB", "5"]
    assert figure.as_json()["ratio"] is None
