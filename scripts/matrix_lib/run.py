"""Runs the tests with one release, and reads their report."""

from __future__ import annotations

import asyncio
import datetime
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final
from xml.etree import ElementTree

from codex_proxy.agents.codex.codex_setup import speaks_proto
from codex_proxy.agents.codex_app_server.binary_check import ask_binary
from codex_proxy.core.faults import Fault
from scripts.matrix_lib.releases import source_of
from scripts.matrix_lib.results import ROOT, LeftOut, Result, Tests

FILES: Final[Mapping[Tests, tuple[str, ...]]] = {
    "all": ("tests/real",),
    "core": (
        *("tests/real/test_app_server_protocol.py", "tests/real/test_plain_process.py"),
        "tests/real/test_sdk_answers.py",
        "tests/real/test_tool_loop.py::test_a_call_goes_to_the_client_and_its_output_to_the_model",
        "tests/real/test_tool_loop.py::test_a_loop_of_twenty_steps_ends_with_the_answer",
    ),
    "proto": ("tests/real/test_proto.py",),
}
"""The tests in each set."""


def run(release: str, binary: Path, wanted: Tests, jobs: int, arguments: Sequence[str]) -> Result:
    """Runs the tests, which takes minutes, and reports the progress on stderr."""
    lacks, proto = asyncio.run(_ask(binary))
    tests: Tests = "proto" if proto else wanted
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        pytest = [sys.executable, "-m", "pytest", "--all", "-p", "no:cacheprovider", f"--junitxml={report}"]
        command = [*pytest, *FILES[tests], "-n", str(jobs), *arguments]
        environment = {**os.environ, "TEST_CODEX_PROTO" if proto else "TEST_CODEX": str(binary)}
        passed, failed, left_out = _outcome(command, report, environment)
        if failed:  # once more and alone, since a busy machine is no fault of the release
            recovered, failed, _ = _outcome([*pytest, *map(_id_of, failed)], report, environment)
            passed += recovered
    return Result(
        release=release,
        source=source_of(release),
        protocol="proto" if proto else "app-server",
        tests=tests,
        passed=passed,
        failed=failed,
        left_out=left_out,
        off=lacks,
        date=datetime.datetime.now(datetime.UTC).date().isoformat(),
        seconds=round(time.monotonic() - started),
    )


def _outcome(
    command: Sequence[str], report: Path, environment: Mapping[str, str]
) -> tuple[int, tuple[str, ...], tuple[LeftOut, ...]]:
    """Runs pytest, and reads its report."""
    subprocess.run(command, cwd=ROOT, env=environment, stdout=sys.stderr, check=False)
    return read_report(report)


def _id_of(name: str) -> str:
    """Returns the id of a test for pytest, from its name in a result."""
    module, _, test = name.partition("::")
    return f"tests/real/{module}.py::{test}"


async def _ask(binary: Path) -> tuple[dict[str, tuple[str, ...]], bool]:
    """Returns what the release lacks for which feature, and whether only `codex proto` can drive it. Raises `Fault` if
    nothing can.
    """
    with tempfile.TemporaryDirectory() as folder:
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "CODEX_HOME": folder}
        try:
            contract = (await ask_binary(str(binary), folder, environment)).contract
        except Fault:
            if not await speaks_proto(str(binary), environment):
                raise
            return {}, True
        return contract.missing_features, False


def read_report(report: Path) -> tuple[int, tuple[str, ...], tuple[LeftOut, ...]]:
    """Returns how many tests passed, the names of those that failed, and why others were left out."""
    passed, failed, reasons = 0, list[str](), Counter[str]()
    for case in ElementTree.parse(report).iter("testcase"):
        name = f"{(case.get('classname') or '').rpartition('.')[2]}::{case.get('name')}"
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            failed.append(name)
        elif skipped is not None:
            reasons[skipped.get("message") or ""] += 1
        else:
            passed += 1
    left_out = tuple(LeftOut(reason, count) for reason, count in sorted(reasons.items()))
    return passed, tuple(dict.fromkeys(failed)), left_out
