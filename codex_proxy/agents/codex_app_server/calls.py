"""What the model itself put out in one model call: raw items, and the calls of the client's tools in them.

Held until that model call is over: a retry makes it all anew, and only then is it known that no call follows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import msgspec

from codex_proxy.agents.codex_app_server.client_tools import ToolNames, custom_input
from codex_proxy.agents.codex_app_server.messages import UNREADABLE, Params
from codex_proxy.agents.codex_app_server.payloads import RawItemCall, RawItemHead, check_readable
from codex_proxy.core.events import Event, Notice, RawItem, ToolCallRequested
from codex_proxy.core.items import Tool

KEPT_TYPES = frozenset(
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

CALL_TYPES = frozenset({"function_call", "custom_tool_call"})

OUTPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})
"""Raw items that come between two model calls: a retry does not make them anew."""


class ModelItems:
    """The raw items of the model call that is under way, and the calls in them that wait for an answer."""

    def __init__(self, tools: Sequence[Tool] = (), *, plain: bool = True) -> None:
        self._tools = {tool.name: tool for tool in tools}
        self._names = ToolNames(self._tools)
        self._plain = plain
        self._events: list[Event] = []
        self._calls: list[ToolCallRequested] = []
        self._response_open = False
        """A response has begun whose end has not come."""
        self._agent_calls: set[str] = set()
        """Calls that the agent answers by itself, and has not yet, before it asks for the first of the client's."""
        self._outputs_from_client: set[str] = set()
        """Calls whose outputs are in the client's history already."""

    def add_item(self, item: msgspec.Raw) -> RawItemHead | None:
        """Keeps a raw item; its head, or None where it is the agent's own context, or an output."""
        head = msgspec.json.decode(item, type=RawItemHead)
        if head.type not in KEPT_TYPES or (head.type == "message" and head.role != "assistant"):
            return None
        check_readable(item)
        call = msgspec.json.decode(item, type=RawItemCall) if head.type in CALL_TYPES else None
        self._response_open = True
        self._events.append(RawItem(head.type, bytes(item)))
        if call is not None:
            self._add_call(head, call)
        return head

    def add_output(self, item: msgspec.Raw) -> str | None:
        """Keeps an output that the agent gave to the model; its call's id. None where the item is no output."""
        head = msgspec.json.decode(item, type=RawItemHead)
        if head.type not in OUTPUT_TYPES:
            return None
        check_readable(item)
        call_id = msgspec.json.decode(item, type=RawItemCall).call_id
        self._agent_calls.discard(call_id)
        if call_id in self._outputs_from_client:
            self._outputs_from_client.remove(call_id)
        else:
            self._events.append(RawItem(head.type, bytes(item)))
        return call_id

    def client_gave_outputs(self, call_ids: Iterable[str]) -> None:
        """The client has brought the outputs of these calls: they are no news to it when the agent repeats them."""
        self._outputs_from_client.update(call_ids)

    def _add_call(self, head: RawItemHead, call: RawItemCall) -> None:
        """A call of the client's tool waits for an answer; the agent itself answers one that it cannot pass on."""
        if not self._names.is_offered(call.name):
            if self._plain:  # where the agent works, it has tools of its own
                self._events.append(Notice("unoffered_call", call.name))
            self._await_agent_output(call)
        elif head.type == "function_call" and not _is_valid_json(call.arguments):
            self._events.append(Notice("unreadable_arguments", call.name))
            self._await_agent_output(call)
        elif not self.has_call(call.call_id):
            as_function = head.type == "function_call"
            text = call.arguments or call.input
            self._calls.append(
                self._tool_call_request(call.call_id, call.name, text, head.id, as_function=as_function)
            )

    def _await_agent_output(self, call: RawItemCall) -> None:
        """The step is over when its output is there, or nobody could tell the model of it again. Behind a call of
        the client's there is no waiting for it: some releases do one after the other."""
        if not self._calls:
            self._agent_calls.add(call.call_id)

    def output_requested(self, begun: Collection[str]) -> None:
        """The agent asks for an output of the client's: what of its own it has not begun waits for that."""
        self._agent_calls.intersection_update(begun)

    def has_call(self, call_id: str) -> bool:
        """Whether the call came in the response that is under way."""
        return any(call.call_id == call_id for call in self._calls)

    def add_requested_call(self, params: Params) -> bool:
        """The agent asks for the output of a call that no raw item told: the model made it out of a program.

        Some models do all their work in one tool, `exec`, that runs JavaScript; the client's tools are functions
        there. False where it is no tool of the client's.
        """
        if not params.call_id or not self._names.is_offered(params.tool or ""):
            return False
        text = bytes(params.arguments).decode("utf-8", "replace")
        self._calls.append(
            self._tool_call_request(params.call_id, params.tool or "", text, None, as_function=True)
        )
        return True

    @property
    def must_request_now(self) -> bool:
        """There are calls to ask for, and no end of a response will do it."""
        return bool(self._calls) and not self._response_open and not self._agent_calls

    def end_response(self) -> bool:
        """The response is complete. False where the agent has yet to answer calls that stand before the client's."""
        self._response_open = False
        return not (self._calls and self._agent_calls)

    def discard_for_retry(self) -> None:
        """A retry: what the model put out will come again."""
        self._calls.clear()
        self._agent_calls.clear()
        self._response_open = False
        self._events = [
            event for event in self._events if isinstance(event, RawItem) and event.type in OUTPUT_TYPES
        ]

    def take(self) -> tuple[list[Event], list[ToolCallRequested]]:
        """The raw items, once it is sure that they stay, and the calls that wait for an answer."""
        events, self._events = self._events, []
        calls, self._calls = self._calls, []
        self._agent_calls.clear()
        self._response_open = False
        return events, calls

    def _tool_call_request(
        self, call_id: str, name: str, text: str, item_id: str | None, *, as_function: bool
    ) -> ToolCallRequested:
        """The ask of a whole call: the agent gives no pieces of it. A custom tool's travelled as a function's."""
        name = self._names.client_name(name)
        kind = self._tools[name].kind
        if kind == "custom" and as_function:
            text = custom_input(text)
        return ToolCallRequested(call_id, call_id, name, text, item_id or call_id, kind)


def _is_valid_json(arguments: str) -> bool:
    """Whether the agent can read them. To it, a number may be of any size."""
    if not arguments.strip():
        return True
    try:
        msgspec.json.decode(arguments)
    except msgspec.ValidationError:
        return True
    except UNREADABLE:
        return False
    return True
