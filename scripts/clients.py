"""Runs the clients of tests/clients against the fake agent, and writes docs/clients.json: of each that ran, its version
and what worked. `--install` installs them first, from their locks.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from tests.clients.running import CACHE, CLIENTS, Client, install, run_client
from tests.http.serving import fake_proxy

RESULTS: Final = Path(__file__).resolve().parent.parent / "docs" / "clients.json"


async def row_of(client: Client) -> dict[str, Any] | None:
    """Runs one client. Returns its row; None if it is not installed or did not run."""
    if client.missing:
        print(f"{client.name}: {client.missing}", file=sys.stderr)
        return None
    with tempfile.TemporaryDirectory() as folder:
        home, own = Path(folder) / "home", Path(folder) / "proxy"
        home.mkdir()
        own.mkdir()
        async with fake_proxy(own) as proxy:
            try:
                told = await run_client(client, proxy.url, home)
                await proxy.settled()
            except (AssertionError, OSError, TimeoutError, ValueError) as error:
                print(f"{client.name}: {error}", file=sys.stderr)
                return None
    for name, result in told["results"].items():
        if result != "yes":
            print(f"{client.name}: {name}: {result}", file=sys.stderr)
    works = [name for name, result in told["results"].items() if result == "yes"]
    row = {"name": client.name, "client": client.title, "version": told["version"], "wire": client.wire}
    return {**row, "works": works}


async def main() -> int:
    parser = argparse.ArgumentParser(prog="scripts/clients", description=__doc__)
    parser.add_argument("--install", action="store_true", help="install the clients first, from their locks")
    parser.add_argument("--no-write", action="store_true", help="only print what came of them")
    parser.add_argument("names", nargs="*", help="default: all")
    given = parser.parse_args()
    os.environ["PATH"] = f"{CACHE / 'aider' / 'bin'}{os.pathsep}{os.environ['PATH']}"
    chosen = [client for client in CLIENTS if not given.names or client.name in given.names]
    if given.install:
        for client in chosen:
            if trouble := install(client):
                print(f"{client.name}: {trouble}", file=sys.stderr)
    rows = [row for client in chosen if (row := await row_of(client)) is not None]
    if given.no_write:
        print(json.dumps(rows, indent=1))
        return 0
    known = {row["name"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
    found = known | {row["name"]: row for row in rows}
    ordered = [found[client.name] for client in CLIENTS if client.name in found]
    RESULTS.write_text(json.dumps(ordered, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
