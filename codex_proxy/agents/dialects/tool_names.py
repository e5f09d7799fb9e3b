"""The names under which an agent is offered the client's tools: their own, or generated ones where it would change or
refuse them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from codex_proxy.core.items import Tool


class ToolsByAgentName:
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
