"""Adds the tools of MCP servers, which this server runs, to a turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from codex_proxy.core.events import Event
from codex_proxy.core.items import Tool
from codex_proxy.core.tool_names import ListedTool, ToolServerState
from codex_proxy.core.turn import Turn
from codex_proxy.runs.server_calls import ToolRunner
from codex_proxy.surfaces.responses.tools import McpChoice, McpOffer


class ServerTools(msgspec.Struct, frozen=True):
    tools: tuple[Tool, ...] = ()
    operator_tools: tuple[Tool, ...] = ()
    """The tools of the operator's servers, as the model calls them."""
    lists: tuple[Event, ...] = ()
    """Events that add an `mcp_list_tools` item for each server that was asked."""
    runner: ToolRunner | None = None
    """Runs the calls of these tools; None if there are none."""


class McpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a request contains about MCP servers."""

    offers: tuple[McpOffer, ...] = ()
    known: Mapping[str, tuple[ListedTool, ...]] = msgspec.field(default_factory=dict)
    """Lists of tools that the client has sent back, by server label, for which no server is asked again."""
    choices: tuple[McpChoice, ...] = ()
    """The tools of these servers that `tool_choice` names."""
    max_calls: int | None = None
    """Maximum calls in the turn; None: no limit."""


class ToolSource(Protocol):
    """The MCP servers whose tools this server runs."""

    steps: int
    """Maximum answers of the model in a turn whose calls are run. Later calls are not run; their output says so."""
    has_operators: bool

    @property
    def states(self) -> Sequence[ToolServerState]:
        """The states of the operator's servers; none before their start, and of servers that are not asked."""

    def check(self, offers: Sequence[McpOffer]) -> None:
        """Raises `Fault` if the request may not name one of these servers."""

    async def offer(self, request: McpRequest, owner: str, *, operators: bool) -> ServerTools:
        """Returns the tools of the request's servers and, with `operators`, of the operator's; none of a server that
        fails. `owner`: the client's name. Raises `Fault`.
        """


def with_server_tools(turn: Turn, server_tools: ServerTools, *, steps: int, calls: int | None = None) -> Turn:
    """Returns the turn with `server_tools`, which the model may call in `steps` answers, at most `calls` times
    (None: any). A tool is left out if a client's tool has its full name; a tool of the operator's servers also if a
    client's tool has the name that it has at its server.
    """
    own_names = {tool.name for tool in turn.tools}
    operators = [tool for tool in server_tools.operator_tools if (tool.mcp or tool).name not in own_names]
    joined: dict[str, Tool] = {}
    for tool in (*turn.tools, *server_tools.tools, *operators):
        joined.setdefault(tool.name, tool)  # an agent refuses a turn with two of one name
    return msgspec.structs.replace(
        turn, tools=tuple(joined.values()), max_server_steps=steps, max_server_calls=calls
    )
