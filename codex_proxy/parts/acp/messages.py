"""The messages of ACP 1 (JSON-RPC 2.0), and the events of the tool server. Most are plain JSON, since agents differ.
Source: npm @agentclientprotocol/sdk 2.4.0 `schema/v1/schema.json`, and recordings of eight agents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeAlias

import msgspec

from codex_proxy.agents.shared.json_lines import decode_line, decode_loosely, encode_line
from codex_proxy.core.json_values import objects_in, text_at, value_at

PROTOCOL_VERSION: Final = 1

METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
AUTH_REQUIRED: Final = -32000

_IDS_PER_CHANNEL: Final = 1_000_000
"""The ids of a channel are `channel * _IDS_PER_CHANNEL + n`: integers, which every agent returns unchanged."""


class RpcError(msgspec.Struct, frozen=True):
    """An error; `code` is an HTTP status with Gemini CLI."""

    code: int | float | str | None = None
    message: str | None = None
    data: Any = None


UNREADABLE_ANSWER: Final = RpcError(message="the agent's answer is invalid")
UNREADABLE_LINE: Final = RpcError(message="the agent's line breaks off")
"""The error of a notification of which only a part could be read."""
MAX_ID_DIGITS: Final = 18
TEXT_UPDATE: Final = "agent_message_chunk"
"""The `session_update` of a piece of the answer's text."""


class Update(msgspec.Struct, frozen=True, rename="camel"):
    """The `update` of `session/update`, or the `toolCall` of `session/request_permission`. None: the field was not
    sent.
    """

    session_update: str = ""
    message_id: str | None = None
    tool_call_id: str | None = None
    name: str | None = None
    title: str | None = None
    kind: str | None = None
    status: str | None = None
    content: Any = None
    raw_input: Any = None
    entries: Any = None
    used: Any = None
    size: Any = None
    cost: Any = None
    meta: Any = msgspec.field(default=None, name="_meta")


class Params(msgspec.Struct, frozen=True, rename="camel"):
    session_id: str = ""
    update: Update | None = None
    tool_call: Update | None = None
    options: Any = None
    mode: Any = None
    message: Any = None
    requested_schema: Any = None
    url: Any = None
    """Of `elicitation/create`, as `mode` and the two before it."""


class Message(msgspec.Struct, frozen=True):
    """A request, a notification (without `id`), or a response (without `method`)."""

    method: str | None = None
    id: int | float | str | None = None
    params: Params = Params()
    result: Any = None
    error: RpcError | None = None

    @property
    def session(self) -> Any:
        return value_at(self.result, "sessionId")


def may_carry_text(message: Message) -> bool:
    """Whether a notification that cannot be read may have a piece of the answer's text."""
    update, is_doubtful = message.params.update, message.error is not None or not message.params.session_id
    if message.method not in ("", "session/update"):
        return False
    if update is None or not update.session_update:
        return is_doubtful or (update is not None and update.content is not None)
    return update.session_update == TEXT_UPDATE


class ToolsListed(msgspec.Struct, frozen=True):
    """The agent has requested the tools, or (`in_time` False) has not done so in time."""

    in_time: bool = True


class ToolCalled(msgspec.Struct, frozen=True):
    key: str
    """The tool server's id of the call."""
    call_id: str
    """The model's id; empty if the agent does not report it."""
    name: str
    arguments: str


class ToolsSettled(msgspec.Struct, frozen=True):
    """No further call has come for `SETTLE_SECONDS`, or (`last`) for `UNREPORTED_SECONDS`."""

    last: bool = False


class ToolDropped(msgspec.Struct, frozen=True):
    """The agent no longer waits for the output of the call `key`."""

    key: str


class ModelCallFailed(msgspec.Struct, frozen=True):
    """A failed model call in the agent's stderr: the agent repeats it, or ends its turn."""

    text: str


Input: TypeAlias = Message | ToolsListed | ToolCalled | ToolsSettled | ToolDropped | ModelCallFailed


RequestId: TypeAlias = int | float | str


class _Envelope(msgspec.Struct, frozen=True):
    """A line whose other fields cannot be decoded. `id`: JSON-RPC allows any number, and some programs send more."""

    method: str | None = None
    id: Any = None


class _UpdateKind(msgspec.Struct, frozen=True, rename="camel"):
    session_update: str = ""


class _Address(msgspec.Struct, frozen=True, rename="camel"):
    session_id: str = ""
    update: _UpdateKind | None = None


class _Addressed(_Envelope, frozen=True):
    """A line of which no more is read, because it costs too much, or breaks off."""

    params: _Address = _Address()


class _AnyMessage(msgspec.Struct, frozen=True):
    """A line whose method has an unexpected type."""

    id: Any = None
    params: _Address | None = None


_decoder = msgspec.json.Decoder(Message)
_head_decoders: tuple[msgspec.json.Decoder[_Envelope], ...] = (
    msgspec.json.Decoder(_Addressed),
    msgspec.json.Decoder(_Envelope),
)


