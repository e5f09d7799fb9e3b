"""The recordings of real agents in `tests/golden/recordings`, with the lines of their programs: cassettes of version 1
that have no request and no answer.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from codex_proxy.agents.dialect import Ended
from codex_proxy.cassettes.format import Capture, CassetteHead, encode, read_capture
from codex_proxy.cassettes.old_format import BYTE_KINDS, OldLine
from codex_proxy.cassettes.pieces import group_similar_lines
from codex_proxy.core.json_values import is_json

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
    lines = capture(dialect, name).old_sessions[0].lines
    return [(line.kind, line.value) for line in lines if line.kind in ("to", "from")]


def child(dialect: str, name: str) -> tuple[list[bytes], Ended]:
    """Returns what a program has printed, and how it ended."""
    printed = [line for kind, line in lines_of(dialect, name) if kind == "from"]
    ended = next(line.value for line in capture(dialect, name).old_sessions[0].lines if line.kind == "ended")
    return printed, msgspec.convert(ended, Ended)


def text_of_capture(capture: Capture) -> bytes:
    """Returns the text of a recording's file."""
    lines = [line for group in group_similar_lines(_lines(capture)) for line in group.lines()]
    return b"\n".join([*lines, b'{"end":%d}\n' % len(lines)])


def _lines(capture: Capture) -> Iterator[bytes]:
    yield encode(CassetteHead(**{name: getattr(capture, name) for name in CassetteHead.__struct_fields__}))
    for session in capture.old_sessions:
        yield encode(msgspec.structs.replace(session, lines=[]))
        yield from map(_line, session.lines)


def _line(line: OldLine) -> bytes:
    kind, value = line.kind, line.value
    if kind not in BYTE_KINDS:
        return encode({"ms": line.ms, kind: value})
    written: Any
    if is_json(value):
        written = msgspec.Raw(msgspec.json.format(value, indent=-1) if b"\n" in value else value)
    else:
        try:
            kind, written = f"{kind}_text", value.decode()
        except UnicodeDecodeError:
            kind, written = f"{kind}_bytes", base64.b64encode(value).decode()
    return encode({"ms": line.ms, kind: written})
