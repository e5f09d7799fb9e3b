"""Reads tools and `tool_choice`: the client's tools, MCP servers, web search. Raises `Fault` INVALID_REQUEST, also for
tools that only OpenAI's servers run. Sources: docs/contract.md#tools-of-a-response,
docs/wire-rules.md#the-context-of-a-turn.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.items import Tool
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import NamedTools, ToolChoice
from codex_proxy.surfaces.body import RequestModel, missing_parameter
from codex_proxy.surfaces.responses import wire_tools as wire
from codex_proxy.surfaces.responses.client_tools import TOOL_SEARCH, client_tools, name_of
from codex_proxy.surfaces.tools import OfferedTools, known_tool, refuse_duplicates

UNSUPPORTED: Final = "unsupported_tool"


class McpOffer(msgspec.Struct, frozen=True):
    """An MCP server in the request's `tools`, and its path there, for errors. Headers and authorization are secret."""

    server: wire.McpServerTool
    param: str


class McpChoice(msgspec.Struct, frozen=True):
    """A chosen tool of a server, or all of its tools (`name` None). `required`: one must be called."""

    server_label: str
    name: str | None = None
    required: bool = False


class ResponsesTools(OfferedTools, frozen=True, kw_only=True):
    """The offered tools. `shown` and `shown_choice` are for the response object."""

    mcp: tuple[McpOffer, ...]
    mcp_choice: tuple[McpChoice, ...]
    """The only MCP tools that may be called; empty: all."""
    web_search: bool
    shown: list[Any]
    shown_choice: Any
    left_out: tuple[str, ...] = ()
    """Types of tools that are not offered, for the header."""


def offered_tools(
    given: Sequence[wire.AnyTool] | None, choice: wire.ToolChoice | None, input_tools: Sequence[Tool] = ()
) -> ResponsesTools:
    """Returns the tools that the request offers. `input_tools`: tools in input items (`client_tools.tools_in`)."""
    given = given or ()
    for index, tool in enumerate(given):
        if isinstance(tool, wire.HostedTool):
            raise _hosted_tool_fault(tool.type, f"tools[{index}]")
        if wire.runs_in_container(tool):
            raise _hosted_tool_fault("shell", f"tools[{index}].environment")
    named = list(client_tools(given))
    refuse_duplicates([each.tool for each in named], [each.param for each in named])
    tools = join_tools(tuple(each.tool for each in named if not each.deferred), input_tools)
    searched_by_server = any(
        isinstance(tool, wire.ToolSearchTool) and tool.execution != "client" for tool in given
    )
    mcp = tuple(
        _offer(tool, f"tools[{index}]")
        for index, tool in enumerate(given)
        if isinstance(tool, wire.McpServerTool)
    )
    _refuse_same_labels(mcp)
    searching = any(isinstance(tool, wire.WebSearchTool) for tool in given)
    chosen, mcp_choice, search_too = _Chooser(tools, mcp, searching, bool(given)).choose(choice)
    return ResponsesTools(
        tools=tools,
        choice=chosen,
        mcp=mcp,
        mcp_choice=mcp_choice,
        web_search=searching and search_too,
        shown=[_tool_echo(tool) for tool in given],
        shown_choice=_choice_echo(choice),
        left_out=(f"tools[{TOOL_SEARCH}]",) if searched_by_server else (),
    )


def join_tools(tools: tuple[Tool, ...], input_tools: Iterable[Tool]) -> tuple[Tool, ...]:
    """Returns the request's tools, then the input's with other names."""
    names = {tool.name for tool in tools}
    return (*tools, *(tool for tool in input_tools if tool.name not in names))


def _hosted_tool_fault(kind: str, param: str) -> Fault:
    message = (
        f"The tool '{kind}' belongs to OpenAI's own servers and models and is not available here: use 'function', "
        "'custom', 'mcp' or 'web_search'."
    )
    return bad_request(
        f"{message} {_ADVICE_BY_TYPE[kind]}" if kind in _ADVICE_BY_TYPE else message, param, UNSUPPORTED
    )


_ADVICE_BY_TYPE: Final[dict[str, str]] = {
    "code_interpreter": "To have the agent run commands and to see them, leave the tool out and send the headers "
    "`X-Codex-Mode: agent` and `X-Codex-Activity: items`.",
    "file_search": "To have files searched, give an MCP server that searches, or send their texts in 'input'.",
    "shell": "With the environment 'local' your client runs its commands.",
    "image_generation": "To have images made, give a function or an MCP server that makes them.",
    **dict.fromkeys(
        ("computer", "computer_use", "computer_use_preview"),
        "To have a screen or a browser operated, give a function with the actions, or an MCP server for it.",
    ),
}
"""What to use in place of a hosted tool."""


