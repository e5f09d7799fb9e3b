"""What the items of MCP servers hold on the wire: lists of tools, calls that this server runs, requests to approve one.

In: such an item as it grows (`OutputItem`), or as a client sends it back. Out: its fields, or the text that the model
gets of it. A call shows what it gave only when it is over: as `output`, or as `error` where it failed. OpenAI's types
have a status for calls only; here all have one, since Open Responses wants it of every item and no client minds.

Calls and requests to approve one have no call id of their own, so their id holds it: a prefix, twelve random
characters, a dash, and the model's call id. What a later request says of the item is then said of the call that the
model knows.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import msgspec

from codex_proxy.core.ids import IdSource
from codex_proxy.core.items import McpApproval, McpCall, McpTools
from codex_proxy.surfaces.base import json_text, raw_text, schema_json

if TYPE_CHECKING:
    from codex_proxy.surfaces.responses.output import OutputItem

MCP_CALL: Final = "mcp_"
APPROVAL_REQUEST: Final = "mcpr_"
_CHANCE: Final = 12
"""Letters, of sixteen kinds: with the call id behind them, two ids are never one."""
_OURS: Final = re.compile(rf"mcpr?_[0-9a-z]{{{_CHANCE}}}-(.+)", re.DOTALL)
_MAX_CHARS: Final = 64
"""Letters of a call id that models take."""


def id_with(prefix: str, call_id: str, ids: IdSource) -> str:
    """A new id for an item of this call."""
    return f"{prefix}{ids.new('')[:_CHANCE]:0>{_CHANCE}}-{call_id}"


def call_id_of(id: str) -> str:
    """The call id in an item's id; where a client made the id up, as much of it as a call id can be."""
    found = _OURS.fullmatch(id)
    return (found[1] if found else id)[:_MAX_CHARS]


LIST: Final = "mcp_list_tools"
CALL: Final = "mcp_call"
REQUEST: Final = "mcp_approval_request"
RESPONSE: Final = "mcp_approval_response"

CUT_OFF: Final = (
    "The call was cut off before it was answered. It may have had its effect: look before you make it again."
)


def list_fields(output: OutputItem) -> dict[str, Any]:
    """The fields of an `mcp_list_tools` item: its tools, or an error; neither while the server is being asked."""
    item = output.item
    assert isinstance(item, McpTools)
    if output.status == "in_progress":
        return {"server_label": raw_text(item.server_label), "tools": []}
    listed = {"server_label": raw_text(item.server_label), "tools": msgspec.Raw(item.tools)}
    return listed if item.error is None else listed | {"error": raw_text(item.error)}


def call_fields(output: OutputItem) -> dict[str, Any]:
    """The fields of an `mcp_call` item."""
    item = output.item
    assert isinstance(item, McpCall)
    asked_by = item.approval_request_id
    text = raw_text("".join(output.printed))
    return {
        "approval_request_id": None if asked_by is None else raw_text(asked_by),
        "arguments": _arguments(output),
        "error": _error(text) if output.status == "failed" else None,
        "name": raw_text(item.name),
        "output": text if output.status == "completed" else None,
        "server_label": raw_text(item.server_label),
    }


def request_fields(output: OutputItem) -> dict[str, Any]:
    """The fields of an `mcp_approval_request` item."""
    item = output.item
    assert isinstance(item, McpApproval)
    return {
        "arguments": _arguments(output),
        "name": raw_text(item.name),
        "server_label": raw_text(item.server_label),
    }


def _arguments(output: OutputItem) -> msgspec.Raw:
    return msgspec.Raw(b"".join(part.whole() for part in output.parts) or b'""')


def _error(text: msgspec.Raw) -> dict[str, Any]:
    """An `error` in the shape that OpenAI uses for failures of the tool itself, with the tool's text."""
    return {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": text}]}


def error_text(error: Any) -> str:
    """The text of an item's `error`, in any of OpenAI's three shapes or as a plain string."""
    if isinstance(error, dict):
        content = error.get("content")
        if isinstance(content, list) and all(isinstance(_text_in(part), str) for part in content):
            return "\n".join(map(_text_in, content))
        error = error.get("message", error)
    return error if isinstance(error, str) else bytes(schema_json(error)).decode()


def _text_in(part: Any) -> Any:
    return part.get("text") if isinstance(part, dict) else None


def as_array(text: str) -> str:
    """A result as docs/contract.md#mcp-calls has it: a JSON array of strings, which several texts are already."""
    try:
        msgspec.json.decode(text, type=list[str])
    except (msgspec.MsgspecError, UnicodeEncodeError):
        return f"[{json_text(text).decode()}]"
    return text
