"""The lines of `codex app-server`, decoded: JSON-RPC without its `jsonrpc` member.

A line is decoded once, into the few fields that we use; everything else in it is skipped unparsed.
Three kinds, told apart by shape alone, since ids are counted per direction: a request to answer (method
and id), a notification (method), an answer to a request of ours (id). Source: recordings of 0.163 and 0.169.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

NO_JSON = msgspec.Raw()


class RpcError(msgspec.Struct, frozen=True, gc=False):
    code: int = 0
    message: str = ""


class Params(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    """The parameters of every notification and request that we read, in one shape."""

    thread_id: str | None = None
    turn_id: str | None = None
    item_id: str | None = None
    delta: str | None = None
    summary_index: int = 0
    content_index: int = 0
    will_retry: bool = False
    message: str | None = None
    command: msgspec.Raw = NO_JSON
    item: msgspec.Raw = NO_JSON
    error: msgspec.Raw = NO_JSON
    turn: msgspec.Raw = NO_JSON
    usage: msgspec.Raw = NO_JSON
    token_usage: msgspec.Raw = NO_JSON
    rate_limits: msgspec.Raw = NO_JSON
    plan: msgspec.Raw = NO_JSON
    questions: msgspec.Raw = NO_JSON
    call_id: str | None = None
    tool: str | None = None
    arguments: msgspec.Raw = NO_JSON


NO_PARAMS = Params()


class Message(msgspec.Struct, frozen=True, gc=False):
    """One line. `result` and `error` are an answer's; `method` and `params` are the other kinds'."""

    id: int | str | None = None
    method: str | None = None
    params: Params = NO_PARAMS
    result: msgspec.Raw = NO_JSON
    error: RpcError | None = None


class _Address(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    thread_id: str | None = None
    turn_id: str | None = None


class _AddressedMessage(msgspec.Struct, frozen=True, gc=False):
    """What is left to read of a line whose parameters are not what we know."""

    id: int | str | None = None
    method: str | None = None
    params: _Address = _Address()


class _Envelope(msgspec.Struct, frozen=True, gc=False):
    id: int | str | None = None
    method: str | None = None


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding can raise; JSON that is nested too deep is the last one."""

UNREADABLE_ANSWER = RpcError(0, "the agent's answer is not what it should be")

decode_expected = msgspec.json.Decoder(Message).decode
"""A line as we know it. Raises `UNREADABLE`; then it is one for `decode_loosely`."""

_LOOSE_DECODERS: tuple[msgspec.json.Decoder[Any], ...] = (
    msgspec.json.Decoder(_AddressedMessage),
    msgspec.json.Decoder(_Envelope),
)


def decode(line: bytes) -> Message | None:
    """One line of the child, or None where it is no JSON-RPC at all.

    A line with parameters of other types than we know keeps its method, id and address (a request must
    still be refused, a turn must still end) and loses the rest; such an answer becomes an error.
    """
    try:
        return decode_expected(line)
    except UNREADABLE:
        return decode_loosely(line)


def decode_loosely(line: bytes) -> Message | None:
    """What is left of a line that is not as we know it."""
    for decoder in _LOOSE_DECODERS:
        try:
            loose = decoder.decode(line)
        except UNREADABLE:
            continue
        if loose.method is None:
            return Message(loose.id, error=UNREADABLE_ANSWER) if loose.id is not None else None
        address = getattr(loose, "params", None)
        params = Params(address.thread_id, address.turn_id) if address else NO_PARAMS
        return Message(loose.id, loose.method, params)
    return None


def request(id: str, method: str, params: dict[str, Any] | None) -> bytes:
    """The line of a request of ours. JSON of the client's inside it may be laid out on several lines."""
    line = msgspec.json.encode({"id": id, "method": method, "params": params})
    return line.replace(b"\n", b" ") + b"\n"  # between tokens only: in a string it would be escaped


def notification(method: str) -> bytes:
    return msgspec.json.encode({"method": method}) + b"\n"


def answer(id: int | str, result: Any) -> bytes:
    """The line that answers a request of the child's."""
    return msgspec.json.encode({"id": id, "result": result}) + b"\n"


def refusal(id: int | str) -> bytes:
    """The line that refuses a request of the child's: silence would hang its turn for ever."""
    return msgspec.json.encode({"id": id, "error": {"code": -32601, "message": "unsupported"}}) + b"\n"


_REQUEST = re.compile(rb'\{"id":"[^"]*","method":')


def count_requests(writes: bytes) -> int:
    """How many requests of ours are in `writes`, whole lines; an answer of ours has no method."""
    count = start = 0
    while start < len(writes):
        count += _REQUEST.match(writes, start) is not None
        start = writes.find(b"\n", start) + 1 or len(writes)
    return count
