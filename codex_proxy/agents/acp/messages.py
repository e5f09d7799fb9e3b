"""The messages of the Agent Client Protocol, version 1: JSON-RPC 2.0, one JSON object per line; both sides send
requests.

Agents differ in which fields they leave out and in what a field contains, so most fields are decoded as plain JSON
values. Source: npm @agentclientprotocol/sdk 2.4.0 `schema/v1/schema.json`, and recordings of eight agents.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import msgspec

PROTOCOL_VERSION: Final = 1

UNREADABLE: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The exceptions that decoding a line may raise."""

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
AUTH_REQUIRED: Final = -32000

_PER_CHANNEL: Final = 1_000_000
"""The request ids of a channel are `channel * _PER_CHANNEL + n`. They are integers, which every agent returns
unchanged."""


class RpcError(msgspec.Struct, frozen=True):
    """The `error` of a JSON-RPC response. Gemini CLI uses an HTTP status as the code. `code` is None if it has
    none.
    """

    code: int | None = None
    message: str = ""
    data: Any = None


class Update(msgspec.Struct, frozen=True, rename="camel"):
    """The content of `session/update`, and the tool call in a request for permission. The fields have their names
    in ACP; None where the agent has left a field out.
    """

    session_update: str = ""
    content: Any = None
    message_id: str | None = None
    tool_call_id: str | None = None
    name: str | None = None
    title: str | None = None
    kind: str | None = None
    status: str | None = None
    raw_input: Any = None
    raw_output: Any = None
    entries: Any = None
    severity: str | None = None
    meta: Any = msgspec.field(default=None, name="_meta")


class Params(msgspec.Struct, frozen=True, rename="camel"):
    """The parameters of the agent's notifications and requests; only the fields that are read."""

    session_id: str = ""
    update: Update | None = None
    tool_call: Update | None = None
    options: Any = None


class Message(msgspec.Struct, frozen=True):
    """A request or notification from the agent (with `method`), or its response to a request of this server
    (without). A notification has no `id`; `error` is None in a response that is none.
    """

    method: str | None = None
    id: int | str | None = None
    params: Params = Params()
    result: Any = None
    error: RpcError | None = None


class ToolsListed(msgspec.Struct, frozen=True):
    """The agent has requested the tool list of the session's tool server. `in_time` is False if it has not, and the
    time limit has passed."""

    in_time: bool = True


class ToolCalled(msgspec.Struct, frozen=True):
    """The agent calls a tool of the session's tool server, and waits for the output."""

    key: str
    """The id that the tool server has given the call."""
    call_id: str
    """The model's id of the call; empty if the agent does not report it."""
    name: str
    """The name under which the tool is offered."""
    arguments: str
    """The arguments as JSON text."""


class ToolsSettled(msgspec.Struct, frozen=True):
    """No further call has come for some time after the last one. `last`: the longer time limit is over, too, so the
    turn waits for no more calls.
    """

    last: bool = False


class ToolDropped(msgspec.Struct, frozen=True):
    """The agent has stopped waiting for the output of the call `key`."""

    key: str


class ModelCallFailed(msgspec.Struct, frozen=True):
    """The agent's log reports a failed call of the model. The agent then repeats the call or ends its turn with an
    error. `text`: the error.
    """

    text: str


Input: TypeAlias = Message | ToolsListed | ToolCalled | ToolsSettled | ToolDropped | ModelCallFailed
"""What the dialect reads: messages from the agent, lines of its log, and events at the session's tool server."""


class _Loose(msgspec.Struct, frozen=True):
    method: Any = None
    id: Any = None
    result: Any = None
    error: Any = None


_decoder = msgspec.json.Decoder(Message)
_encode = msgspec.json.Encoder().encode


