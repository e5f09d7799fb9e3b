"""Reads tools and `tool_choice`: the client's tools, MCP servers, web search, tools of the model server. Raises `Fault`
INVALID_REQUEST, also for tools that only OpenAI's servers run; admission refuses what the agent's server does not run.
Sources: docs/contract.md#tools-of-a-response, docs/wire-rules.md#the-context-of-a-turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.items import Tool
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.turn import HostedTools, NamedTools, ToolChoice
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.requests.body import RequestModel, missing_parameter
from codex_proxy.surfaces.requests.fields import Place, fields_below, folded, models_below
from codex_proxy.surfaces.requests.options import OfferedTools, known_tool, refuse_duplicates
from codex_proxy.surfaces.responses import wire
from codex_proxy.surfaces.responses.client_tools import TOOL_SEARCH, client_tools, name_of

UNSUPPORTED: Final = "unsupported_tool"


class McpOffer(msgspec.Struct, frozen=True):
    """An MCP server in the request's `tools`, and its path there, for errors. Headers and authorization are secret."""

    server: wire.McpServerTool
    param: str


class HostedOffer(msgspec.Struct, frozen=True):
    """A tool that the model server is to run, as given, maybe with secrets, and its path in the request."""

    type: str
    param: str
    given: dict[str, Any]

    def own_object(self) -> str:
        """Returns the path of a field with the id of something that the account at the model server has, such as a
        file or a vector store; empty if there is none.
        """
        return next((str(place) for place, _ in fields_below(self.given, self.param, _names_own_object)), "")

    def models(self) -> Iterator[tuple[Place, str]]:
        """Yields the paths of fields that may name models, and the names in them."""
        return models_below(self.given, self.param)


class McpChoice(msgspec.Struct, frozen=True):
    """A chosen tool of a server, or all of its tools (`name` None). `required`: one must be called."""

    server_label: str
    name: str | None = None
    required: bool = False


class ResponsesTools(OfferedTools, frozen=True, kw_only=True):
    """The offered tools. `shown` and `shown_choice` are for the response object."""

    shown: list[Any]
    shown_choice: Any
    mcp: tuple[McpOffer, ...] = ()
    mcp_choice: tuple[McpChoice, ...] = ()
    """The only MCP tools that may be called; empty: all."""
    web_search: bool = False
    hosted: HostedTools | None = None
    """The tools of the model server that may be called."""
    hosted_offers: tuple[HostedOffer, ...] = ()
    """All of its tools that the request has, also those that may not be called."""
    left_out: tuple[str, ...] = ()
    """Types of tools that are not offered, for the header."""


NO_TOOLS: Final = ResponsesTools(tools=(), shown=[], shown_choice="auto")


def offered_tools(
    given: Sequence[wire.AnyTool] | None, choice: wire.ToolChoice | None, input_tools: Sequence[Tool] = ()
) -> ResponsesTools:
    """Returns the tools that the request offers. `input_tools`: tools in input items (`client_tools.tools_in`)."""
    given = given or ()
    for index, tool in enumerate(given):
        if isinstance(tool, wire.OpenAIsTool):
            raise hosted_tool_fault(tool.type, f"tools[{index}]")
        if wire.runs_in_container(tool):
            raise hosted_tool_fault("shell", f"tools[{index}].environment")
    named = list(client_tools(given))
    refuse_duplicates([each.tool for each in named], [each.param for each in named])
    tools = join_tools(tuple(each.tool for each in named if not each.deferred), input_tools)
    mcp: list[McpOffer] = []
    hosted: list[wire.HostedTool] = []
    hosted_offers: list[HostedOffer] = []
    searching = searched_by_server = False
    for index, tool in enumerate(given):
        if isinstance(tool, wire.McpServerTool):
            mcp.append(_offer(tool, f"tools[{index}]"))
        elif isinstance(tool, wire.HostedTool):
            hosted.append(tool)
            hosted_offers.append(HostedOffer(tool.type, f"tools[{index}]", _dump(tool)))
        elif isinstance(tool, wire.WebSearchTool):
            searching = True
        elif isinstance(tool, wire.ToolSearchTool):
            searched_by_server = searched_by_server or tool.execution != "client"
    _refuse_same_labels(mcp)
    chosen = _Chooser(tools, mcp, searching, hosted, bool(given)).choose(choice)
    return ResponsesTools(
        tools=tools,
        choice=chosen.names,
        mcp=tuple(mcp),
        mcp_choice=chosen.mcp,
        web_search=searching and chosen.web_search,
        hosted=_hosted_tools(hosted, chosen),
        hosted_offers=tuple(hosted_offers),
        shown=[_tool_echo(tool) for tool in given],
        shown_choice=_choice_echo(choice),
        left_out=(f"tools[{TOOL_SEARCH}]",) if searched_by_server else (),
    )


def join_tools(tools: tuple[Tool, ...], input_tools: Sequence[Tool]) -> tuple[Tool, ...]:
    """Returns the request's tools, then the input's with other names."""
    if not input_tools:
        return tools
    names = {tool.name for tool in tools}
    return (*tools, *(tool for tool in input_tools if tool.name not in names))


