"""Converts the client's tools to Codex's form, and finds calls to them in the raw items of a model call
(`rawResponseItem/completed`). Codex accepts names of `[A-Za-z0-9_-]{1,128}`, reserves `mcp__`, silently leaves out
`IGNORED_NAMES`, and has no custom tools. Raw items are kept until the model call has ended, because a retry repeats
them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from typing import Any

import msgspec

from codex_proxy.agents.codex_app_server.wire import (
    Params,
    RawItemCall,
    RawItemHead,
    check_readable,
)
from codex_proxy.agents.dialect import UNREADABLE, HeldSize
from codex_proxy.agents.dialects.conversions import custom_input, function_parameters
from codex_proxy.agents.dialects.tool_names import OfferedTools, generated_name
from codex_proxy.core.events import Event, Notice, RawItem, ToolCallRequested
from codex_proxy.core.items import Tool
from codex_proxy.core.limits import ITEM_SIZE

VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
IGNORED_NAMES = frozenset({"exec_command", "shell_command", "functions"})
"""Names that the agent accepts, but leaves out of the model's request."""
RESERVED_PREFIX = "mcp__"
PREFIX = "client_"
"""The prefix of changed names; a client's name with it is changed too, so that names stay unique."""

MAX_CHARS = 64
"""The most characters of a changed name. The agent takes 128, but providers only 64."""

DIGEST_DIGITS = 16
"""Digits of the digest in a changed name: 64 bits."""

MAX_KEPT_CHARS = MAX_CHARS - len(PREFIX) - 1 - DIGEST_DIGITS
"""The most characters of the client's name that a changed name keeps, before the digest."""

_ENDS_LIKE_A_DIGEST = re.compile(rf"_[0-9a-f]{{{DIGEST_DIGITS}}}\Z")


def agent_name(name: str) -> str:
    """Returns the name under which Codex is offered a tool: the same, or with `client_` if Codex reserves or ignores
    it, and with a digest if it is not allowed or ends like one.
    """
    if not _must_rename(name):
        return name
    if (
        VALID_NAME.fullmatch(name)
        and len(PREFIX + name) <= MAX_CHARS
        and not _ENDS_LIKE_A_DIGEST.search(name)
    ):
        return PREFIX + name
    return generated_name(name, PREFIX, kept=MAX_KEPT_CHARS, digits=DIGEST_DIGITS)


def _must_rename(name: str) -> bool:
    """Whether Codex would refuse or leave out the name, or it begins with `client_`."""
    reserved = name in IGNORED_NAMES or name.startswith((RESERVED_PREFIX, PREFIX))
    return reserved or VALID_NAME.fullmatch(name) is None


def dynamic_tool(tool: Tool) -> dict[str, Any]:
    """Returns a tool's entry of `dynamicTools`; a custom tool becomes a function with one string, `input`."""
    name = agent_name(tool.name)
    return {
        "type": "function",
        "name": name,
        "description": tool.description,
        "inputSchema": function_parameters(tool),
    }


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
"""Raw items that the model must see again; others are the agent's own context."""

CALL_TYPES = frozenset({"function_call", "custom_tool_call"})

OUTPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})
"""Raw items between two model calls, which a retry does not repeat."""


