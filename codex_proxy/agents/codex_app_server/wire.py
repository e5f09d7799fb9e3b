"""The messages of `codex app-server`: JSON-RPC lines without `jsonrpc`; their conversion to `Usage`, failures and
events. Source: recordings of releases 0.163 and 0.169.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from codex_proxy.agents.dialect import ToolReply
from codex_proxy.agents.shared.failures import failure_from_text, stop_from_text
from codex_proxy.agents.shared.json_lines import (
    UnreadableError,
    decode_beginning,
    decode_line,
    decode_loosely,
    decode_part,
    encode_line,
)
from codex_proxy.core.events import Stop, TurnEnded, Usage
from codex_proxy.core.faults import Failure, FaultKind
from codex_proxy.core.items import TextPart
from codex_proxy.core.json_values import LONG_JSON, UNREADABLE

NO_JSON = msgspec.Raw()


class RpcError(msgspec.Struct, frozen=True, gc=False):
    code: int = 0
    message: str = ""


class Params(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The parameters of any message; a `msgspec.Raw` is decoded when used."""

    thread_id: str | None = None
    turn_id: str | None = None
    item_id: str | None = None
    delta: str | None = None
    summary_index: int = 0
    content_index: int = 0
    will_retry: bool | None = None
    """Whether an `error` is followed by a repeated model call; None: that could not be read."""
    message: str | None = None
    """The question of an MCP approval."""
    command: msgspec.Raw = NO_JSON
    """The command to approve: a string or words."""
    item: msgspec.Raw = NO_JSON
    """A `ThreadItem`, or a raw item."""
    error: msgspec.Raw = NO_JSON
    turn: msgspec.Raw = NO_JSON
    usage: msgspec.Raw = NO_JSON
    """`Tokens` of one model call."""
    token_usage: msgspec.Raw = NO_JSON
    rate_limits: msgspec.Raw = NO_JSON
    plan: msgspec.Raw = NO_JSON
    call_id: str | None = None
    """The call whose output is requested."""
    tool: str | None = None
    arguments: msgspec.Raw = NO_JSON
    # Of questions:
    kind: msgspec.Raw = NO_JSON
    cwd: msgspec.Raw = NO_JSON
    reason: msgspec.Raw = NO_JSON
    approval_id: msgspec.Raw = NO_JSON
    additional_permissions: msgspec.Raw = NO_JSON
    network_approval_context: msgspec.Raw = NO_JSON
    grant_root: msgspec.Raw = NO_JSON
    server_name: msgspec.Raw = NO_JSON
    meta: msgspec.Raw = msgspec.field(default=NO_JSON, name="_meta")


NO_PARAMS = Params()


class Message(msgspec.Struct, frozen=True, gc=False):
    """An answer (`id`, `result` or `error`), a request (`id`, `method`, `params`) or a notification."""

    id: int | str | None = None
    method: str | None = None
    params: Params = NO_PARAMS
    result: msgspec.Raw = NO_JSON
    error: RpcError | None = None


