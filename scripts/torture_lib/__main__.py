"""Attacks two servers at random, and counts findings after each round:

- crossed: an answer with the nonce of another request, or with other words than were asked for
- lost: something acknowledged that is now missing or different; a webhook that did not come within 12 s
- stuck: a request without an answer for 60 s; a turn or background response that does not end within 30 s
- leaked: more tasks, descriptors, threads or processes of the first server than after the first round
- wrong: an impossible status, a stream without its end, an `internal_error`
- held: the event loop was late by more than 100 ms of CPU time too often
- grown: the RAM grows by more than 30 MiB after the first third of the run

Exit codes: 0 if nothing was found, 1 if something was, 2 if a planted fault was not found.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import asyncpg

from scripts.torture_lib.plants import PLANTS
from scripts.torture_lib.torture import Torture
from tests import postgres


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/torture", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to attack (60)")
    parser.add_argument(
        "--seed", type=int, default=None, help="asks for the same again, as far as chance decides"
    )
    parser.add_argument(
        "--plant",
        choices=PLANTS,
        default="none",
        help="put this fault into the server; the run ends when it is found",
    )
    parser.add_argument(
        "--database",
        action="store_true",
        help="attack two servers with one PostgreSQL, all three of which are killed",
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="write the figures there")
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else int(time.time())
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the servers end with this program
    began = time.monotonic()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="codex-proxy-torture-")))
        plant = PLANTS.get(options.plant)
        is_shared = options.database or (plant is not None and plant.database)
        settings = () if plant is None else plant.database_settings
        database = stack.enter_context(_database(folder, settings)) if is_shared else None
        torture = Torture(folder, options.seconds, seed, options.plant, database)
        asyncio.run(torture.run())
    report = torture.report
    if options.json is not None:
        options.json.write_text(json.dumps(report.figures(), indent=2) + "\n", "utf-8")
    print("\n".join(report.lines()))
    if options.plant != "none":
        said = "was found" if torture.has_found_plant else "was NOT found"
        print(f"the planted fault {options.plant} {said}, after {time.monotonic() - began:.0f} s in all")
        sys.exit(1 if torture.has_found_plant else 2)
    sys.exit(1 if any(report.findings.values()) else 0)


@contextmanager
def _database(folder: Path, settings: Sequence[str]) -> Iterator[postgres.PostgresServer]:
    empty = folder / "empty-cluster"
    empty.mkdir()
    os.environ[postgres.EMPTY_CLUSTER] = str(empty)
    folder.chmod(0o755)  # PostgreSQL runs as another user
    with postgres.server() as server:
        for each in settings:  # also for the server that is started again
            asyncio.run(_set(server.url, each))
        if settings:
            server.stop()
            server.start()
        yield server


async def _set(url: str, setting: str) -> None:
    connection = await asyncpg.connect(url)
    await connection.execute(f"ALTER SYSTEM SET {setting}")
    await connection.close()


if __name__ == "__main__":
    main()