class ModelItems:
    """The raw items of the current model call, and the client's calls among them; `take` returns both."""

    def __init__(self, tools: Sequence[Tool] = (), *, plain: bool = True) -> None:
        """`plain`: Codex has no tools of its own."""
        self._tools = OfferedTools(tools, agent_name)
        self._plain = plain
        self._events: list[Event] = []
        self._held = HeldSize("items of the model")
        self._calls: dict[str, ToolCallRequested] = {}
        """The response's calls of the client's tools, by id, in their order."""
        self._response_open = False
        """Whether a response of the model has begun and not ended."""
        self._agent_calls: set[str] = set()
        """Calls that the agent itself has still to answer before it asks the client."""
        self._outputs_from_client: set[str] = set()
        """Calls whose outputs the client gave, and so has in its history."""

    def add_item(self, item: msgspec.Raw) -> RawItemHead | None:
        """Adds a raw item of the model, and returns its type, id and role; None for a message of Codex or an output.
        Raises one of `UNREADABLE`.
        """
        head = msgspec.json.decode(item, type=RawItemHead)
        if head.type not in KEPT_TYPES or (head.type == "message" and head.role != "assistant"):
            return None
        check_readable(item)
        call = msgspec.json.decode(item, type=RawItemCall) if head.type in CALL_TYPES else None
        self._response_open = True
        self._add(head.type, item)
        if call is not None:
            self._add_call(head, call)
        return head

    def add_output(self, item: msgspec.Raw) -> str | None:
        """Adds the output of a call by Codex (not of the client), and returns the call's id; None for other items.
        Raises one of `UNREADABLE`.
        """
        head = msgspec.json.decode(item, type=RawItemHead)
        if head.type not in OUTPUT_TYPES:
            return None
        check_readable(item)
        call_id = msgspec.json.decode(item, type=RawItemCall).call_id
        self._agent_calls.discard(call_id)
        if call_id in self._outputs_from_client:
            self._outputs_from_client.remove(call_id)
        else:
            self._add(head.type, item)
        return call_id

    def _add(self, type: str, item: msgspec.Raw) -> None:
        self._held.add(len(item) + ITEM_SIZE)
        self._events.append(RawItem(type, bytes(item)))

    def client_gave_outputs(self, call_ids: Iterable[str]) -> None:
        """Records that the client gave these outputs."""
        self._outputs_from_client.update(call_ids)

    def _add_call(self, head: RawItemHead, call: RawItemCall) -> None:
        """Adds a call of a client's tool. If Codex answers it itself (unknown tool, invalid arguments), adds a
        `Notice`, but for unknown tools in agent turns.
        """
        tool = self._tools.find(call.name)
        if tool is None:
            if self._plain:  # in agent mode it may be one of the agent's own tools
                self._events.append(Notice("unoffered_call", call.name))
            self._await_agent_output(call)
        elif head.type == "function_call" and not _is_valid_json(call.arguments):
            self._events.append(Notice("unreadable_arguments", call.name))
            self._await_agent_output(call)
        elif not self.has_call(call.call_id):
            as_function = head.type == "function_call"
            text = call.arguments or call.input
            self._calls[call.call_id] = _tool_call_request(
                call.call_id, tool, text, head.id, as_function=as_function
            )

    def _await_agent_output(self, call: RawItemCall) -> None:
        """The step must not end before Codex has answered this call, for the history; unless a client's call came
        before, since some releases run calls in order.
        """
        if not self._calls:
            self._agent_calls.add(call.call_id)

    def output_requested(self, begun: Collection[str]) -> None:
        """Codex requests the output of a client's tool, and so starts none of its other calls before: the step waits
        only for those in `begun`.
        """
        if self._agent_calls:
            self._agent_calls = {call_id for call_id in self._agent_calls if call_id in begun}

    def has_call(self, call_id: str) -> bool:
        """Returns whether the current response has this call of a client's tool."""
        return call_id in self._calls

    def add_requested_call(self, params: Params) -> bool:
        """Adds a requested call that came in no raw item, and returns whether its tool is the client's: models with the
        single tool `exec` call the client's tools from JavaScript.
        """
        tool = self._tools.find(params.tool or "")
        if not params.call_id or tool is None:
            return False
        text = bytes(params.arguments).decode("utf-8", "replace")
        self._calls[params.call_id] = _tool_call_request(params.call_id, tool, text, None, as_function=True)
        return True

    @property
    def must_request_now(self) -> bool:
        """Whether the client must be asked now: no response is open, and Codex answers no call itself."""
        return bool(self._calls) and not self._response_open and not self._agent_calls

    def end_response(self) -> bool:
        """Handles the end of the model's response; returns whether the step ends, or has still to wait for Codex's own
        calls beside the client's.
        """
        self._response_open = False
        return not (self._calls and self._agent_calls)

    def discard_for_retry(self) -> None:
        """Drops the response's raw items and calls before a retry; outputs stay."""
        self._calls.clear()
        self._agent_calls.clear()
        self._response_open = False
        kept = [event for event in self._events if isinstance(event, RawItem) and event.type in OUTPUT_TYPES]
        self._events = [*kept]
        self._held.clear()
        for event in kept:
            self._held.add(len(event.json) + ITEM_SIZE)

    def take(self) -> tuple[list[Event], list[ToolCallRequested]]:
        """Removes and returns what was added: raw items and notices as events, and the client's calls."""
        events, self._events = self._events, []
        self._held.clear()
        calls, self._calls = list(self._calls.values()), {}
        self._agent_calls.clear()
        self._response_open = False
        return events, calls


def _tool_call_request(
    call_id: str, tool: Tool, text: str, item_id: str | None, *, as_function: bool
) -> ToolCallRequested:
    """Returns the event for a call; `text` is JSON arguments or a custom tool's input, `item_id` that of the raw
    item.
    """
    if tool.kind == "custom" and as_function:
        text = custom_input(text)
    return ToolCallRequested(call_id, call_id, tool.name, text, item_id or call_id, tool.kind)


def _is_valid_json(arguments: str) -> bool:
    """Whether Codex can read the arguments: valid JSON, or empty."""
    if not arguments.strip():
        return True
    try:
        msgspec.json.decode(arguments, type=msgspec.Raw)
    except msgspec.ValidationError:
        return True
    except UNREADABLE:
        return False
    return True
