"""What `scripts/codex-matrix` has written and is committed fits together."""

from __future__ import annotations

import importlib

from codex_proxy.agents.codex import tested
from scripts.matrix_lib import results
from scripts.matrix_lib.releases import NPM, PYPI, RELEASES, source_of, version_of
from scripts.matrix_lib.results import module, with_results
from scripts.matrix_lib.run import FILES


def test_what_is_committed_is_written_from_one_result() -> None:
    committed = results.read()
    assert len(committed) >= 10
    assert {"0.42.0", "0.163.0", "0.169.0"} <= {each.release for each in committed}
    assert with_results(results.PAGE.read_text("utf-8"), committed) == results.PAGE.read_text("utf-8")
    assert module(committed) == results.PACKAGE.read_text("utf-8")
    importlib.reload(tested)
    assert list(tested.TESTED) == [each.release for each in committed]


def test_every_release_that_is_listed_has_a_source_and_every_test_a_file() -> None:
    assert list(RELEASES) == sorted({*PYPI, *NPM}, key=version_of)
    assert all(source_of(release) == "pypi" for release in PYPI)
    assert all(source_of(release) == "npm" for release in NPM)
    assert [
        file
        for files in FILES.values()
        for file in files
        if not (results.ROOT / file.partition("::")[0]).exists()
    ] == []