def decode(line: bytes) -> Message | None:
    """Decodes a line; None if it is no JSON-RPC. Of a request or an answer with too many values or unexpected fields
    only the id is read, to refuse it or fail its turn; of a notification the other fields, and `error` is set if the
    line breaks off.
    """
    found = decode_line(line, _decoder, *_head_decoders)
    if not isinstance(found, Message):
        found = _decode_some(line, found)
    if found is None or found.method is not None:
        return found
    if found.params.session_id:  # no answer: its method is missing
        return msgspec.structs.replace(found, method="", error=None)
    return found if type(found.id) is int else msgspec.structs.replace(found, id=_id_in(found.id))


def _decode_some(line: bytes, envelope: _Envelope | None) -> Message | None:
    if envelope is None or envelope.method is None:
        envelope = _decode_without_method(line) or envelope
    if envelope is None:
        return None
    method, id = envelope.method, envelope.id
    if method is None:
        return None if id is None else Message(None, id, error=UNREADABLE_ANSWER)
    if _id_in(id) is not None:
        return Message(method, id)
    if id is None and (message := decode_loosely(line, Message)) is not None:
        return msgspec.structs.replace(message, method=method)
    params = Params()
    if isinstance(envelope, _Addressed):
        at = envelope.params
        params = Params(at.session_id, Update(at.update.session_update) if at.update is not None else None)
    return Message(method, params=params, error=UNREADABLE_LINE)


def _decode_without_method(line: bytes) -> _Envelope | None:
    """Decodes a line whose method has an unexpected type, as one of the method ``; None if it is an answer."""
    found = decode_loosely(line, _AnyMessage)
    if found is None or found.params is None:
        return None
    return _Addressed("", found.id, found.params)


def _id_in(id: object) -> RequestId | None:
    """Returns an id; of an answer as a number, which some programs write as a text, or with a decimal point. None if it
    is no id.
    """
    if isinstance(id, str):
        return int(id) if id.isascii() and id.isdigit() and len(id) <= MAX_ID_DIGITS else id
    if isinstance(id, float):
        return int(id) if id.is_integer() else id
    return id if isinstance(id, int) and not isinstance(id, bool) else None


def request_id(channel: int, number: int) -> int:
    """Returns the id of a channel's request with this number (less than a million)."""
    return channel * _IDS_PER_CHANNEL + number


def channel_of(id: object) -> int | None:
    """Returns the channel of a request id; None if `request_id` cannot have made it."""
    if isinstance(id, bool) or not isinstance(id, int) or id < 0:
        return None
    return id // _IDS_PER_CHANNEL


def request(id: int, method: str, params: object) -> bytes:
    return encode_line({"jsonrpc": "2.0", "id": id, "method": method, "params": params})


def new_session(folder: str, servers: Sequence[Mapping[str, Any]], meta: Mapping[str, Any]) -> dict[str, Any]:
    params: dict[str, Any] = {"cwd": folder, "mcpServers": list(servers)}
    return {**params, "_meta": meta} if meta else params


def notification(method: str, params: object) -> bytes:
    return encode_line({"jsonrpc": "2.0", "method": method, "params": params})


def answer(id: RequestId, result: object) -> bytes:
    return encode_line({"jsonrpc": "2.0", "id": id, "result": result})


def refusal(id: RequestId) -> bytes:
    """Returns "Method not found", without which some agents would wait for ever."""
    error = {"code": METHOD_NOT_FOUND, "message": "Method not found"}
    return encode_line({"jsonrpc": "2.0", "id": id, "error": error})


def tool_output(key: str, result: object) -> bytes:
    """Returns the line that gives the tool server a call's output (see `split_writes`)."""
    return _OUTPUT_PREFIX + encode_line({"key": key, "result": result})


_OUTPUT_PREFIX: Final = b"tool-output "
"""Begins lines for the tool server; no line of JSON begins with it."""


def split_writes(writes: bytes) -> tuple[bytes, list[tuple[str, Any]]]:
    """Splits what a dialect writes into bytes for the agent, and calls' keys and results for the tool server."""
    if _OUTPUT_PREFIX not in writes:
        return writes, []
    outputs, lines = [], []
    for line in writes.split(b"\n"):
        if line.startswith(_OUTPUT_PREFIX):
            given = msgspec.json.decode(line[len(_OUTPUT_PREFIX) :])
            outputs.append((given["key"], given["result"]))
        else:
            lines.append(line)
    return b"\n".join(lines), outputs


# --- the answers to `session/request_permission` --------------------------------------------------

ALLOWING_KINDS: Final = ("allow_once", "allow_always")
REJECTING_KINDS: Final = ("reject_once", "reject_always")
CANCELLED: Final[dict[str, Any]] = {"outcome": {"outcome": "cancelled"}}
"""The answer to requests for permission in a turn that is being stopped."""


def decision(options: object, *, allow: bool) -> dict[str, Any]:
    """Returns the answer with the option that allows or rejects the call, best for this time only; `CANCELLED`, which
    allows nothing, if there is none.
    """
    for kind in ALLOWING_KINDS if allow else REJECTING_KINDS:
        for option in objects_in(options):
            if option.get("kind") == kind and (id := text_at(option, "optionId")):
                return {"outcome": {"outcome": "selected", "optionId": id}}
    return CANCELLED
