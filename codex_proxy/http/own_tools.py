"""Tools that this server runs, as a request gets them: those of MCP servers, the operator's and the request's own.

Who lists and runs them comes in through `ToolSource`, which `app` fills. Here is what they do to a turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from codex_proxy.agents.agent import Agent
from codex_proxy.core.events import Event
from codex_proxy.core.items import Tool
from codex_proxy.core.mcp_names import ListedTool
from codex_proxy.core.turn import Turn
from codex_proxy.http.clients import Client
from codex_proxy.runs.own_calls import ToolRunner
from codex_proxy.surfaces.responses.tools import McpOffer


class OwnTools(msgspec.Struct, frozen=True):
    """What is offered to one turn. `said` tells its client what the servers that it named have."""

    tools: tuple[Tool, ...] = ()
    """Of the servers that the request names."""
    operators: tuple[Tool, ...] = ()
    said: tuple[Event, ...] = ()
    runner: ToolRunner | None = None


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
    ) -> OwnTools:
        """The tools of the servers that the request names, and of the operator's where `operators` says so.
        `known`: lists that the client has already, by server label. A server that has none now is told or logged,
        and is no fault."""
        ...


async def with_operators_tools(
    source: ToolSource | None, turn: Turn, client: Client, agent: Agent
) -> tuple[Turn, OwnTools]:
    """The turn with the tools of the operator's servers, for surfaces whose requests name none."""
    if source is None or not takes_operators_tools(turn, client, agent):
        return turn, OwnTools()
    own = await source.offer((), client.name, known={}, operators=True)
    return with_tools(turn, own, steps=source.steps), own


def takes_operators_tools(turn: Turn, client: Client, agent: Agent) -> bool:
    """Whether the operator's tools join: a request that chooses among tools speaks of those that it brings."""
    return client.mcp and turn.tool_choice == "auto" and "tool_replies" in agent.capabilities


def with_tools(turn: Turn, own: OwnTools, *, steps: int, calls: int | None = None) -> Turn:
    """The turn with these tools behind its own. One that the request brings wins over the operator's of the same
    name; a server that the request names has brought its tools too, and loses only a name that is the same whole."""
    brought = {tool.name for tool in turn.tools}
    operators = [tool for tool in own.operators if _bare(tool) not in brought]
    joined: dict[str, Tool] = {}
    for tool in (*turn.tools, *own.tools, *operators):
        joined.setdefault(tool.name, tool)  # an agent refuses a turn with two of one name
    return msgspec.structs.replace(turn, tools=tuple(joined.values()), own_steps=steps, own_calls=calls)


def _bare(tool: Tool) -> str:
    return tool.name if tool.mcp is None else tool.mcp.name
