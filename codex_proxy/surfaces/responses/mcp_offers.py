"""Decides which MCP tools may be called, which calls need approval, and the choice among all tools. Raises `Fault`
INVALID_REQUEST (`tool_choice`). Source: docs/contract.md#tools-of-a-response.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.items import Tool
from codex_proxy.core.tool_names import ListedTool
from codex_proxy.core.turn import NamedTools, ToolChoice
from codex_proxy.surfaces.answers.renderer import json_bytes
from codex_proxy.surfaces.responses.tools import McpChoice, McpOffer
from codex_proxy.surfaces.responses.wire import McpApprovalFilter, McpToolFilter


def allows(offer: McpOffer, tool: ListedTool) -> bool:
    return _matches(offer.server.allowed_tools, tool)


def allowed_names(offer: McpOffer) -> list[str] | None:
    """Returns the names of the tools that may be called; None: any."""
    allowed = offer.server.allowed_tools
    return allowed.tool_names if isinstance(allowed, McpToolFilter) else allowed


def needs_approval(offer: McpOffer, tool: ListedTool) -> bool:
    """Whether a call needs approval. Of two filters `always` wins; if some tools are freed by `never`, all others need
    it.
    """
    approval = offer.server.require_approval
    if not isinstance(approval, McpApprovalFilter):
        return approval == "always"
    if approval.always is not None and _matches(approval.always, tool):
        return True
    return approval.never is not None and not _matches(approval.never, tool)


def _matches(wanted: list[str] | McpToolFilter | None, tool: ListedTool) -> bool:
    if wanted is None:
        return True
    if isinstance(wanted, list):
        return tool.name in wanted
    is_named = wanted.tool_names is None or tool.name in wanted.tool_names
    return is_named and wanted.read_only in (None, tool.only_reads)


def combine_choices(choice: ToolChoice, mcp: Sequence[McpChoice], tools: Sequence[Tool]) -> ToolChoice:
    """Returns the choice among clients' and MCP tools together. Raises `Fault` if a chosen tool does not exist, or a
    required call has no tool.
    """
    if not mcp:
        return choice
    names = list(choice.names) if isinstance(choice, NamedTools) else []
    for one in mcp:
        found = [tool.name for tool in tools if _is_chosen(one, tool)]
        if one.name is not None and not found:
            raise _no_such_tool(one, tools)
        names += found
    required = any(one.required for one in mcp)
    if required and not names:
        labels = ", ".join(f"'{one.server_label}'" for one in mcp)
        raise bad_request(
            f"A tool call is required, and there is no tool to call: MCP server {labels} has none that this request "
            "allows.",
            "tool_choice",
        )
    required = required or (isinstance(choice, NamedTools) and choice.required)
    return NamedTools(tuple(dict.fromkeys(names)), required)


def _is_chosen(choice: McpChoice, tool: Tool) -> bool:
    origin = tool.mcp
    return (
        origin is not None
        and origin.server_label == choice.server_label
        and choice.name in (None, origin.name)
    )


def _no_such_tool(choice: McpChoice, tools: Sequence[Tool]) -> Fault:
    there = [tool.mcp.name for tool in tools if tool.mcp and tool.mcp.server_label == choice.server_label]
    given = ", ".join(f"'{name}'" for name in there[:20]) or "none"
    return bad_request(
        f"MCP server '{choice.server_label}' has no tool '{choice.name}' that this request allows; it allows: "
        f"{given}{', and more' if len(there) > 20 else ''}.",
        "tool_choice",
    )


def newest_lists(items: Iterable[Mapping[str, Any] | None]) -> dict[str, tuple[ListedTool, ...]]:
    """Returns each server's newest readable list, by label."""
    known: dict[str, tuple[ListedTool, ...]] = {}
    for item in items:
        if item is None or item["type"] != "mcp_list_tools" or item.get("error") is not None:
            continue
        tools = _read_tools(item.get("tools"))
        if tools is not None:
            known[item["server_label"]] = tools
    return known


class _ToolOfItem(msgspec.Struct):
    """A tool in a list, which a client may have changed."""

    name: str
    input_schema: dict[str, Any]
    description: str | None = None
    annotations: dict[str, Any] | None = None


def _read_tools(tools: Any) -> tuple[ListedTool, ...] | None:
    try:
        read = msgspec.convert(tools, list[_ToolOfItem])
    except msgspec.ValidationError:
        return None
    return tuple(
        ListedTool(
            tool.name,
            tool.description or "",
            json_bytes(tool.input_schema),
            None if tool.annotations is None else json_bytes(tool.annotations),
        )
        for tool in read
    )
