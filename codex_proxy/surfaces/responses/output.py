"""Builds a response's output items (`KINDS`). Those of tools that the model server runs stay as it gives them; only
ids and places are this answer's. Source: docs/wire-rules.md#the-responses-object.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.core.interfaces import IdSource
from codex_proxy.core.items import (
    CODE_CALL,
    SERVER_ITEMS,
    Activity,
    ClientName,
    Item,
    McpApproval,
    McpCall,
    McpTools,
    Message,
    Reasoning,
    ToolCall,
)
from codex_proxy.core.json_values import UNREADABLE
from codex_proxy.surfaces.answers.renderer import json_lines, json_text, raw_text
from codex_proxy.surfaces.answers.usage import json_tokens
from codex_proxy.surfaces.responses import mcp
from codex_proxy.surfaces.responses.client_tools import CALL_FIELDS
from codex_proxy.surfaces.responses.items import PREFIXES, ItemDict

PartKey: TypeAlias = tuple[str, int]
"""A part's kind (`text`, `refusal`, `summary`, `arguments`, `output`) and number."""

TEXT_KEY: Final[PartKey] = ("text", 0)
REFUSAL_KEY: Final[PartKey] = ("refusal", 0)
ARGUMENTS_KEY: Final[PartKey] = ("arguments", 0)
OUTPUT_KEY: Final[PartKey] = ("output", 0)
LINE_KEY: Final[PartKey] = ("summary", 0)
ANNOTATION_KEY: Final[PartKey] = ("annotation", 0)

TOOL_SEARCH_CALL: Final = "tool_search_call"
WHOLE_CALLS: Final = frozenset({TOOL_SEARCH_CALL, *CALL_FIELDS})
"""Kinds of calls without events for their arguments: they are sent once these are whole."""
ACTIVITY_TYPE: Final = "codex:activity"
"""The type of items about what the agent did, for clients that ask for them."""

_OWN_ID_LENGTH: Final = 20
"""The fewest characters of an id that is kept."""
_PHASES: Final = frozenset({"commentary", "final_answer"})


class Part:
    """A part of an item's content. `index`: the part's place in the content; `fragments`: its text as JSON strings."""

    __slots__ = ("annotations", "fragments", "head", "index", "key")

    def __init__(self, key: PartKey, index: int) -> None:
        self.key = key
        self.index = index
        self.fragments: list[bytes] = []
        self.annotations: list[msgspec.Raw] = []
        """The sources that the text cites."""
        self.head = b""

    def add(self, texts: Sequence[str]) -> list[bytes]:
        if len(texts) == 1:  # it may be long
            self.fragments.append(json_text(texts[0]))
            return self.fragments[-1:]
        lines = json_lines(texts)
        self.fragments.append(lines.replace(b'"\n"', b""))
        return lines.split(b"\n")

    def whole(self) -> bytes:
        """Returns the text so far as one JSON string."""
        if len(self.fragments) != 1:  # joined once: several events at the end have the whole text
            self.fragments = [b"".join([b'"', *[fragment[1:-1] for fragment in self.fragments], b'"'])]
        return self.fragments[0]


class OutputItem:
    """An output item. `kind` and `id` (as JSON) are the client's; `index` is None until the item is sent. `kept`: the
    item's text while it is `waiting`.
    """

    __slots__ = (
        "awaiting", "client_name", "done", "encrypted", "id", "index", "item", "kept", "kind", "made_by_server",
        "parts", "printed", "status", "waiting",
    )  # fmt: skip

    def __init__(self, item: Item, kind: str, id: str, client_name: ClientName | None = None) -> None:
        self.item = item
        self.kind = kind
        self.id = raw_text(id)
        self.made_by_server = isinstance(item, SERVER_ITEMS)
        """Whether the item is an MCP list, call or approval."""
        self.client_name = client_name
        """The client's name of the tool, if it differs."""
        self.index: int | None = None
        self.parts: list[Part] = []
        self.status = "in_progress"
        self.waiting = False
        """Whether another item is being sent first."""
        self.kept: list[tuple[PartKey, str]] = []
        self.awaiting = False
        """Whether its encrypted content is still to come."""
        self.encrypted: str | None = None
        self.printed: list[str] = []
        """The result of this server's call, or the arguments of `WHOLE_CALLS`."""
        self.done: dict[str, Any] | None = None
        """The object of an ended item, as it was sent."""

    @property
    def tool_name(self) -> ClientName:
        assert isinstance(self.item, ToolCall)
        return self.client_name or ClientName(self.item.name)

    def part(self, key: PartKey) -> Part | None:
        """Returns the last part, if it has this key."""
        last = self.parts[-1] if self.parts else None
        return last if last is not None and last.key == key else None

    def text(self) -> msgspec.Raw:
        """Returns the texts of the parts as one JSON string."""
        return msgspec.Raw(b"".join(part.whole() for part in self.parts) or b'""')

    def whole(self) -> dict[str, Any]:
        """Returns the object for the client, so far."""
        head = {"type": self.kind, "id": self.id, "status": self.status}
        return head | KINDS[self.kind](self)

    def tokens(self) -> int:
        return json_tokens(part.whole() for part in self.parts)


