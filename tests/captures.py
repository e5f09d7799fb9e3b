"""The recordings of real agents in `tests/golden/recordings`: cassettes that have no request and no answer."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import msgspec

from codex_proxy.agents.dialect import Ended
from codex_proxy.cassettes.format import Capture, read_capture

FOLDER = Path(__file__).parent / "golden" / "recordings"


def names_of(dialect: str) -> list[str]:
    """Returns the names of all recordings of a dialect."""
    return sorted(path.stem for path in (FOLDER / dialect).glob("*.jsonl"))


@cache
def capture(dialect: str, name: str) -> Capture:
    """Returns a recording."""
    return read_capture(FOLDER / dialect / f"{name}.jsonl")


def lines_of(dialect: str, name: str) -> list[tuple[str, bytes]]:
    """Returns the lines of a recording, each with `to` if it was written to the program, or `from` if that said it."""
    lines = capture(dialect, name).sessions[0].lines
    return [(line.kind, line.value) for line in lines if line.kind in ("to", "from")]


def child(dialect: str, name: str) -> tuple[list[bytes], Ended]:
    """Returns what a program has printed, and how it ended."""
    printed = [line for kind, line in lines_of(dialect, name) if kind == "from"]
    ended = next(line.value for line in capture(dialect, name).sessions[0].lines if line.kind == "ended")
    return printed, msgspec.convert(ended, Ended)
