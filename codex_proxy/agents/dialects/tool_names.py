"""The names under which an agent is offered the client's tools: their own, or generated ones where it would change or
refuse them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from codex_proxy.core.items import Tool

_CHANGED: Final = re.compile(r"[^A-Za-z0-9_-]")


def generated_name(name: str, prefix: str, *, kept: int, digits: int) -> str:
    """Returns `prefix`, the first `kept` characters of the name, and `digits` of its digest."""
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:digits]
    return f"{prefix}{_CHANGED.sub('_', name)[:kept]}_{digest}"


class OfferedTools:
    """The client's tools in one turn, by the names that the agent gets for them."""

    def __init__(self, tools: Iterable[Tool], name_of: Callable[[str], str]) -> None:
        """`name_of` returns the agent's name for a client's name."""
        self._tools = {name_of(tool.name): tool for tool in tools}

    def __bool__(self) -> bool:
        return bool(self._tools)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self._tools.values())

    def find(self, name: str) -> Tool | None:
        return self._tools.get(name)
