"""Tools that this server runs for a turn: those of MCP servers, which the operator or the request names.

`ToolSource` lists and runs them; `app` provides it. Here they are added to a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from codex_proxy.admission.clients import Client
from codex_proxy.agents.agent import Agent
from codex_proxy.core.events import Event
from codex_proxy.core.items import Tool
from codex_proxy.core.mcp_names import ListedTool
from codex_proxy.core.turn import Turn
from codex_proxy.runs.server_calls import ToolRunner
from codex_proxy.surfaces.responses.tools import McpChoice, McpOffer


class ServerTools(msgspec.Struct, frozen=True):
    """What is offered to one turn."""

    tools: tuple[Tool, ...] = ()
    """Of the servers that the request names."""
    operators: tuple[Tool, ...] = ()
    """Of the operator's servers."""
    lists: tuple[Event, ...] = ()
    """Items that show the client which tools the servers that it named have."""
    runner: ToolRunner | None = None
    """Runs them; None where there is nothing to run."""


class McpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says of MCP servers."""

    offers: tuple[McpOffer, ...] = ()
    """The servers that it names."""
    known: Mapping[str, tuple[ListedTool, ...]] = msgspec.field(default_factory=dict)
    """Lists of tools that the client has already, by server label."""
    choices: tuple[McpChoice, ...] = ()
    """What `tool_choice` says of their tools."""
    max_calls: int | None = None


class ToolSource(Protocol):
    """The MCP servers that there are."""

    steps: int
    """Steps of the model whose calls are run in one request."""

    def check(self, asked: Sequence[McpOffer]) -> None:
        """Raises a `Fault` for a server that a request may not name."""
        ...

    async def offer(
        self,
        asked: Sequence[McpOffer],
        owner: str,
        *,
        known: Mapping[str, tuple[ListedTool, ...]],
        operators: bool,
    ) -> ServerTools:
        """The tools of the servers that the request names, and of the operator's where `operators` says so.
        `known`: lists that the client has already, by server label. A server that has none now is told or logged,
        and is no fault."""
        ...


def takes_operators_tools(turn: Turn, client: Client, agent: Agent) -> bool:
    """Whether the operator's tools join: a request that chooses among tools speaks of those that it brings."""
    return client.mcp and turn.tool_choice == "auto" and "tool_replies" in agent.capabilities


def with_server_tools(turn: Turn, found: ServerTools, *, steps: int, calls: int | None = None) -> Turn:
    """The turn with these tools behind its own. One that the request brings wins over the operator's of the same
    name; a server that the request names has brought its tools too, and loses only a name that is the same whole."""
    brought = {tool.name for tool in turn.tools}
    operators = [tool for tool in found.operators if _bare(tool) not in brought]
    joined: dict[str, Tool] = {}
    for tool in (*turn.tools, *found.tools, *operators):
        joined.setdefault(tool.name, tool)  # an agent refuses a turn with two of one name
    return msgspec.structs.replace(
        turn, tools=tuple(joined.values()), max_server_steps=steps, max_server_calls=calls
    )


def _bare(tool: Tool) -> str:
    return tool.name if tool.mcp is None else tool.mcp.name