def text_part(part: Part) -> dict[str, Any]:
    return _part(part.key[0], msgspec.Raw(part.whole()), part.annotations)


def empty_part(part: Part) -> dict[str, Any]:
    """Returns the part with an empty text, for its first event."""
    return _part(part.key[0], "", [])


def _part(kind: str, text: Any, annotations: list[msgspec.Raw]) -> dict[str, Any]:
    if kind == "text":
        return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}
    if kind == "refusal":
        return {"type": "refusal", "refusal": text}
    return {"type": "summary_text", "text": text}


def _message(output: OutputItem) -> dict[str, Any]:
    body = {"role": "assistant", "content": [text_part(part) for part in output.parts]}
    phase = output.item.phase if isinstance(output.item, Message) else None
    return body | ({"phase": phase} if phase in _PHASES else {})


def _reasoning(output: OutputItem) -> dict[str, Any]:
    body: dict[str, Any] = {"summary": [text_part(part) for part in output.parts]}
    return body | ({} if output.encrypted is None else {"encrypted_content": raw_text(output.encrypted)})


def _call(output: OutputItem) -> dict[str, Any]:
    assert isinstance(output.item, ToolCall)
    called = output.tool_name
    call = {"call_id": raw_text(output.item.call_id), "name": raw_text(called.name)}
    if called.namespace is not None:
        call["namespace"] = raw_text(called.namespace)
    return call | {"input" if output.kind == "custom_tool_call" else "arguments": output.text()}


def _tool_search_call(output: OutputItem) -> dict[str, Any]:
    assert isinstance(output.item, ToolCall)
    call_id = raw_text(output.item.call_id)
    return {"call_id": call_id, "execution": "client", "arguments": _arguments_of(output)}


def _machine_call(output: OutputItem) -> dict[str, Any]:
    assert isinstance(output.item, ToolCall)
    return {"call_id": raw_text(output.item.call_id), **CALL_FIELDS[output.kind](_arguments_of(output))}


def _arguments_of(output: OutputItem) -> dict[str, Any]:
    try:
        return msgspec.json.decode("".join(output.printed), type=dict[str, Any])
    except UNREADABLE:
        return {}


def _activity(output: OutputItem) -> dict[str, Any]:
    assert isinstance(output.item, Activity)
    return {"kind": output.item.kind, "text": raw_text(output.item.text), "output": output.text()}


def _mcp_list(output: OutputItem) -> dict[str, Any]:
    """Returns the tools, or an error; neither while the server is asked."""
    item = output.item
    assert isinstance(item, McpTools)
    if output.status == "in_progress":
        return {"server_label": raw_text(item.server_label), "tools": []}
    listed = {"server_label": raw_text(item.server_label), "tools": msgspec.Raw(item.tools)}
    return listed if item.error is None else listed | {"error": raw_text(item.error)}


def _mcp_call(output: OutputItem) -> dict[str, Any]:
    """Returns `output` after success, `error` after failure."""
    item = output.item
    assert isinstance(item, McpCall)
    asked_by = item.approval_request_id
    text = raw_text("".join(output.printed))
    return {
        "approval_request_id": None if asked_by is None else raw_text(asked_by),
        "arguments": output.text(),
        "error": _mcp_error(text) if output.status == "failed" else None,
        "name": raw_text(item.name),
        "output": text if output.status == "completed" else None,
        "server_label": raw_text(item.server_label),
    }


