"""What the model itself put out in one model call: raw items, and the calls of the client's tools in them.

Held until that model call is over: a retry makes it all anew, and only then is it known that no call follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codex_proxy.agents.codex_app_server.messages import UNREADABLE
from codex_proxy.agents.codex_app_server.replies import custom_input
from codex_proxy.agents.codex_app_server.shapes import RawHead
from codex_proxy.core.events import ArgumentsWhole, Event, ItemEnded, ItemStarted, RawItem
from codex_proxy.core.items import Tool, ToolCall

REMEMBERED = frozenset(
    {
        "reasoning",
        "function_call",
        "function_call_output",
        "custom_tool_call",
        "custom_tool_call_output",
        "web_search_call",
        "image_generation_call",
        "local_shell_call",
        "message",
    }
)
"""Raw items that the model needs to see again. The rest is the agent's own context."""

OUTPUTS = frozenset({"function_call_output", "custom_tool_call_output"})
"""Raw items that come between two model calls: a retry does not make them anew."""


class ModelItems:
    """The raw items of the model call that is under way. `offered` are the tools that it may call."""

    def __init__(self, offered: Sequence[Tool] = ()) -> None:
        self.offered = offered
        self.calls: list[RawHead] = []
        self._held: list[Event] = []

    def add(self, item: msgspec.Raw) -> RawHead | None:
        """Keeps a raw item; its head, or None where it is the agent's own context."""
        head = msgspec.json.decode(item, type=RawHead)
        if head.type not in REMEMBERED or (head.type == "message" and head.role != "assistant"):
            return None
        self._held.append(RawItem(head.type, bytes(item)))
        if head.type in ("function_call", "custom_tool_call") and self._is_the_clients(head):
            self.calls.append(head)
        return head

    def _is_the_clients(self, head: RawHead) -> bool:
        """Whether the client has to answer: the agent itself answers what does not parse."""
        return any(tool.name == head.name for tool in self.offered) and (
            head.type == "custom_tool_call" or _parses(head.arguments)
        )

    def start_anew(self) -> None:
        """A retry: what the model put out will come again."""
        self.calls.clear()
        self._held = [held for held in self._held if isinstance(held, RawItem) and held.type in OUTPUTS]

    def take_raw(self) -> list[Event]:
        """The raw items, once it is sure that they stay."""
        held, self._held = self._held, []
        return held

    def take_calls(self) -> list[Event]:
        """The calls, as events: each one whole, since the agent gives no pieces of it."""
        calls, self.calls = self.calls, []
        return [event for call in calls for event in call_events(call, self.offered)]


def _parses(arguments: str) -> bool:
    if not arguments.strip():
        return True
    try:
        msgspec.json.decode(arguments)
    except UNREADABLE:
        return False
    return True


def call_events(call: RawHead, tools: Sequence[Tool]) -> list[Event]:
    """A whole call. A custom tool's call travelled as a function's."""
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
