"""Adds the tools of MCP servers to a turn. This server runs their calls. The MCP servers are the operator's, and
those that a request names.

`ToolSource` is the interface to the MCP servers; `app` provides the object.
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
    """The tools of MCP servers for one turn, and what runs their calls."""

    tools: tuple[Tool, ...] = ()
    """The tools of the servers that the request names, under the names by which the model calls them."""
    operators: tuple[Tool, ...] = ()
    """The tools of the servers in the operator's configuration file, under the names by which the model calls
    them."""
    lists: tuple[Event, ...] = ()
    """Events that add an item (`mcp_list_tools`) to the answer for each server that was asked for its tools because
    the request names it. The item shows the client the server's tools, or why there are none."""
    runner: ToolRunner | None = None
    """Runs the calls of these tools; None if this server runs no tools."""


class McpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request contains about MCP servers."""

    offers: tuple[McpOffer, ...] = ()
    """The MCP servers that the request names, whose tools this server runs."""
    known: Mapping[str, tuple[ListedTool, ...]] = msgspec.field(default_factory=dict)
    """The lists of tools that the client has sent back, by server label. A server whose tools are known is not
    asked again."""
    choices: tuple[McpChoice, ...] = ()
    """The tools of the request's MCP servers that `tool_choice` names."""
    max_calls: int | None = None
    """The most calls that this server may run in the turn; None if the request does not limit them."""


class ToolSource(Protocol):
    """The interface to all MCP servers whose tools this server runs: the operator's, and those of requests."""

    steps: int
    """The most answers of the model in one turn whose calls this server runs. A call in a later answer is not run;
    the model gets an output that says so."""
    has_operators: bool
    """Whether the operator has configured servers, whose tools every request may get."""

    def check(self, asked: Sequence[McpOffer]) -> None:
        """Raises `Fault` INVALID_REQUEST if requests may not name one of the MCP servers `asked`, which the request
        names.
        """
        ...

    async def offer(self, request: McpRequest, owner: str, *, operators: bool) -> ServerTools:
        """Returns the tools of the MCP servers that the request names and, with `operators`, those of the
        operator's servers. `owner` is the client's name. A server that fails has no tools: its item in `lists` then
        contains the error, or for an operator's server the log does. Raises `Fault` INVALID_REQUEST if the request
        may not use a server that it names.
        """
        ...


def takes_operators_tools(turn: Turn, client: Client, agent: Agent) -> bool:
    """Whether the turn gets the tools of the operator's MCP servers: if the client may use them, and the agent lets
    this server run calls. A turn with a `tool_choice` other than `auto` gets none, because it chooses among the
    client's tools.
    """
    return client.mcp and turn.tool_choice == "auto" and "tool_replies" in agent.capabilities


def with_server_tools(turn: Turn, found: ServerTools, *, steps: int, calls: int | None = None) -> Turn:
    """Returns the turn with the tools of MCP servers (`found`) added to its own, and with the limits on their
    calls: this server runs the calls of at most `steps` answers of the model, and at most `calls` calls in all
    (None: any number). Further calls are not run; the model gets an output that says so.

    The names stay unique. An operator's tool is left out if a tool of the client has the name that it has at its
    MCP server. Any tool is left out if its full name, with the server's label, is taken already.
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
