"""Calls of the client's tools, as the model made them: from raw items to events."""

from __future__ import annotations

from collections.abc import Sequence

from codex_proxy.agents.codex_app_server.replies import custom_input
from codex_proxy.agents.codex_app_server.shapes import RawHead
from codex_proxy.core.events import ArgumentsWhole, Event, ItemEnded, ItemStarted
from codex_proxy.core.items import Tool, ToolCall


def call_events(call: RawHead, tools: Sequence[Tool]) -> list[Event]:
    """A whole call: the agent gives no pieces of it. A custom tool's call travelled as a function's."""
    id = call.id or call.call_id
    custom = any(tool.name == call.name and tool.kind == "custom" for tool in tools)
    text = call.arguments or call.input
    if custom and call.type == "function_call":
        text = custom_input(text)
    return [
        ItemStarted(ToolCall(id, call.call_id, call.name, "custom" if custom else "function")),
        ArgumentsWhole(id, text),
        ItemEnded(id),
    ]
