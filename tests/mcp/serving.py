"""An MCP server (`program.py`) for tests, a certificate for one, and a clock that the test sets."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.missing import require

PROGRAM = str(Path(__file__).with_name("program.py"))


class ManualClock:
    """A clock that stands still until the test changes `now`."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def epoch(self) -> float:
        return self.now


@contextmanager
def web_server(transport: str, *options: str) -> Iterator[tuple[int, subprocess.Popen[str]]]:
    """Runs the test server over HTTP. Yields its port and its process."""
    require("mcp")
    process = subprocess.Popen(
        [sys.executable, PROGRAM, transport, *options], stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
