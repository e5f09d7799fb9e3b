"""Converts the client's tools to the form that Codex accepts, and finds the calls to them in the raw items of the
current model call. A raw item is an output item of the Responses API as the model made it
(`rawResponseItem/completed`). A step is one call of the model, with the tool calls in its response.

Codex accepts tool names that match `[A-Za-z0-9_-]{1,128}`, reserves the prefix `mcp__`, and silently leaves out the
tools in `IGNORED_NAMES`. It has no custom tools. Source: experiments with releases 0.163 and 0.169.

Raw items are kept until the model call has ended: if Codex retries the call, all of them come again, and only the
end shows that there are no further calls.
"""

from __future__ import annotations

import hashlib
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
from codex_proxy.agents.conversions import custom_input, function_parameters
from codex_proxy.agents.dialect import UNREADABLE, HeldSize
from codex_proxy.core.events import Event, Notice, RawItem, ToolCallRequested
from codex_proxy.core.items import Tool
from codex_proxy.core.limits import ITEM_SIZE

VALID_NAME = re.compile(r"[A-Za-z0-9_-]{1,128}")
IGNORED_NAMES = frozenset({"exec_command", "shell_command", "functions"})
"""Names that the agent accepts, but leaves out of the model's request."""
RESERVED_PREFIX = "mcp__"
PREFIX = "client_"
"""The prefix of a name that must be changed. A client's name with this prefix is changed, too, so that names stay
unique."""

MAX_CHARS = 64
"""The most characters of a changed name. The agent takes 128, but providers only 64."""

DIGEST_DIGITS = 16
"""The number of digits of the digest in a changed name: 64 bits, so that two names do not become the same."""

MAX_KEPT_CHARS = MAX_CHARS - len(PREFIX) - 1 - DIGEST_DIGITS
"""The most characters of the client's name that a changed name keeps, before the digest."""

_ENDS_LIKE_A_DIGEST = re.compile(rf"_[0-9a-f]{{{DIGEST_DIGITS}}}\Z")


def agent_name(name: str) -> str:
    """Returns the name under which Codex is offered the client's tool `name`: the same name if Codex accepts it. A
    name that Codex reserves or ignores, or that begins with `client_`, gets the prefix `client_`. If that is too
    long or ends in what could be a digest, or if Codex does not accept all characters, the result is the prefix,
    the name's first characters, and a digest of the name.
    """
    if not _must_rename(name):
        return name
    if (
        VALID_NAME.fullmatch(name)
        and len(PREFIX + name) <= MAX_CHARS
        and not _ENDS_LIKE_A_DIGEST.search(name)
    ):
        return PREFIX + name
    kept = re.sub(r"[^A-Za-z0-9_-]", "_", name)[:MAX_KEPT_CHARS]
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_DIGITS]
    return f"{PREFIX}{kept}_{digest}"


def _must_rename(name: str) -> bool:
    """Returns whether Codex would refuse or leave out a tool with this name, or the name begins with `client_`."""
    reserved = name in IGNORED_NAMES or name.startswith((RESERVED_PREFIX, PREFIX))
    return reserved or VALID_NAME.fullmatch(name) is None


class ToolNames:
    """Converts the names that `agent_name` has returned for one turn's tools back to the client's names."""

    def __init__(self, names: Iterable[str]) -> None:
        self._client = {agent_name(name): name for name in names}

    def is_offered(self, name: str) -> bool:
        """Returns whether a tool is offered to Codex under this name."""
        return name in self._client

    def client_name(self, name: str) -> str:
        """Returns the client's name for the tool that is offered to Codex under `name`; `name` itself if there is
        none.
        """
        return self._client.get(name, name)


def dynamic_tool(tool: Tool) -> dict[str, Any]:
    """Returns the entry of `dynamicTools` in `thread/start` for a tool. A custom tool becomes a function with one
    string argument, `input`.
    """
    name = agent_name(tool.name)
    return {
        "type": "function",
        "name": name,
        "description": tool.description,
        "inputSchema": function_parameters(tool),
    }


def custom_arguments(text: str) -> str:
    """Returns the JSON arguments of the function with which Codex is offered a custom tool, for a call with the
    input `text`.
    """
    return msgspec.json.encode({"input": text}).decode()


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
"""Types of raw items that the model must see again in later turns. Other types are the agent's own context."""

CALL_TYPES = frozenset({"function_call", "custom_tool_call"})

OUTPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})
"""Types of raw items that come between two model calls, so that a retry does not repeat them."""


