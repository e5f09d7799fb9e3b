"""`scripts/bench`: measures the rows of the table, prints it, and writes the JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from scripts.bench_lib import (
    agents,
    first_token,
    litellm,
    lookup,
    neighbours,
    paced_streams,
    passing,
    recording,
    short_turns,
    snapshots,
    spawning,
    startup,
    steps,
    storing,
    stream,
    workers,
)
from scripts.bench_lib.figures import Figure, table

ROWS = {
    "1": first_token.rows,
    "2": stream.rows,
    "3": paced_streams.rows,
    "4": short_turns.rows,
    "5": startup.rows,
    "6": storing.rows,
    "7": steps.rows,
    "8": lookup.rows,
    "9": passing.rows,
    "10": agents.rows,
    "11": litellm.rows,
    "12": recording.rows,
    "13": workers.rows,
    "14": spawning.rows,
    "15": neighbours.rows,
    "16": snapshots.rows,
}
SAVED = Path(__file__).resolve().parents[2] / "docs" / "bench.json"


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/bench", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="only see that it runs; the figures mean nothing"
    )
    parser.add_argument("--save", action="store_true", help="write docs/bench.json, or only these rows of it")
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there")
    parser.add_argument(
        "--only", choices=sorted(ROWS, key=int), action="append", help="this row; may be given again"
    )
    options = parser.parse_args()
    if options.quick and options.save:
        parser.error("the figures of --quick mean nothing: they are not saved")
    figures: list[Figure] = []
    loads: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="codex-proxy-bench-") as folder:
        for name in options.only or sorted(ROWS, key=int):
            print(f"row {name} ...", file=sys.stderr)
            load = os.getloadavg()[0]
            figures += ROWS[name](Path(folder) / name, quick=options.quick)
            loads[name] = [round(each, 1) for each in (load, os.getloadavg()[0])]
    print(table(figures))
    document = {
        "python": platform.python_version(),
        "system": platform.system(),
        "cores": os.cpu_count(),
        "load": loads,
        "figures": [figure.as_json() for figure in figures],
    }
    if options.json is not None:
        write(options.json, document)
    if options.save:
        saved = json.loads(SAVED.read_text("utf-8")) if SAVED.exists() else document
        write(SAVED, merge(saved, document))


def merge(saved: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Returns the saved document, in which the rows that were measured anew replace the old ones."""
    kept = [figure for figure in saved["figures"] if figure["row"] not in new["load"]]
    figures = sorted([*kept, *new["figures"]], key=lambda figure: int(str(figure["row"])))
    return {
        **new,
        "load": dict(sorted({**saved["load"], **new["load"]}.items(), key=lambda each: int(each[0]))),
        "figures": figures,
    }


def write(file: Path, document: dict[str, Any]) -> None:
    file.write_text(json.dumps(document, indent=2) + "\n", "utf-8")


if __name__ == "__main__":
    main()
