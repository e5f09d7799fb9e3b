"""Tools as MCP servers list them, and the names that a model gets for them. A name depends only on the server's label
and the tool's name, so that a call in the history finds its tool.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

MAX_CHARS: Final = 64
"""The most characters that models take in the name of a function."""
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST: Final = 8


def offered_name(server_label: str, name: str) -> str:
    """Returns `label__name`, with a digest at the end if it would be too long (64), not allowed, or ambiguous."""
    plain = f"{server_label}__{name}"
    allowed = _FOREIGN.sub("_", plain)
    clear = "__" not in server_label and not server_label.endswith("_")
    if clear and allowed == plain and len(plain) <= MAX_CHARS:
        return plain
    digest = hashlib.sha256(f"{server_label}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{allowed[: MAX_CHARS - _DIGEST - 1]}_{digest}"


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as its MCP server lists it; `input_schema` and `annotations` are JSON."""

    name: str
    description: str = ""
    input_schema: bytes = b'{"type":"object"}'
    annotations: bytes | None = None

    @property
    def only_reads(self) -> bool:
        """Whether the server declares that the tool changes nothing (the annotation `readOnlyHint`)."""
        hints = msgspec.json.decode(self.annotations) if self.annotations else None
        return isinstance(hints, dict) and hints.get("readOnlyHint") is True