class ModelItems:
    """The raw items of the current model call (its response), and those tool calls among them for which the client
    must give outputs. `take` returns both.
    """

    def __init__(self, tools: Sequence[Tool] = (), *, plain: bool = True) -> None:
        """`tools` are the client's. `plain`: it is a plain-model turn, in which Codex has no tools of its own."""
        self._tools = {tool.name: tool for tool in tools}
        self._names = ToolNames(self._tools)
        self._plain = plain
        self._events: list[Event] = []
        self._held = HeldSize("items of the model")
        self._calls: dict[str, ToolCallRequested] = {}
        """The response's calls of the client's tools, by id, in their order."""
        self._response_open = False
        """Whether a response of the model has begun and not ended."""
        self._agent_calls: set[str] = set()
        """The ids of calls that the agent itself answers before it requests the first output of the client, and has
        not answered yet."""
        self._outputs_from_client: set[str] = set()
        """The ids of calls whose outputs the client gave. They are in the client's history already."""

    def add_item(self, item: msgspec.Raw) -> RawItemHead | None:
        """Adds a raw item of the model to those of the current response, and returns its type, id and role. Returns
        None, and adds nothing, if the item is not the model's, but a message that Codex has added or the output of
        a call. Raises one of the exceptions in `UNREADABLE` if the item cannot be decoded.
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
        """Adds a raw item with the output of a call, which Codex has given to the model; an output that the client
        gave is not added again. Returns the call's id; None if the item is not an output. Raises one of the
        exceptions in `UNREADABLE` if the item cannot be decoded.
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
        """Records that the client gave the outputs of these calls, so that `add_output` does not add them."""
        self._outputs_from_client.update(call_ids)

    def _add_call(self, head: RawItemHead, call: RawItemCall) -> None:
        """Adds a call of a client's tool to those for which the client must give outputs. If Codex cannot pass the
        call on, because the tool is unknown or the arguments are invalid, Codex answers the call itself; then a
        `Notice` is added instead, except for unknown tools in agent turns. `head` and `call` are two parts of the
        same raw item.
        """
        if not self._names.is_offered(call.name):
            if self._plain:  # in agent mode it may be one of the agent's own tools
                self._events.append(Notice("unoffered_call", call.name))
            self._await_agent_output(call)
        elif head.type == "function_call" and not _is_valid_json(call.arguments):
            self._events.append(Notice("unreadable_arguments", call.name))
            self._await_agent_output(call)
        elif not self.has_call(call.call_id):
            as_function = head.type == "function_call"
            text = call.arguments or call.input
            self._calls[call.call_id] = self._tool_call_request(
                call.call_id, call.name, text, head.id, as_function=as_function
            )

    def _await_agent_output(self, call: RawItemCall) -> None:
        """Records that the step must not end before Codex has answered this call itself, so that the output is in
        the history of later turns. Does nothing if a call of a client's tool came before, because some releases run
        calls one after the other.
        """
        if not self._calls:
            self._agent_calls.add(call.call_id)

    def output_requested(self, begun: Collection[str]) -> None:
        """Handles Codex's request for the output of a client's tool. `begun` are the ids of the items that Codex
        has started. Codex will start none of its other calls in this response before it gets the output, so the
        step no longer waits for them.
        """
        if self._agent_calls:
            self._agent_calls = {call_id for call_id in self._agent_calls if call_id in begun}

    def has_call(self, call_id: str) -> bool:
        """Returns whether the current response has this call of a client's tool."""
        return call_id in self._calls

    def add_requested_call(self, params: Params) -> bool:
        """Adds a call of a client's tool for which Codex requests the output, although there was no raw item for
        it. `params` are the parameters of `item/tool/call`. Returns False if it is not a call of a client's tool.

        This happens with models that use one tool, `exec`, which runs JavaScript: the client's tools are functions
        in it.
        """
        if not params.call_id or not self._names.is_offered(params.tool or ""):
            return False
        text = bytes(params.arguments).decode("utf-8", "replace")
        self._calls[params.call_id] = self._tool_call_request(
            params.call_id, params.tool or "", text, None, as_function=True
        )
        return True

    @property
    def must_request_now(self) -> bool:
        """Whether the client must be asked for the outputs of its tools' calls now. This is so if no response of
        the model is open, so that no end of a response will follow, and Codex answers no call itself.
        """
        return bool(self._calls) and not self._response_open and not self._agent_calls

    def end_response(self) -> bool:
        """Handles the end of the model's response. Returns whether the step ends with it. It does not end yet if
        there are calls of the client's tools, and Codex has still to answer other calls itself.
        """
        self._response_open = False
        return not (self._calls and self._agent_calls)

    def discard_for_retry(self) -> None:
        """Drops the raw items and calls of the current response, because Codex retries the model call and they come
        again. Outputs of calls are kept.
        """
        self._calls.clear()
        self._agent_calls.clear()
        self._response_open = False
        kept = [event for event in self._events if isinstance(event, RawItem) and event.type in OUTPUT_TYPES]
        self._events = [*kept]
        self._held.clear()
        for event in kept:
            self._held.add(len(event.json) + ITEM_SIZE)

    def take(self) -> tuple[list[Event], list[ToolCallRequested]]:
        """Removes and returns everything that was added: the raw items (and notices) as events, and the calls for
        which the client must give outputs, which are not among those events.
        """
        events, self._events = self._events, []
        self._held.clear()
        calls, self._calls = list(self._calls.values()), {}
        self._agent_calls.clear()
        self._response_open = False
        return events, calls

    def _tool_call_request(
        self, call_id: str, name: str, text: str, item_id: str | None, *, as_function: bool
    ) -> ToolCallRequested:
        """Returns the event for a call of the tool that Codex calls `name`. `text` is the call's JSON arguments
        (`as_function`), or the input of a custom tool. `item_id` is the id of the raw item; None if there is none.
        """
        name = self._names.client_name(name)
        kind = self._tools[name].kind
        if kind == "custom" and as_function:
            text = custom_input(text)
        return ToolCallRequested(call_id, call_id, name, text, item_id or call_id, kind)


def _is_valid_json(arguments: str) -> bool:
    """Returns whether Codex can read these arguments: valid JSON, with numbers of any size, or an empty text."""
    if not arguments.strip():
        return True
    try:
        msgspec.json.decode(arguments, type=msgspec.Raw)
    except msgspec.ValidationError:
        return True
    except UNREADABLE:
        return False
    return True
