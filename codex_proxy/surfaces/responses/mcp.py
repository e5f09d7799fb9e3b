"""Converts MCP items to calls and outputs, and decides which MCP tools may be called, which calls need approval, and
the choice among all tools. Raises `Fault` INVALID_REQUEST (`tool_choice`). Source:
docs/contract.md#tools-of-a-response.

An approval request becomes a call, whose output stands at the client's response. A call that this request approves has
an empty output with `approved_by`: the server runs it before the turn. Without a response, an output says that it was
not made. Raises `Fault` INVALID_REQUEST for a response without its request, or a second one that differs.

The id of a call or request contains the model's call id, which has no field: prefix, twelve random characters, a dash,
the call id.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from codex_proxy.core.faults import Fault, bad_request
from codex_proxy.core.interfaces import IdSource
from codex_proxy.core.items import HistoryCall, HistoryOutput, TextPart, Tool
from codex_proxy.core.json_values import UNREADABLE, value_at
from codex_proxy.core.shown_text import excerpt
from codex_proxy.core.tool_names import ListedTool, offered_name
from codex_proxy.core.turn import NamedTools, ToolChoice
from codex_proxy.surfaces.answers.renderer import json_bytes, json_text
from codex_proxy.surfaces.responses.items import ItemDict
from codex_proxy.surfaces.responses.tools import McpChoice, McpOffer
from codex_proxy.surfaces.responses.wire import McpApprovalFilter, McpToolFilter

_RANDOM_DIGITS: Final = 12
"""Number of random hexadecimal digits in an id."""
_OWN_ID: Final = re.compile(rf"mcpr?_[0-9a-z]{{{_RANDOM_DIGITS}}}-(.+)", re.DOTALL)
_MAX_CHARS: Final = 64
"""Maximum characters of a call id that models accept."""


def new_item_id(prefix: str, call_id: str, ids: IdSource) -> str:
    return f"{prefix}{ids.new('')[:_RANDOM_DIGITS]:0>{_RANDOM_DIGITS}}-{call_id}"


def call_id_of(id: str) -> str:
    """Returns the call id (at most 64 characters) in an item's id; `id` itself if a client made it."""
    found = _OWN_ID.fullmatch(id)
    return (found[1] if found else id)[:_MAX_CHARS]


LIST_TYPE: Final = "mcp_list_tools"
CALL_TYPE: Final = "mcp_call"
REQUEST_TYPE: Final = "mcp_approval_request"
RESPONSE_TYPE: Final = "mcp_approval_response"

CUT_OFF: Final = (
    "The call was cut off before it was answered. It may have had its effect: look before you make it again."
)


def error_text(error: Any) -> str:
    """Returns the text of an error: a string, or one of OpenAI's objects."""
    if isinstance(error, dict):
        content = error.get("content")
        if isinstance(content, list):
            texts = [value_at(part, "text") for part in content]
            if all(isinstance(text, str) for text in texts):
                return "\n".join(texts)
        error = error.get("message", error)
    return error if isinstance(error, str) else json_bytes(error).decode()


def texts_as_array(text: str) -> str:
    """Returns a JSON array of strings (docs/contract.md#mcp-calls), which several texts already are."""
    try:
        msgspec.json.decode(text, type=list[str])
    except UNREADABLE:
        return f"[{json_text(text).decode()}]"
    return text


DENIED: Final = "The user has not approved this call"
UNANSWERED_REQUEST: Final = "The user did not say whether to approve this call, so it was not made."
KINDS: Final = frozenset({LIST_TYPE, CALL_TYPE, REQUEST_TYPE, RESPONSE_TYPE})
_WHOLE_ID: Final = 64
"""The longest id that is used as a call id unchanged."""
_UNDER_WAY: Final = frozenset({"in_progress", "calling", "incomplete"})


