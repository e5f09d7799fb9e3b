"""Lines of JSON that an agent's process reads and writes."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from types import UnionType
from typing import Any, Final, TypeVar, Union, get_args, get_origin

import msgspec
from msgspec.structs import FieldInfo, fields

from codex_proxy.core.damaged_json import beginning_of, is_torn, value_of, without_halves
from codex_proxy.core.json_values import CHEAP_JSON, UNREADABLE, encode_json, is_too_costly

T = TypeVar("T")
H = TypeVar("H")


_RETURN: Final = ord("\r")
"""A number is found in bytes eight times faster than bytes are."""

TORN: Final = "a line broke off"
OF_NOBODY: Final = "a line did not say which turn it belongs to"


class UnreadableError(Exception):
    """The agent wrote what its protocol does not allow. Unlike the errors in `UNREADABLE`, an error in this program's
    own code never raises it.
    """


def encode_line(value: Any) -> bytes:
    """Returns the value as one line; line breaks in a client's JSON become spaces."""
    return encode_json(value).replace(b"\n", b" ") + b"\n"  # in a string they would be escaped


def decode_line(line: bytes, whole: msgspec.json.Decoder[T], *heads: msgspec.json.Decoder[H]) -> T | H | None:
    """Decodes a line. Half of a surrogate pair stays in a delta, for the next one may have the other half; elsewhere it
    becomes U+FFFD, as bytes do that are no UTF-8. A line with unexpected fields, that costs too much or breaks
    off is decoded by the first of `heads` that can: these read few fields, so that a request is still refused and a
    turn still ends. None: the line is no such JSON.
    """
    value = None
    if len(line) <= CHEAP_JSON or not is_too_costly(line):
        try:
            return whole.decode(line)
        except UNREADABLE:
            value = _value_of(line)
        if value is not None and (found := _convert(value, whole.type)) is not None:
            return found
    for mended in (None, without_halves):  # which takes as long as to decode it
        data = line if mended is None else mended(line)
        for head in heads:
            try:
                return head.decode(data)
            except UNREADABLE:
                pass
    value = beginning_of(line) if value is None else value
    some = (_convert(value, head.type) for head in heads)
    return next((found for found in some if found is not None), None)


def decode_loosely(line: bytes | msgspec.Raw, type: type[T]) -> T | None:
    """Decodes JSON, of which fields of an unexpected type count as missing; None if it is no JSON of this kind, or
    costs too much.
    """
    data = bytes(line)
    value = _value_of(data)
    return None if value is None else _convert(value, type, loosely=True)


def decode_beginning(line: bytes, type: type[T]) -> T | None:
    """Decodes the fields before the place from which on a line cannot be read; None if there are none."""
    return _convert(beginning_of(line), type, loosely=True)


def why_lost(line: bytes, *, otherwise: str = "") -> str:
    """Returns why nobody knows whose a line is: it broke off, or what is given."""
    return TORN if is_torn(line) else otherwise


def divided(lines: Sequence[bytes]) -> Sequence[bytes]:
    """Divides lines at carriage returns, too: programs end lines of progress so, and JSON contains none."""
    for line in lines:
        if _RETURN in line:
            return [part for line in lines for part in line.split(b"\r") if part]
    return lines


def decode_part(json: bytes | msgspec.Raw, type: type[T], *, loosely: bool = False) -> T:
    """Decodes a line, or a raw field of one, as the type `type`. `loosely`: fields of an unexpected type count as
    missing. Raises `UnreadableError`, also for JSON that would cost too much.
    """
    data = bytes(json)
    if is_too_costly(data):
        raise UnreadableError("it has too many values, or is nested too deep")
    return decode_read_part(data, type, loosely=loosely)


def decode_read_part(json: bytes | msgspec.Raw, type: type[T], *, loosely: bool = False) -> T:
    """Like `decode_part`, for a field of a line that `decode_line` has found not to cost too much: a field of megabytes
    is neither copied nor measured again.
    """
    try:
        return msgspec.json.decode(json, type=type)
    except UNREADABLE as error:
        value = _value_of(bytes(json))
        found = _convert(value, type)
        if found is None and loosely:
            found = _convert(value, type, loosely=True)
        if found is None:
            raise UnreadableError(str(error)) from error
        return found


# --- JSON that a strict decoder refuses -----------------------------------------------------------

DELTAS: Final = frozenset({"text", "delta", "thinking", "partial_json", "arguments", "data"})
"""The fields that hold a piece of a text in some agent's protocol."""


def _value_of(line: bytes) -> Any:
    return value_of(line, halves_in=DELTAS)


def _convert(value: Any, type: type[T], *, loosely: bool = False) -> T | None:
    """Converts decoded JSON. `loosely`: without the fields of an unexpected type. None if that is impossible, and for
    nothing at all.
    """
    if not value:
        return None
    try:
        return msgspec.convert(_fitting(value, type, loosely=loosely), type)
    except UNREADABLE:
        return None


def _fitting(value: Any, type: Any, *, loosely: bool) -> Any:
    """Returns the value with `Raw` where the type has it."""
    if type is msgspec.Raw:
        return msgspec.Raw(encode_json(value))
    origin, of = get_origin(type), get_args(type)
    if origin in (Union, UnionType):
        type = next((each for each in of if _may_be(value, each)), None)
        return _fitting(value, type, loosely=loosely) if type is not None else value
    if isinstance(value, list) and origin is list:
        each = [_fitting(inner, of[0], loosely=loosely) for inner in value]
        return [inner for inner in each if _converts(inner, of[0])] if loosely else each
    if isinstance(value, dict) and origin is dict:
        return {name: _fitting(inner, of[1], loosely=loosely) for name, inner in value.items()}
    if isinstance(value, dict) and isinstance(type, msgspec.StructMeta):
        given = {
            field.encode_name: (_fitting(value[field.encode_name], field.type, loosely=loosely), field.type)
            for field in _fields(type)
            if field.encode_name in value
        }
        return {name: inner for name, (inner, of) in given.items() if not loosely or _converts(inner, of)}
    return value


@cache
def _fields(type: type[msgspec.Struct]) -> tuple[FieldInfo, ...]:
    return fields(type)


def _may_be(value: Any, type: Any) -> bool:
    if type is msgspec.Raw:
        return True
    if isinstance(value, dict):
        return isinstance(type, msgspec.StructMeta) or get_origin(type) is dict
    return isinstance(value, list) and get_origin(type) is list


def _converts(value: Any, type: Any) -> bool:
    try:
        msgspec.convert(value, type)
    except UNREADABLE:
        return False
    return True
