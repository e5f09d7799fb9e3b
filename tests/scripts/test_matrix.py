"""What `scripts/codex-matrix` has written and is committed fits together."""

from __future__ import annotations

import importlib

from codex_proxy.agents.codex import tested
from scripts.matrix_lib import results
from scripts.matrix_lib.results import module, with_results


def test_the_committed_files_are_written_from_one_result() -> None:
    committed = results.read()
    assert len(committed) >= 10
    assert {"0.42.0", "0.163.0", "0.169.0"} <= {each.release for each in committed}
    assert with_results(results.PAGE.read_text("utf-8"), committed) == results.PAGE.read_text("utf-8")
    assert module(committed) == results.PACKAGE.read_text("utf-8")
    importlib.reload(tested)
    assert list(tested.TESTED) == [each.release for each in committed]