def decode(line: bytes) -> Message | None:
    """Decodes a line. Returns None if it is not a JSON-RPC message. A request or response with invalid content keeps
    its id, so that it can be refused or can fail."""
    try:
        return _decoder.decode(line)
    except UNREADABLE:
        pass
    try:
        loose = msgspec.json.decode(line, type=_Loose)
    except UNREADABLE:
        return None
    if isinstance(loose.id, bool) or not isinstance(loose.id, int | str):
        return None
    if isinstance(loose.method, str):
        return Message(loose.method, loose.id)
    error = None
    if isinstance(loose.error, dict):
        code, message = loose.error.get("code"), loose.error.get("message")
        error = RpcError(
            code if isinstance(code, int) and not isinstance(code, bool) else None,
            message if isinstance(message, str) else "",
            loose.error.get("data"),
        )
    return Message(None, loose.id, result=loose.result, error=error)


def request_id(channel: int, number: int) -> int:
    """Returns the JSON-RPC id for a request. `channel` is the number of the session's channel, and `number` that of
    the request in its channel, below a million; so `channel_of` finds the channel of an answer by its id.
    """
    return channel * _PER_CHANNEL + number


def channel_of(id: object) -> int | None:
    """Returns the channel that made the request with this id; None if this server did not make it."""
    if isinstance(id, bool) or not isinstance(id, int) or id < 0:
        return None
    return id // _PER_CHANNEL


def request(id: int, method: str, params: object) -> bytes:
    """Returns a JSON-RPC request, as a line to write to the agent."""
    return _encode({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + b"\n"


def notification(method: str, params: object) -> bytes:
    """Returns a JSON-RPC notification, as a line to write to the agent."""
    return _encode({"jsonrpc": "2.0", "method": method, "params": params}) + b"\n"


def answer(id: int | str, result: object) -> bytes:
    """Returns the JSON-RPC response with this result, as a line to write to the agent."""
    return _encode({"jsonrpc": "2.0", "id": id, "result": result}) + b"\n"


def refusal(id: int | str) -> bytes:
    """Returns the JSON-RPC error for a request with an unsupported method, as a line. Agents that get no response
    would wait forever.
    """
    error = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
    return _encode({"jsonrpc": "2.0", "id": id, "error": error}) + b"\n"


def tool_output(key: str, result: object) -> bytes:
    """Returns the line that carries the result of a call (`CallToolResult` of MCP) to the session's tool server.
    `key` is that of the `ToolCalled` event.
    """
    return _OUTPUT + _encode({"key": key, "result": result}) + b"\n"


_OUTPUT: Final = b"tool-output "
"""The prefix of lines for the tool server; no line of JSON begins with it."""


def split_writes(writes: bytes) -> tuple[bytes, list[tuple[str, Any]]]:
    """Splits a dialect's writes into the bytes for the agent and the call results for the tool server, as (key,
    result) pairs."""
    if _OUTPUT not in writes:
        return writes, []
    outputs, lines = [], []
    for line in writes.split(b"\n"):
        if line.startswith(_OUTPUT):
            given = msgspec.json.decode(line[len(_OUTPUT) :])
            outputs.append((given["key"], given["result"]))
        else:
            lines.append(line)
    return b"\n".join(lines), outputs


# --- the answers to `session/request_permission` --------------------------------------------------

ALLOW: Final = ("allow_once", "allow_always")
REJECT: Final = ("reject_once", "reject_always")
CANCELLED: Final[dict[str, Any]] = {"outcome": {"outcome": "cancelled"}}
"""The result for requests for permission in a turn that is being stopped."""


def decision(options: object, *, allow: bool) -> dict[str, Any]:
    """Returns the result that allows the request (`allow`) or rejects it, if possible only once. An option is
    chosen by its kind, never by its id or text. If none has the wanted kind, or `options` is no list, the result
    allows nothing: it is `CANCELLED`.
    """
    given = options if isinstance(options, list) else []
    for kind in ALLOW if allow else REJECT:
        for option in given:
            if isinstance(option, dict) and option.get("kind") == kind and _is_id(option.get("optionId")):
                return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}
    return CANCELLED


def _is_id(value: object) -> bool:
    return isinstance(value, str) and value != ""
