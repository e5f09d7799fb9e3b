"""Adds the tools that this server runs to a turn: those of MCP servers, which the operator or the request names.

`ToolSource` lists and runs them; `app` provides it.
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
    """The tools of MCP servers for one turn."""

    tools: tuple[Tool, ...] = ()
    """The tools of the servers that the request names, under the names that the model is offered."""
    operators: tuple[Tool, ...] = ()
    """The tools of the servers in the operator's configuration file."""
    lists: tuple[Event, ...] = ()
    """Items that show the client the tools of the servers that it named."""
    runner: ToolRunner | None = None
    """Runs a call of one of the tools; None if there are no tools."""


class McpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request says about MCP servers."""

    offers: tuple[McpOffer, ...] = ()
    """The MCP servers that the request names, whose tools this server runs."""
    known: Mapping[str, tuple[ListedTool, ...]] = msgspec.field(default_factory=dict)
    """The lists of tools that the client has sent back, by server label."""
    choices: tuple[McpChoice, ...] = ()
    """The tools of the request's MCP servers that `tool_choice` names."""
    max_calls: int | None = None
    """The most calls that this server may run in the turn; None if the request does not limit them."""


class ToolSource(Protocol):
    """The interface of all MCP servers whose tools this server runs: the operator's, and those that requests may
    name.
    """

    steps: int
    """The most steps of one turn in which calls are run."""
    has_operators: bool
    """Whether the operator has configured servers, whose tools every request may get."""

    def check(self, asked: Sequence[McpOffer]) -> None:
        """Raises `Fault` if one of the servers in the request (`asked`) may not be named by requests."""
        ...

    async def offer(self, request: McpRequest, owner: str, *, operators: bool) -> ServerTools:
        """Returns the tools of the servers that the request names and, with `operators`, those of the operator's
        servers. A server that gives no tools raises nothing; an item of the answer or the log says why.
        """
        ...


def takes_operators_tools(turn: Turn, client: Client, agent: Agent) -> bool:
    """Whether the turn gets the tools of the operator's servers. A turn with a `tool_choice` other than `auto` does
    not, because the choice is among the client's tools.
    """
    return client.mcp and turn.tool_choice == "auto" and "tool_replies" in agent.capabilities


def with_server_tools(turn: Turn, found: ServerTools, *, steps: int, calls: int | None = None) -> Turn:
    """Returns the turn with the tools of MCP servers (`found`) added after its own. `steps` is the most steps of
    the model in which this server runs calls, and `calls` the most calls that it runs; None for any number.

    A tool of the request wins over the operator's of the same name, and over a tool of a server in the request
    where the whole name with the server's label is the same.
    """
    own_names = {tool.name for tool in turn.tools}
    operators = [tool for tool in found.operators if _name_at_server(tool) not in own_names]
    joined: dict[str, Tool] = {}
    for tool in (*turn.tools, *found.tools, *operators):
        joined.setdefault(tool.name, tool)  # an agent refuses a turn with two of one name
    return msgspec.structs.replace(
        turn, tools=tuple(joined.values()), max_server_steps=steps, max_server_calls=calls
    )


def _name_at_server(tool: Tool) -> str:
    return tool.name if tool.mcp is None else tool.mcp.name
