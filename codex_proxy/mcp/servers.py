"""The operator's MCP servers, all of them: their tools, and calls by the name of a server.

A server is started when its tools are first asked for, and kept. Nothing here raises: what a server does wrong is a
fault beside the tools of the others, or a failed result.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Final

from codex_proxy.core.ids import Clock
from codex_proxy.mcp.config import Definition
from codex_proxy.mcp.keeper import Keeper
from codex_proxy.mcp.ports import Spawn
from codex_proxy.mcp.values import McpFault, McpFaultKind, McpLimits, McpListing, McpResult, failed

REFRESH_INTERVAL: Final = 10.0
"""Seconds after which a tool list is asked for again (docs/contract.md#mcp-calls)."""


class McpServers:
    """All servers of `parse_servers`. `close` it at the end."""

    def __init__(
        self,
        definitions: Mapping[str, Definition],
        spawn: Spawn,
        *,
        clock: Clock,
        limits: McpLimits | None = None,
        refresh_interval: float = REFRESH_INTERVAL,
    ) -> None:
        self._keepers = {
            label: Keeper(
                definition,
                clock=clock,
                limits=limits or McpLimits(),
                refresh_interval=refresh_interval,
                spawn=spawn,
            )
            for label, definition in definitions.items()
        }

    @property
    def labels(self) -> tuple[str, ...]:
        """The names of the servers, in the file's order."""
        return tuple(self._keepers)

    async def tools(self) -> McpListing:
        """The tools of all servers, in the file's order, and the faults of those that have none now. All are asked
        at once, so it takes as long as the slowest, and never longer than the limits `wait` and `refresh`."""
        listings = await asyncio.gather(*(keeper.tools() for keeper in self._keepers.values()))
        return McpListing(
            tuple(tool for listing in listings for tool in listing.tools),
            tuple(fault for listing in listings for fault in listing.faults),
        )

    async def call(self, server_label: str, tool: str, arguments: str, within: float) -> McpResult:
        """Runs a tool with arguments as JSON text, within so many seconds. Cancel it to have the server told."""
        keeper = self._keepers.get(server_label)
        if keeper is None:
            message = f"There is no MCP server '{server_label}'."
            return failed(
                McpFault(kind=McpFaultKind.UNKNOWN_SERVER, server_label=server_label, message=message)
            )
        return await keeper.call(tool, arguments, within)

    async def close(self) -> None:
        """Ends all servers at once, and waits for them. May be called twice."""
        await asyncio.gather(*(keeper.close() for keeper in self._keepers.values()))