class McpHistory:
    def __init__(self, items: Sequence[ItemDict], earlier: int, taken: Collection[str]) -> None:
        """The first `earlier` items are stored, and not checked again. `taken`: ids of other calls."""
        self._earlier = earlier
        self._taken = set(taken)
        self._announced = {item["id"] for item in items if _is_request(item) and item.get("id")}
        self._responses: dict[str, ItemDict] = {}
        self._runs: dict[str, ItemDict] = {}
        """Approved calls, by the approval request's id."""
        for item in items:
            request = item.get("approval_request_id")
            if request is not None and item["type"] in (RESPONSE_TYPE, CALL_TYPE):
                answers = self._responses if item["type"] == RESPONSE_TYPE else self._runs
                answers.setdefault(request, item)
        self._seen: set[str] = set()
        self._requests: dict[str, HistoryCall] = {}
        self._early: dict[str, tuple[ItemDict, int]] = {}
        """Items that came before their approval request, by its id."""
        self._waiting: dict[str, HistoryCall] = {}

    def convert(self, item: ItemDict, index: int) -> Sequence[HistoryCall | HistoryOutput]:
        """Converts an item to its call, its output, both or nothing."""
        kind, request = item["type"], item.get("approval_request_id")
        if kind == REQUEST_TYPE:
            return self._convert_request(item, index) if _is_request(item) else ()
        if kind == RESPONSE_TYPE:
            self._check_approval_response(item, index)
        if kind == RESPONSE_TYPE or request in self._announced:
            return self._convert_answer(item, index)
        return self._convert_call(item, index) if kind == CALL_TYPE else ()

    def unanswered_requests(self) -> Sequence[tuple[HistoryCall, HistoryOutput]]:
        """Returns calls without a response, and outputs that say so."""
        return [(call, _text_output(call, UNANSWERED_REQUEST)) for call in self._waiting.values()]

    # --- one kind of item each ------------------------------------------------------------------

    def _convert_request(self, item: ItemDict, index: int) -> Sequence[HistoryCall | HistoryOutput]:
        call = self._new_call(item, index, by_server=False)
        if call is None:
            return ()
        request = item.get("id") or ""
        self._requests[request] = self._waiting[request] = call
        return (call, *(self._convert_answer(*self._early[request]) if request in self._early else ()))

    def _convert_answer(self, item: ItemDict, index: int) -> Sequence[HistoryOutput]:
        """Returns the output that an approval response gives to the request, once; nothing if the request has not
        come yet.
        """
        request = item["approval_request_id"]
        response, run = self._responses.get(request), self._runs.get(request)
        if (run if response is None else response) is not item or request not in self._announced:
            return ()
        if request not in self._requests:
            self._early[request] = (item, index)
            return ()
        call = self._requests[request]
        self._waiting.pop(request, None)
        if run is not None:
            return (_run_output(run, call),)
        if not item["approve"]:
            reason = item.get("reason")
            return (_text_output(call, f"{DENIED}: {reason}" if reason else f"{DENIED}."),)
        if index < self._earlier:
            return (_text_output(call, CUT_OFF),)
        return (HistoryOutput(call.call_id, (), approved_by=request),)

    def _convert_call(self, item: ItemDict, index: int) -> Sequence[HistoryCall | HistoryOutput]:
        call = self._new_call(item, index, by_server=True)
        return () if call is None else (call, _run_output(item, call))

    def _new_call(self, item: ItemDict, index: int, *, by_server: bool) -> HistoryCall | None:
        """Returns an item's call; None if an earlier item had the id. `by_server`: whether the server ran the call
        without approval.
        """
        id = item.get("id") or f"mcp_{index}"
        if id in self._seen:
            return None
        self._seen.add(id)
        call_id = call_id_of(id)
        if call_id in self._taken:  # some providers count their ids anew in every answer
            call_id = id[:_WHOLE_ID] if id[:_WHOLE_ID] not in self._taken else f"mcp_{len(self._taken)}"
        self._taken.add(call_id)
        return HistoryCall(
            call_id, offered_name(item["server_label"], item["name"]), item["arguments"], by_server=by_server
        )

    def _check_approval_response(self, item: ItemDict, index: int) -> None:
        if index < self._earlier:
            return
        request, param = item["approval_request_id"], f"input[{index - self._earlier}].approval_request_id"
        if request not in self._announced:
            raise bad_request(
                "No approval request found for approval response with approval_request_id "
                f"{excerpt(request)}.",
                param,
            )
        first = self._responses[request]
        to_run = item["approve"] and request not in self._runs
        if first is not item and (to_run or first["approve"] != item["approve"]):
            raise bad_request(f"The approval request {request} has already been answered.", param)


def _is_request(item: ItemDict) -> bool:
    return item["type"] == REQUEST_TYPE and item.get("status") not in _UNDER_WAY


def _run_output(item: ItemDict, call: HistoryCall) -> HistoryOutput:
    output, error = item.get("output"), item.get("error")
    if error is not None:
        text = error_text(error)
    elif output is None and item.get("status") in _UNDER_WAY:
        text = CUT_OFF
    else:
        text = output or ""
    return HistoryOutput(call.call_id, (TextPart(text),), by_server=call.by_server)


def _text_output(call: HistoryCall, text: str) -> HistoryOutput:
    return HistoryOutput(call.call_id, (TextPart(text),))


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
