"""Decodes a line of `codex exec --json`. Source: recordings of releases 0.163 and 0.169
(`tests/golden/recordings/exec`).
"""

from __future__ import annotations

from typing import Final

import msgspec

from codex_proxy.agents.codex.child_turn import TokenCounts
from codex_proxy.agents.dialects.json_lines import decode_line


class FileUpdate(msgspec.Struct, gc=False):
    """A changed file. `kind` is `add`, `update` or `delete`."""

    path: str = ""
    kind: str = ""


class Todo(msgspec.Struct, gc=False):
    text: str = ""
    completed: bool = False


class Item(msgspec.Struct, gc=False):
    """An item of any type. Missing fields are None or empty."""

    id: str = ""
    type: str = ""
    text: str | None = None
    message: str | None = None
    """The text of an `error` item, which is a warning."""
    command: str | None = None
    aggregated_output: str | None = None
    status: str | None = None
    changes: list[FileUpdate] | None = None
    server: str | None = None
    tool: str | None = None
    query: str | None = None
    items: list[Todo] | None = None


class ErrorText(msgspec.Struct, gc=False):
    message: str = ""


class Line(msgspec.Struct, gc=False):
    """A line of any type. Missing fields are None or empty."""

    type: str = ""
    thread_id: str = ""
    item: Item | None = None
    usage: TokenCounts | None = None
    """The tokens in `turn.completed`; all zeros if the provider reported none."""
    error: ErrorText | None = None
    message: str | None = None
    """The text of an `error` line: about a retry, or the turn's error."""


class _Head(msgspec.Struct, gc=False):
    """The type of a line whose other fields cannot be decoded."""

    type: str = ""


_line_decoder: Final = msgspec.json.Decoder(Line)
_head_decoder: Final = msgspec.json.Decoder(_Head)


def decode(line: bytes) -> tuple[Line | None, bool]:
    """Decodes a line; None if it is no event. Returns also whether it is damaged, or has too many values: then only
    `type` is set.
    """
    found = decode_line(line, _line_decoder, _head_decoder)
    return (Line(found.type), True) if isinstance(found, _Head) else (found, False)
