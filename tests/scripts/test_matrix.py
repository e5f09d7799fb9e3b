"""scripts/codex-matrix: what it reads, what it writes, and that what is committed fits together."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from codex_proxy.agents.codex import tested
from scripts.matrix_lib import results
from scripts.matrix_lib.releases import NPM, PYPI, RELEASES, source_of, version_of
from scripts.matrix_lib.results import LeftOut, Result, module, table, with_table
from scripts.matrix_lib.run import FILES, read_report
from scripts.matrix_lib.schemas import cut_down
from tests.codex_schemas import NEWEST, schema_file

REPORT = """<testsuites><testsuite>
<testcase classname="tests.real.test_a" name="test_works" />
<testcase classname="tests.real.test_a" name="test_breaks[x]"><failure message="no">...</failure></testcase>
<testcase classname="tests.real.test_a" name="test_is_off"><skipped message="before 0.154: why" /></testcase>
<testcase classname="tests.real.test_b" name="test_is_off"><skipped message="before 0.154: why" /></testcase>
<testcase classname="tests.real.test_b" name="test_cannot_start"><error message="no">...</error></testcase>
</testsuite></testsuites>"""


def result(release: str, **more: object) -> Result:
    given = {
        "source": "pypi",
        "protocol": "app-server",
        "tests": "core",
        "passed": 3,
        "failed": (),
        "left_out": (),
        "off": {},
        "date": "2026-11-22",
        "seconds": 9,
    }
    return Result(release=release, **(given | more))  # type: ignore[arg-type]


def test_a_report_is_read_by_what_became_of_each_test(tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    report.write_text(REPORT)
    passed, failed, left_out = read_report(report)
    assert passed == 1
    assert failed == ("test_a::test_breaks[x]", "test_b::test_cannot_start")
    assert left_out == (LeftOut("before 0.154: why", 2),)


def test_the_table_has_the_newest_release_first_and_says_what_failed() -> None:
    old = result(
        "0.133.0", failed=("test_a::test_b",), left_out=(LeftOut("it is old", 4),), off={"usage": ("x",)}
    )
    text = table([old, result("0.169.0")])
    rows = [line for line in text.splitlines() if line.startswith("| 0.")]
    assert rows == [
        "| 0.169.0 | `codex app-server` | core | 3 | 0 | 0 | nothing | 2026-11-22 |",
        "| 0.133.0 | `codex app-server` | core | 3 | 1 | 4 | `usage` | 2026-11-22 |",
    ]
    assert "- 0.133.0: `test_a::test_b`" in text


def test_the_table_takes_the_place_of_the_one_before() -> None:
    page = f"Before.\n{results.BEGIN}\nold\n{results.END}\nBehind.\n"
    written = with_table(page, [result("0.169.0")])
    assert "old" not in written
    assert with_table(written, [result("0.169.0")]) == written
    with pytest.raises(ValueError, match="has no"):
        with_table("no place", [])


def test_what_is_committed_is_written_from_one_result() -> None:
    committed = results.read()
    assert len(committed) >= 10
    assert {"0.42.0", "0.163.0", "0.169.0"} <= {each.release for each in committed}
    assert with_table(results.PAGE.read_text("utf-8"), committed) == results.PAGE.read_text("utf-8")
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


def test_a_schema_that_is_cut_down_already_stays_as_it_is() -> None:
    text = schema_file(NEWEST).read_text()
    assert cut_down(cut_down(text.encode()).encode()) == cut_down(text.encode())
