"""The tools of MCP servers as they are listed, and the names under which a model is offered them.

The names are a rule without memory: a call that comes back in a later request, with its server and the name there, is
the same function to the model again.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

MAX_CHARS: Final = 64
"""Letters of a function's name that models take."""
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST: Final = 8


def offered_name(server_label: str, name: str) -> str:
    """The name under which a server's tool is offered to the model: `label__name`. One that is too long, has characters
    that models do not take, or could be that of another server's tool
    (`a__b` + `c`, `a` + `b__c`) ends with a digest of both."""
    plain = f"{server_label}__{name}"
    allowed = _FOREIGN.sub("_", plain)
    clear = "__" not in server_label and not server_label.endswith("_")
    if clear and allowed == plain and len(plain) <= MAX_CHARS:
        return plain
    digest = hashlib.sha256(f"{server_label}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{allowed[: MAX_CHARS - _DIGEST - 1]}_{digest}"


class ListedTool(msgspec.Struct, frozen=True):
    """A tool as its server lists it. `input_schema` and `annotations` (the server's own hints) are JSON."""

    name: str
    description: str = ""
    input_schema: bytes = b'{"type":"object"}'
    annotations: bytes | None = None

    @property
    def only_reads(self) -> bool:
        """Whether the server says that it changes nothing."""
        hints = msgspec.json.decode(self.annotations) if self.annotations else None
        return isinstance(hints, dict) and hints.get("readOnlyHint") is True
