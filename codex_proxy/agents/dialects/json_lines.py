"""Lines of JSON that an agent's process reads and writes."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec

from codex_proxy.core.json_values import UNREADABLE, is_too_costly

T = TypeVar("T")
H = TypeVar("H")


class UnreadableError(Exception):
    """What the agent wrote is not what its protocol says. No error of this program is one, unlike `UNREADABLE`."""


def encode_line(value: Any) -> bytes:
    """Returns the value as one line; line breaks in a client's JSON become spaces."""
    return msgspec.json.encode(value).replace(b"\n", b" ") + b"\n"  # in a string they would be escaped


def decode_line(line: bytes, whole: msgspec.json.Decoder[T], *heads: msgspec.json.Decoder[H]) -> T | H | None:
    """Decodes a line. One with unexpected fields, or that costs too much, is decoded by the first of `heads` that can:
    these read few fields, so that a request is still refused and a turn still ends. None: the line is no such JSON.
    """
    try:
        if not is_too_costly(line):
            return whole.decode(line)
    except UNREADABLE:
        pass
    for head in heads:
        try:
            return head.decode(line)
        except UNREADABLE:
            pass
    return None


def decode_part(json: bytes | msgspec.Raw, type: type[T]) -> T:
    """Decodes a line, or a raw field of one. Raises `UnreadableError`, also if that would cost too much."""
    if is_too_costly(bytes(json)):
        raise UnreadableError("it has too many values, or is nested too deep")
    try:
        return msgspec.json.decode(json, type=type)
    except UNREADABLE as error:
        raise UnreadableError(str(error)) from error
