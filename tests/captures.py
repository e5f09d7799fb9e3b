"""The recordings of real agents in `tests/golden/recordings`: what other clients have written to their programs, and
what the programs have said. A line that begins with `next` is the line before with another text.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from codex_proxy.agents.dialect import Ended
from codex_proxy.core.json_values import is_json

FOLDER = Path(__file__).parent / "golden" / "recordings"
BYTE_KINDS = ("to", "from")
"""The kinds of lines with bytes of the program; bytes that are no JSON stand in `KIND_text`, or in base64 in
`KIND_bytes`.
"""
STRING = rb'"[^"\\]*(?:\\.[^"\\]*)*"'


class CaptureLine(msgspec.Struct, frozen=True):
    ms: int
    kind: str
    value: Any
    """The program's line as bytes if the kind is in `BYTE_KINDS`, else the decoded JSON."""


class Capture(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    head: dict[str, Any]
    """The file's first line: the format, the agent's name and version, and in `settings` the program's arguments."""
    dialect: str
    lines: list[CaptureLine]


def names_of(dialect: str) -> list[str]:
    """Returns the names of all recordings of a dialect."""
    return sorted(path.stem for path in (FOLDER / dialect).glob("*.jsonl"))


@cache
def capture(dialect: str, name: str) -> Capture:
    """Returns a recording."""
    head, session, *lines, end = (FOLDER / dialect / f"{name}.jsonl").read_bytes().splitlines()
    assert msgspec.json.decode(end) == {"end": len(lines) + 2}
    assert msgspec.json.decode(session)["session"] == dialect
    return Capture(name=name, head=msgspec.json.decode(head), dialect=dialect, lines=list(_lines_of(lines)))


def _lines_of(lines: list[bytes]) -> Iterator[CaptureLine]:
    kind, value = "", b""
    for line in lines:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
        ms = msgspec.json.decode(fields.pop("ms"), type=int)
        [(name, raw)] = fields.items()
        base, _, form = name.partition("_")
        if name == "next":
            [(text_name, text)] = msgspec.json.decode(raw, type=dict[str, msgspec.Raw]).items()
            value = _with_text(value, text_name.encode(), bytes(text))
        elif base not in BYTE_KINDS:
            yield CaptureLine(ms, base, msgspec.json.decode(raw))
            continue
        elif form:
            said = msgspec.json.decode(raw, type=str)
            kind, value = base, said.encode() if form == "text" else base64.b64decode(said, validate=True)
        else:
            kind, value = base, bytes(raw)
        yield CaptureLine(ms, kind, value)


def _with_text(line: bytes, name: bytes, text: bytes) -> bytes:
    """Returns the line with another text, which is JSON, in its last field of this name."""
    start = line.rindex(b'"%b":"' % name) + len(name) + 3
    found = re.compile(STRING, re.DOTALL).match(line, start)
    assert found is not None
    return line[:start] + text + line[found.end() :]


def lines_of(dialect: str, name: str) -> list[tuple[str, bytes]]:
    """Returns the lines of a recording, each with `to` if it was written to the program, or `from` if that said it."""
    return [(line.kind, line.value) for line in capture(dialect, name).lines if line.kind in BYTE_KINDS]


def child(dialect: str, name: str) -> tuple[list[bytes], Ended]:
    """Returns what a program has printed, and how it ended."""
    printed = [line for kind, line in lines_of(dialect, name) if kind == "from"]
    ended = next(line.value for line in capture(dialect, name).lines if line.kind == "ended")
    return printed, msgspec.convert(ended, Ended)


def text_of_capture(capture: Capture) -> bytes:
    """Returns the text of a recording's file."""
    encode = msgspec.json.encode
    lines = [encode(capture.head), encode({"session": capture.dialect}), *map(_text_of_line, capture.lines)]
    return b"\n".join([*lines, b'{"end":%d}\n' % len(lines)])


def _text_of_line(line: CaptureLine) -> bytes:
    kind, value = line.kind, line.value
    if kind not in BYTE_KINDS:
        written = value
    elif is_json(value):
        written = msgspec.Raw(msgspec.json.format(value, indent=-1) if b"\n" in value else value)
    else:
        try:
            kind, written = f"{kind}_text", value.decode()
        except UnicodeDecodeError:
            kind, written = f"{kind}_bytes", base64.b64encode(value).decode()
    return msgspec.json.encode({"ms": line.ms, kind: written})