class _Address(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    thread_id: str | None = None
    turn_id: str | None = None


class _AddressedMessage(msgspec.Struct, frozen=True, gc=False):
    """A line of which no more is read, because other fields have unexpected types."""

    id: int | str | None = None
    method: str | None = None
    params: _Address = _Address()


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    """A line whose parameters cannot be decoded."""

    id: Any = None
    method: str | None = None


class _AnyMessage(msgspec.Struct, frozen=True, gc=False):
    """A line whose method has an unexpected type, or none."""

    id: Any = None
    params: _Address | None = None


TEXT_DELTA = "item/agentMessage/delta"
UNREADABLE_ANSWER = RpcError(0, "the agent's answer is invalid")
UNREADABLE_LINE = RpcError(0, "the agent's line breaks off")
"""The error of a notification that cannot be read whole."""

_decoder = msgspec.json.Decoder(Message)
decode_strictly = _decoder.decode
"""Decodes a usual message. Raises `UNREADABLE`; `decode` may then read parts."""

_LOOSE_DECODERS: tuple[msgspec.json.Decoder[_AddressedMessage | _Envelope], ...] = (
    msgspec.json.Decoder(_AddressedMessage),
    msgspec.json.Decoder(_Envelope),
)


def decode(line: bytes) -> Message | None:
    """Decodes a line; None if it is no JSON-RPC. With a wrong field or too many values reads what it can; `error` is
    set in a notification that breaks off.
    """
    found = decode_line(line, _decoder, *_LOOSE_DECODERS)
    if isinstance(found, Message):
        return found
    if found is None or found.method is None:
        return _decode_without_method(line)
    if _id_in(found.id) is None and (message := decode_loosely(line, Message)) is not None:
        is_lost = message.method == TEXT_DELTA and message.params.delta is None
        return msgspec.structs.replace(message, error=UNREADABLE_LINE) if is_lost else message
    if found.id is None and (message := decode_beginning(line, Message)) is not None:
        return msgspec.structs.replace(message, error=UNREADABLE_LINE)
    params = Params()
    if isinstance(found, _AddressedMessage):
        params = Params(found.params.thread_id, found.params.turn_id)
    id = _id_in(found.id)
    return Message(id, found.method, params, error=UNREADABLE_LINE if id is None else None)


def _decode_without_method(line: bytes) -> Message | None:
    """Decodes an answer, or what has parameters and no method that can be read, as one of the method ``."""
    found = decode_loosely(line, _AnyMessage) or decode_beginning(line, _AnyMessage)
    if found is None:
        return None
    id = _id_in(found.id)
    if found.params is None:
        return None if found.id is None else Message(id, error=UNREADABLE_ANSWER)
    return Message(id, "", Params(found.params.thread_id, found.params.turn_id), error=UNREADABLE_LINE)


def _id_in(id: Any) -> int | str | None:
    return id if isinstance(id, int | str) and not isinstance(id, bool) else None


def request(id: str, method: str, params: dict[str, Any] | None) -> bytes:
    return encode_line({"id": id, "method": method, "params": params})


def notification(method: str) -> bytes:
    return encode_line({"method": method})


def answer(id: int | str, result: Any) -> bytes:
    return encode_line({"id": id, "result": result})


def refusal(id: int | str) -> bytes:
    """Encodes the error -32601, without which the agent's turn would hang."""
    return encode_line({"id": id, "error": {"code": -32601, "message": "unsupported"}})


_REQUEST = re.compile(rb'\{"id":"[^"]*","method":')


def count_requests(writes: bytes) -> int:
    count = start = 0
    while start < len(writes):
        count += _REQUEST.match(writes, start) is not None
        start = writes.find(b"\n", start) + 1 or len(writes)
    return count


# --- the objects in messages ----------------------------------------------------------------------


class TurnError(msgspec.Struct, frozen=True, rename="camel"):
    """An error of a turn. `codex_error_info`: see `error_kind`; `additional_details`: the provider's message."""

    message: str = ""
    codex_error_info: msgspec.Raw = msgspec.Raw()
    additional_details: str | None = None


class TurnPayload(msgspec.Struct, frozen=True):
    """A turn in a notification. `status`: `completed`, `interrupted`, `failed` or `inProgress`."""

    id: str = ""
    status: str = ""
    error: TurnError | None = None


class WithId(msgspec.Struct, frozen=True):
    id: str


class TurnStartResult(msgspec.Struct, frozen=True):
    turn: WithId


class StartedThread(WithId, frozen=True):
    path: str | None = None
    """The file of a stored thread."""


class ThreadStartResult(msgspec.Struct, frozen=True):
    thread: StartedThread
    model: str | None = None


class Tokens(msgspec.Struct, frozen=True, rename="camel"):
    input_tokens: int = 0
    cached_input_tokens: int = 0
    output_tokens: int = 0
    reasoning_output_tokens: int = 0
    cache_write_input_tokens: int = 0

    def usage(self) -> Usage:
        return Usage(
            self.input_tokens,
            self.cached_input_tokens,
            self.output_tokens,
            self.reasoning_output_tokens,
            self.cache_write_input_tokens,
        )


def decode_usage(tokens: msgspec.Raw) -> Usage | None:
    try:
        tokens_or_none = msgspec.json.decode(tokens, type=Tokens | None) if tokens else None
    except UNREADABLE:
        return None
    return tokens_or_none.usage() if tokens_or_none is not None else None


class ThreadTokenUsage(msgspec.Struct, frozen=True):
    total: Tokens


class TurnUsage:
    """The tokens of one client's turn, on a thread that may serve several."""

    def __init__(self) -> None:
        self.total = Usage()
        self.from_provider = False
        """Whether `total` includes a model call that the agent's own total does not."""
        self._earlier_turns = Usage()

    def start_turn(self) -> None:
        self._earlier_turns += self.total
        self.total = Usage()
        self.from_provider = False

    def set_earlier_turns(self, total: Usage) -> None:
        """Takes the thread's total before the turn."""
        self._earlier_turns = total

    def add_call(self, usage: Usage) -> None:
        self.total += usage
        self.from_provider = True

    def set_thread_total(self, total: Usage) -> bool:
        """Takes the thread's total, less earlier turns; returns whether that is more than the count so far."""
        turn_total = total.since(self._earlier_turns)
        if turn_total.input + turn_total.output <= self.total.input + self.total.output:
            return False
        self.total = turn_total
        return True


class RawItemHead(msgspec.Struct, frozen=True):
    type: str = ""
    id: str | None = None
    role: str | None = None


class RawItemPart(msgspec.Struct, frozen=True):
    text: str | None = None


class ReadableRawItem(RawItemHead, frozen=True):
    """The fields of raw items that are decoded later; an item with a wrong type is not stored."""

    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    content: list[RawItemPart] | None = None
    encrypted_content: str | None = None


def check_readable(item: bytes) -> None:
    """Checks that a raw item can be decoded again later. Raises `UnreadableError` if not."""
    try:
        if len(item) > LONG_JSON:
            # As a whole it would take long, if it is no text or image but very many numbers.
            if not item.isascii():
                item.decode()
            msgspec.json.decode(item, type=ReadableRawItem)
        else:
            msgspec.convert(msgspec.json.decode(item), ReadableRawItem)
    except UNREADABLE as error:
        raise UnreadableError(str(error)) from error


class RawItemCall(msgspec.Struct, frozen=True):
    call_id: str
    name: str = ""
    namespace: str | None = None
    arguments: str = ""
    input: str = ""


def error_kind(info: msgspec.Raw) -> tuple[str | None, int | None]:
    """Returns kind and HTTP status of `codexErrorInfo`, a string or `{KIND: {"httpStatusCode": ...}}`. Raises
    `UnreadableError`.
    """
    if not info or info == b"null":
        return None, None
    value = decode_part(info, Any)
    if isinstance(value, str):
        return value, None
    if isinstance(value, dict) and value:
        kind, detail = next(iter(value.items()))
        status = detail.get("httpStatusCode") if isinstance(detail, dict) else None
        return kind, status if isinstance(status, int) else None
    return None, None


def command_text(value: msgspec.Raw) -> str:
    decoded = decode_part(value, Any) if value else ""
    if isinstance(decoded, list):
        decoded = " ".join(str(word) for word in decoded)
    return " ".join(str(decoded or "").split())


def output_answer(id: int | str, reply: ToolReply) -> bytes:
    content = [
        {"type": "inputText", "text": part.text}
        if isinstance(part, TextPart)
        else {"type": "inputImage", "imageUrl": part.url}
        for part in reply.parts
    ]
    return answer(id, {"contentItems": content, "success": reply.success})


THREAD_HELD = "already has an active writer"
"""In the error of `thread/resume` for a thread that another process uses."""
OPEN_ELSEWHERE = Failure(
    FaultKind.CONFLICT,
    "This conversation is open in a terminal. Close it there, and send the message again. If it is closed, Codex's "
    "server in the background still has it, for up to 30 minutes: stop that (`codex app-server daemon stop`), and the "
    "next time open the conversation with `codex resume --no-daemon`.",
)

CLIENT_ERROR_TEXTS = ("not a valid response item", "image URLs are not supported")

BAD_TOOL_TEXT = "dynamic tool "
"""How an error about a tool's schema begins."""

OVERLOADED, INPUT_TOO_LARGE = -32001, -32602


def failure_of_error(what: str, error: RpcError) -> Failure:
    """Converts an error. `what` is like `start the turn`."""
    failure = failure_from_text(error.message)
    if error.message.startswith(BAD_TOOL_TEXT):
        reason = failure.message[max(failure.message.find(BAD_TOOL_TEXT), 0) :]
        return Failure(
            FaultKind.INVALID_REQUEST,
            f"The agent rejected a tool of this request: {reason}",
            param="tools",
            code="invalid_tool_schema",
        )
    if error.code == INPUT_TOO_LARGE or any(words in error.message for words in CLIENT_ERROR_TEXTS):
        return Failure(FaultKind.REJECTED_BY_PROVIDER, failure.message)
    if error.code == OVERLOADED:
        return Failure(FaultKind.UNAVAILABLE, "The agent is overloaded. Try again.", retry_after=1)
    if failure.kind is FaultKind.UPSTREAM_ERROR:
        return Failure(FaultKind.AGENT_MISCONFIGURED, f"The agent failed to {what}: {failure.message}")
    return failure


def failed_end(error: TurnError | None) -> TurnEnded:
    """Converts an error to the turn's end: `Stop.LENGTH` or the like if the answer was only cut off."""
    if error is None:
        return TurnEnded(Stop.FAILED)
    details = error.additional_details
    stop = stop_from_text(details or error.message) or stop_from_text(error.message)
    if stop is not None:
        return TurnEnded(stop, "provider")
    kind, status = error_kind(error.codex_error_info)
    failure = failure_from_text(error.message, kind=kind, http_status=status, details=details)
    return TurnEnded.with_failure(failure)


def turn_end(turn: TurnPayload) -> TurnEnded:
    if turn.status == "completed":
        return TurnEnded(Stop.STOP)
    if turn.status == "failed" or turn.error is not None:
        return failed_end(turn.error)
    return TurnEnded(Stop.INTERRUPTED)
