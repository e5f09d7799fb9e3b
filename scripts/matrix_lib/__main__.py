"""The command line of scripts/codex-matrix."""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from codex_proxy.agents.codex_app_server.binary_check import schema_of
from codex_proxy.core.faults import Fault
from scripts.matrix_lib import results
from scripts.matrix_lib.releases import RELEASES, install
from scripts.matrix_lib.run import run
from scripts.matrix_lib.schemas import cut_down

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "codex-proxy" / "releases"
SCHEMAS = results.ROOT / "tests" / "golden" / "schemas"


def main() -> int:
    arguments = _parser().parse_args()
    releases = arguments.releases or list(RELEASES)
    if arguments.install or arguments.schemas:
        for release in releases:
            binary = install(release, arguments.keep)
            if arguments.schemas:
                (SCHEMAS / f"{release}.json").write_text(asyncio.run(_schema(binary)), "utf-8")
            else:
                sys.stdout.write(f"{binary}\n")
        return 0
    if arguments.table:
        results.write(results.read())
        return 0
    return _run_all(releases, arguments)


def _run_all(releases: list[str], arguments: argparse.Namespace) -> int:
    """Runs release after release; each result is written at once. Returns 1 if something failed."""
    failures = 0
    for release in releases:
        known = {each.release: each for each in results.read()}
        wanted = "core" if arguments.core else "all"
        before = known.get(release)
        if before is not None and not arguments.again and before.tests in (wanted, "all", "proto"):
            sys.stderr.write(f"{release}: known since {before.date}, --again tries it anew\n")
            continue
        try:
            binary = install(release, arguments.keep)
            result = run(release, binary, wanted, arguments.jobs, arguments.pytest)  # type: ignore[arg-type]
        except (subprocess.CalledProcessError, FileNotFoundError, Fault) as error:
            sys.stderr.write(f"{release}: cannot be tried: {error}\n")
            failures += 1
            continue
        sys.stderr.write(
            f"{release}: {result.passed} passed, {len(result.failed)} failed, {result.seconds} s\n"
        )
        failures += len(result.failed)
        if not arguments.pytest:  # else it says nothing of the release
            results.write([*(each for each in results.read() if each.release != release), result])
    return 1 if failures else 0


async def _schema(binary: Path) -> str:
    with tempfile.TemporaryDirectory() as folder:
        environment = {"PATH": os.environ["PATH"], "HOME": folder, "CODEX_HOME": folder}
        return cut_down(await schema_of(str(binary), folder, environment))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="scripts/codex-matrix", description=__doc__)
    parser.add_argument("releases", nargs="*", metavar="RELEASE", help="default: all that are listed")
    parser.add_argument("--core", action="store_true", help="a part of the tests, for a quick look")
    parser.add_argument("--again", action="store_true", help="also releases that have a result")
    parser.add_argument("--jobs", type=int, default=1, help="tests at a time (default: 1)")
    parser.add_argument("--keep", type=Path, default=CACHE, help=f"where releases are installed ({CACHE})")
    parser.add_argument(
        "--schemas", action="store_true", help="write their schemas for tests, and run nothing"
    )
    parser.add_argument(
        "--install", action="store_true", help="install them, print their binaries, run nothing"
    )
    parser.add_argument("--table", action="store_true", help="write the table from the JSON, and run nothing")
    parser.add_argument(
        "--pytest", nargs=argparse.REMAINDER, default=[], help="arguments for pytest; nothing is written then"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
