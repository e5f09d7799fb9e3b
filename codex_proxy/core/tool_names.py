"""Names for tools whose own name would be changed or refused, and tools as MCP servers list them. The name of such a
tool depends only on label and tool, so that a call in the history finds its tool.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final, Literal

import msgspec

_NOT_ALLOWED: Final = re.compile(r"[^A-Za-z0-9_-]")


def generated_name(name: str, prefix: str, *, kept: int, digits: int) -> str:
    """Returns `prefix`, the first `kept` characters of the name, and `digits` of its digest."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
    return f"{prefix}{_NOT_ALLOWED.sub('_', name)[:kept]}_{digest}"


MAX_CHARS: Final = 64
"""The longest function name that models take."""
_DIGEST: Final = 8


def offered_name(server_label: str, name: str) -> str:
    """Returns `label__name`, with a digest at the end if it would be too long, not allowed, or ambiguous."""
    plain = f"{server_label}__{name}"
    allowed = _NOT_ALLOWED.sub("_", plain)
    clear = "__" not in server_label and not server_label.endswith("_")
    if clear and allowed == plain and len(plain) <= MAX_CHARS:
        return plain
    digest = hashlib.sha256(f"{server_label}\0{name}".encode("utf-8", "surrogatepass")).hexdigest()[:_DIGEST]
    return f"{allowed[: MAX_CHARS - _DIGEST - 1]}_{digest}"


class ToolServerState(msgspec.Struct, frozen=True, omit_defaults=True):
    """The state of one of the operator's MCP servers, for people."""

    name: str
    status: Literal["starting", "ready", "failed"]
    tools: int | None = None
    """How many tools it has, once it is ready."""
    trouble: str = ""


class ListedTool(msgspec.Struct, frozen=True):
    """A tool; `input_schema` and `annotations` are JSON."""

    name: str
    description: str = ""
    input_schema: bytes = b'{"type":"object"}'
    annotations: bytes | None = None

    @property
    def only_reads(self) -> bool:
        """Whether the annotation `readOnlyHint` says that the tool only reads."""
        hints = msgspec.json.decode(self.annotations) if self.annotations else None
        return isinstance(hints, dict) and hints.get("readOnlyHint") is True