def _offer(server: wire.McpServerTool, param: str) -> McpOffer:
    if server.server_url is None:
        if server.connector_id is not None:
            raise bad_request(
                "Connectors are hosted by OpenAI and are not available here. Give a 'server_url'.",
                f"{param}.connector_id",
                UNSUPPORTED,
            )
        raise missing_parameter(f"{param}.server_url")
    return McpOffer(server, param)


def _refuse_same_labels(offers: Sequence[McpOffer]) -> None:
    labels: set[str] = set()
    for offer in offers:
        label = offer.server.server_label
        if label in labels:
            raise bad_request(
                f"The MCP server label '{label}' is given twice.", f"{offer.param}.server_label"
            )
        labels.add(label)


class _Chooser:
    def __init__(
        self, tools: tuple[Tool, ...], mcp: tuple[McpOffer, ...], searching: bool, any_given: bool
    ) -> None:
        self._tools = tools
        self._labels = [offer.server.server_label for offer in mcp]
        self._searching = searching
        self._any = any_given

    def choose(self, choice: wire.ToolChoice | None) -> tuple[ToolChoice, tuple[McpChoice, ...], bool]:
        """Returns the choice among the client's tools, the choices among MCP tools, and whether web search may be
        used."""
        if choice is None or choice == "auto":
            return "auto", (), True
        if choice == "none":
            return "none", (), False
        if not self._any:
            raise bad_request("'tool_choice' is only allowed when 'tools' are given.", "tool_choice")
        if choice == "required":
            return "required", (), True
        if isinstance(choice, wire.ChosenAllowed):
            return self._allowed_choice(choice)
        return self._choose_one(choice, "tool_choice", required=True)

    def _allowed_choice(self, choice: wire.ChosenAllowed) -> tuple[ToolChoice, tuple[McpChoice, ...], bool]:
        names: list[str] = []
        mcp: list[McpChoice] = []
        search = False
        required = choice.mode == "required"
        for index, tool in enumerate(choice.tools):
            one, servers, searched = self._choose_one(tool, f"tool_choice.tools[{index}]", required=required)
            names += one.names if isinstance(one, NamedTools) else ()
            mcp += servers
            search = search or searched
        return NamedTools(tuple(dict.fromkeys(names)), required and bool(names)), tuple(mcp), search

    def _choose_one(
        self, choice: wire.Allowed, param: str, *, required: bool
    ) -> tuple[ToolChoice, tuple[McpChoice, ...], bool]:
        if isinstance(choice, wire.ChosenHosted):
            raise _hosted_tool_fault(choice.type, param)
        if isinstance(choice, wire.ChosenTool):
            named = name_of(choice.namespace, choice.name)
            name = known_tool(named, choice.type, self._tools, f"{param}.name")
            return NamedTools((name,), required), (), False
        if isinstance(choice, wire.ChosenMachineTool):
            name = known_tool(choice.type, "function", self._tools, f"{param}.type")
            return NamedTools((name,), required), (), False
        if isinstance(choice, wire.ChosenMcp):
            if choice.server_label not in self._labels:
                raise bad_request(
                    f"No MCP server '{excerpt(choice.server_label)}' was given.", f"{param}.server_label"
                )
            server = McpChoice(choice.server_label, choice.name, required)
            return NamedTools(()), (server,), False
        if not self._searching:
            raise bad_request(f"No tool '{choice.type}' was given.", f"{param}.type")
        return NamedTools(()), (), True


# --- how the response object shows them ---------------------------------------------------------


def _tool_echo(tool: wire.AnyTool) -> dict[str, Any]:
    if isinstance(tool, wire.FunctionTool):
        return {
            "type": "function",
            "name": tool.name,
            "description": tool.description,
            "parameters": tool.parameters,
            "strict": bool(tool.strict),
        }
    if isinstance(tool, wire.McpServerTool):
        # Headers and authorization are secrets: they are not shown, and so not stored either.
        shown = _dump(tool, {"headers", "authorization"})
        return {"require_approval": "never"} | shown
    shown = _dump(tool)
    return shown | ({"format": shown.get("format", {"type": "text"})} if tool.type == "custom" else {})


def _choice_echo(choice: wire.ToolChoice | None) -> Any:
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    return _dump(choice)


def _dump(value: RequestModel, hidden: set[str] | None = None) -> dict[str, Any]:
    return value.model_dump(exclude=hidden, exclude_none=True, by_alias=True, warnings=False)
