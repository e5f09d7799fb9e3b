"""What the model itself put out in one model call: raw items, and the calls of the client's tools in them.

Held until that model call is over: a retry makes it all anew, and only then is it known that no call follows.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from codex_proxy.agents.codex_app_server.messages import UNREADABLE
from codex_proxy.agents.codex_app_server.replies import custom_input
from codex_proxy.agents.codex_app_server.shapes import RawHead
from codex_proxy.agents.codex_app_server.tool_names import ToolNames
from codex_proxy.core.events import Event, Noticed, RawItem, ToolAsked
from codex_proxy.core.items import Tool

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
    """The raw items of the model call that is under way, and the calls in them that wait for an answer."""

    def __init__(self, tools: Sequence[Tool] = (), *, plain: bool = True) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._names = ToolNames(self._tools)
        self._plain = plain
        self._held: list[Event] = []
        self._calls: list[RawHead] = []

    def add(self, item: msgspec.Raw) -> RawHead | None:
        """Keeps a raw item; its head, or None where it is the agent's own context."""
        head = msgspec.json.decode(item, type=RawHead)
        if head.type not in REMEMBERED or (head.type == "message" and head.role != "assistant"):
            return None
        self._held.append(RawItem(head.type, bytes(item)))
        if head.type in ("function_call", "custom_tool_call"):
            self._called(head)
        return head

    def _called(self, head: RawHead) -> None:
        """A call of the client's tool waits for an answer; the agent itself answers one that it cannot pass on."""
        if not self._names.offered(head.name):
            if self._plain:  # where the agent works, it has tools of its own
                self._held.append(Noticed("unoffered_call", head.name))
        elif head.type == "function_call" and not _parses(head.arguments):
            self._held.append(Noticed("unreadable_arguments", head.name))
        else:
            self._calls.append(head)

    def start_anew(self) -> None:
        """A retry: what the model put out will come again."""
        self._calls.clear()
        self._held = [held for held in self._held if isinstance(held, RawItem) and held.type in OUTPUTS]

    def take(self) -> tuple[list[Event], list[ToolAsked]]:
        """The raw items, once it is sure that they stay, and the calls that wait for an answer."""
        held, self._held = self._held, []
        calls, self._calls = self._calls, []
        return held, [self._asked(call) for call in calls]

    def _asked(self, call: RawHead) -> ToolAsked:
        """The ask of a whole call: the agent gives no pieces of it. A custom tool's travelled as a function's."""
        name = self._names.client_name(call.name)
        text = call.arguments or call.input
        tool = self._tools[name]
        if tool.kind == "custom" and call.type == "function_call":
            text = custom_input(text)
        return ToolAsked(call.call_id, call.call_id, name, text, call.id or call.call_id, tool.kind)


def _parses(arguments: str) -> bool:
    if not arguments.strip():
        return True
    try:
        msgspec.json.decode(arguments)
    except UNREADABLE:
        return False
    return True
