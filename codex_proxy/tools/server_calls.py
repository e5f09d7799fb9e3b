"""The events of calls that this server runs.

Comes in: a call of the model, its tool, and its output. Goes out: events and items. No call is run here.
"""

from __future__ import annotations

import msgspec

from codex_proxy.core.events import (
    Event,
    FullArguments,
    ItemEnded,
    ItemStarted,
    OutputDelta,
    ToolCallRequested,
)
from codex_proxy.core.items import HistoryOutput, Item, McpApproval, McpCall, Part, Tool, ToolCall


class ServerCall(msgspec.Struct, frozen=True):
    """A call that this server runs: its tool belongs to an MCP server."""

    ask: ToolCallRequested
    tool: Tool


class ToolOutput(msgspec.Struct, frozen=True):
    """The output of a tool: `parts` for the model, `text` for the client. With `failed` they say what went wrong."""

    parts: tuple[Part, ...]
    text: str
    failed: bool = False


def call_events(ask: ToolCallRequested, tool: Tool | None, *, approved_by: str | None = None) -> list[Event]:
    """Returns the events with which a call begins: one for the client (no tool of this server), one to approve, or
    one to run."""
    id = ask.item_id or ask.call_id
    return [ItemStarted(_item(id, ask, tool, approved_by)), FullArguments(id, ask.arguments)]


def output_events(ask: ToolCallRequested, output: ToolOutput) -> list[Event]:
    """Returns the events that end a call that was run: its output, and the end of its item."""
    id = ask.item_id or ask.call_id
    return [OutputDelta(id, output.text), ItemEnded(id, "failed" if output.failed else "completed")]


def output_of(ask: ToolCallRequested, output: ToolOutput) -> HistoryOutput:
    return HistoryOutput(ask.call_id, output.parts, ask.kind, own=True)


def _item(id: str, ask: ToolCallRequested, tool: Tool | None, approved_by: str | None) -> Item:
    origin = None if tool is None else tool.mcp
    if origin is None:
        return ToolCall(id, ask.call_id, ask.name, ask.kind)
    if origin.asks and approved_by is None:
        return McpApproval(id, ask.call_id, origin.server_label, origin.name)
    return McpCall(id, ask.call_id, origin.server_label, origin.name, approved_by)