def _mcp_approval(output: OutputItem) -> dict[str, Any]:
    item = output.item
    assert isinstance(item, McpApproval)
    return {
        "arguments": output.text(),
        "name": raw_text(item.name),
        "server_label": raw_text(item.server_label),
    }


def _mcp_error(text: msgspec.Raw) -> dict[str, Any]:
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}


KINDS: Final[dict[str, Callable[[OutputItem], dict[str, Any]]]] = {
    "message": _message,
    "reasoning": _reasoning,
    "function_call": _call,
    "custom_tool_call": _call,
    TOOL_SEARCH_CALL: _tool_search_call,
    **dict.fromkeys(CALL_FIELDS, _machine_call),
    mcp.LIST_TYPE: _mcp_list,
    mcp.CALL_TYPE: _mcp_call,
    mcp.REQUEST_TYPE: _mcp_approval,
    ACTIVITY_TYPE: _activity,
}
"""The functions that return an item's fields beside type, id and status, by kind."""

_SERVER_ITEM_KINDS: Final[dict[type[Item], str]] = {
    McpTools: mcp.LIST_TYPE,
    McpCall: mcp.CALL_TYPE,
    McpApproval: mcp.REQUEST_TYPE,
}


def output_item(
    item: Item, ids: IdSource, *, activity: str, client_names: Mapping[str, ClientName]
) -> OutputItem | None:
    """Returns the output item that shows an item of the turn to the client. By `activity`, the agent's actions are not
    sent (`off`), are lines of reasoning (`summaries`), or are items (`items`).
    """
    called = client_names.get(item.name) if isinstance(item, ToolCall) else None
    kind = (called.call_type if called is not None else "") or _kind_of(item, activity)
    if kind is None:
        return None
    prefix, own = PREFIXES[kind], item.id
    if isinstance(item, McpCall | McpApproval):
        return OutputItem(item, kind, mcp.new_item_id(prefix, item.call_id, ids))
    return OutputItem(item, kind, new_item_id(own, prefix, ids), called)


def new_item_id(own: str, prefix: str, ids: IdSource) -> str:
    """Returns the agent's id of an item if it has the form of OpenAI's, else a new one."""
    keep = own.startswith(prefix) and len(own) >= _OWN_ID_LENGTH and "~" not in own
    return own if keep else ids.new(prefix)


def _kind_of(item: Item, activity: str) -> str | None:
    if isinstance(item, Message):
        return "message"
    if isinstance(item, Reasoning):
        return "reasoning"
    if isinstance(item, ToolCall):
        return "custom_tool_call" if item.kind == "custom" else "function_call"
    if isinstance(item, Activity):
        return {"summaries": "reasoning", "items": ACTIVITY_TYPE}.get(activity)
    return _SERVER_ITEM_KINDS[type(item)]


HOSTED_TYPES: Final = frozenset({"code_interpreter_call", "file_search_call", "image_generation_call"})
_RUNNING: Final = frozenset({"in_progress", "interpreting", "searching", "generating"})
_Fields = dict[str, msgspec.Raw]
_decode = msgspec.json.Decoder(_Fields).decode


class HostedItem(OutputItem):
    __slots__ = ("_fields",)

    def __init__(self, item: Activity, ids: IdSource) -> None:
        super().__init__(item, item.hosted, new_item_id(item.id, PREFIXES[item.hosted], ids))
        self._fields: _Fields = {}

    def set(self, json: bytes) -> None:
        """Sets the item as it is now."""
        self._fields = _decode(json)

    def whole(self) -> dict[str, Any]:
        status: Any = self._fields.get("status", self.status)
        if self.status != "in_progress" and _is_running(status):  # the server has never said how it ended
            status = "failed" if self.kind == "image_generation_call" else "incomplete"
        return {**self._fields, "type": self.kind, "id": self.id, "status": status}


def _is_running(status: str | msgspec.Raw) -> bool:
    given = status if isinstance(status, str) else msgspec.json.decode(status)
    return isinstance(given, str) and given in _RUNNING


def event_fields(json: bytes) -> _Fields:
    """Returns the fields of an event of the model server, from its JSON."""
    return _decode(json)


def without_container(item: ItemDict) -> ItemDict:
    """Returns a call of `code_interpreter` without the container that it ran in, in which the model server would run
    later code, too; other items unchanged.
    """
    if item["type"] != CODE_CALL or not item.get("container_id"):
        return item
    return {name: value for name, value in item.items() if name != "container_id"}
