"""The names under which a model is offered the tools of MCP servers. A rule without memory: a call that comes back in
a later request, with its server and the name there, is the same function to the model again."""

from __future__ import annotations

import hashlib
import re
from typing import Final

LONGEST: Final = 64
"""Letters of a function's name that models take."""
_FOREIGN: Final = re.compile(r"[^A-Za-z0-9_-]")
_DIGEST: Final = 8


def offered_name(server_label: str, name: str) -> str:
    """`label__name`; what is too long, or has other letters than models take, ends with a digest of both."""
    plain = f"{server_label}__{name}"
    allowed = _FOREIGN.sub("_", plain)
    if allowed == plain and len(plain) <= LONGEST:
        return plain
    digest = hashlib.sha256(f"{server_label}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{allowed[: LONGEST - _DIGEST - 1]}_{digest}"