def _hosted_tools(given: Sequence[wire.HostedTool], chosen: _Choice) -> HostedTools | None:
    tools: dict[str, tuple[msgspec.Raw, ...]] = {}
    for tool in given:
        if tool.type in chosen.hosted:
            as_given = msgspec.Raw(json_bytes(tool.model_dump(exclude_unset=True)))
            tools[tool.type] = (*tools.get(tool.type, ()), as_given)
    return HostedTools(tools, chosen.hosted_required) if tools else None


def _names_own_object(name: str, value: Any) -> bool:
    """Whether a field has ids: of files, vector stores, skills, and containers."""
    kind = folded(name)
    return bool(value) and (kind.endswith(("id", "ids")) or (kind == "container" and isinstance(value, str)))


def hosted_tool_fault(kind: str, param: str) -> Fault:
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


class _Choice(msgspec.Struct, frozen=True):
    """A choice among the client's tools, MCP tools, web search, and tools of the model server by their types.
    `hosted_required`: one of all of them must be called, and that may be one of the model server's.
    """

    names: ToolChoice
    mcp: tuple[McpChoice, ...] = ()
    web_search: bool = False
    hosted: Collection[str] = ()
    hosted_required: bool = False


class _Chooser:
    def __init__(
        self,
        tools: tuple[Tool, ...],
        mcp: Sequence[McpOffer],
        searching: bool,
        hosted: Sequence[wire.HostedTool],
        any_given: bool,
    ) -> None:
        self._tools = tools
        self._labels = [offer.server.server_label for offer in mcp]
        self._searching = searching
        self._hosted = {tool.type for tool in hosted}
        self._any = any_given

    def choose(self, choice: wire.ToolChoice | None) -> _Choice:
        if choice is None or choice == "auto":
            return _Choice("auto", web_search=True, hosted=self._hosted)
        if choice == "none":
            return _Choice("none")
        if not self._any:
            raise bad_request("'tool_choice' is only allowed when 'tools' are given.", "tool_choice")
        if choice == "required":
            # Only the model server sees whether it has called a tool of its own.
            names: ToolChoice = "auto" if self._hosted else "required"
            return _Choice(names, web_search=True, hosted=self._hosted, hosted_required=bool(self._hosted))
        if isinstance(choice, wire.ChosenAllowed):
            return self._allowed_choice(choice)
        return self._choose_one(choice, "tool_choice", required=True)

    def _allowed_choice(self, choice: wire.ChosenAllowed) -> _Choice:
        required = choice.mode == "required"
        chosen = [
            self._choose_one(tool, f"tool_choice.tools[{index}]", required=required)
            for index, tool in enumerate(choice.tools)
        ]
        names = [name for one in chosen if isinstance(one.names, NamedTools) for name in one.names.names]
        hosted = {kind for one in chosen for kind in one.hosted}
        return _Choice(
            NamedTools(tuple(dict.fromkeys(names)), required and bool(names) and not hosted),
            tuple(server for one in chosen for server in one.mcp),
            any(one.web_search for one in chosen),
            hosted,
            required and bool(hosted),
        )

    def _choose_one(self, choice: wire.Allowed, param: str, *, required: bool) -> _Choice:
        if isinstance(choice, wire.ChosenOpenAIs):
            raise hosted_tool_fault(choice.type, param)
        if isinstance(choice, wire.ChosenHosted) and choice.type in self._hosted:
            return _Choice(NamedTools(()), hosted=(choice.type,), hosted_required=required)
        if isinstance(choice, wire.ChosenTool):
            named = name_of(choice.namespace, choice.name)
            name = known_tool(named, choice.type, self._tools, f"{param}.name")
            return _Choice(NamedTools((name,), required))
        if isinstance(choice, wire.ChosenMachineTool):
            name = known_tool(choice.type, "function", self._tools, f"{param}.type")
            return _Choice(NamedTools((name,), required))
        if isinstance(choice, wire.ChosenMcp):
            if choice.server_label not in self._labels:
                raise bad_request(
                    f"No MCP server '{excerpt(choice.server_label)}' was given.", f"{param}.server_label"
                )
            server = McpChoice(choice.server_label, choice.name, required)
            return _Choice(NamedTools(()), (server,))
        if isinstance(choice, wire.ChosenHosted) or not self._searching:
            raise bad_request(f"No tool '{choice.type}' was given.", f"{param}.type")
        return _Choice(NamedTools(()), web_search=True)


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
    if isinstance(tool, wire.HostedTool):
        return _without_secrets(shown)
    return shown | ({"format": shown.get("format", {"type": "text"})} if tool.type == "custom" else {})


def _without_secrets(shown: dict[str, Any]) -> dict[str, Any]:
    container = shown.get("container")
    if not isinstance(container, dict) or not isinstance(policy := container.get("network_policy"), dict):
        return shown
    public = {name: value for name, value in policy.items() if name != "domain_secrets"}
    return shown | {"container": container | {"network_policy": public}}


def _choice_echo(choice: wire.ToolChoice | None) -> Any:
    if choice is None or isinstance(choice, str):
        return choice or "auto"
    return _dump(choice)


def _dump(value: RequestModel, hidden: set[str] | None = None) -> dict[str, Any]:
    return value.model_dump(exclude=hidden, exclude_none=True, by_alias=True, warnings=False)
