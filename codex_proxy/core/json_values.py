"""Reads and writes JSON with values of somebody else: fields may have any type, texts lone surrogates, and it may cost
too much. Megabytes of text take milliseconds to decode, of small values seconds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import accumulate
from typing import Any, Final, Literal

import msgspec

UNREADABLE: Final = (ValueError, RecursionError)
"""The errors of decoding JSON, by `json` or msgspec: it is malformed, or no Unicode, or nested too deep."""


def without_surrogates(text: str) -> str:
    """Returns `text` with U+FFFD for lone surrogates."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    return text


def encode_json(value: Any, order: Literal["deterministic"] | None = None) -> bytes:
    """Encodes JSON. A lone surrogate, which a text of a client or a model may contain, becomes U+FFFD."""
    try:
        return msgspec.json.encode(value, order=order)
    except UnicodeEncodeError:
        return msgspec.json.encode(_without_surrogates_in(value), order=order)


def _without_surrogates_in(value: Any) -> Any:
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, Mapping):
        return {_without_surrogates_in(key): _without_surrogates_in(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_surrogates_in(each) for each in value]
    if isinstance(value, msgspec.Struct):
        fields = {name: _without_surrogates_in(getattr(value, name)) for name in value.__struct_fields__}
        return msgspec.structs.replace(value, **fields)
    return value


def value_at(value: object, *names: str) -> Any:
    """Returns the value at a path of JSON fields, if any."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value


def object_at(value: object, *names: str) -> dict[str, Any]:
    """Returns the object at a path of fields, or an empty one."""
    for name in names:  # not by `value_at`: these are called for every message and event
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, dict) else {}


def text_at(value: object, *names: str) -> str:
    """Returns the text at a path of fields, or empty."""
    for name in names:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, str) else ""


def count_at(value: object, *names: str) -> int | None:
    """Returns the count at a path of fields, if any."""
    found = value_at(value, *names)
    if isinstance(found, float) and found.is_integer():
        found = int(found)
    if not isinstance(found, int) or isinstance(found, bool):
        return None
    return found if 0 <= found < 1 << 53 else None


def objects_in(value: object) -> list[dict[str, Any]]:
    """Returns the objects in a JSON array; none of other values."""
    return [each for each in value if isinstance(each, dict)] if isinstance(value, list) else []


def canonical_json(text: str) -> str:
    """Returns JSON with sorted names and without spaces, so that equal values are equal texts; other text unchanged."""
    try:
        return _canonical_encoder.encode(_canonical_decoder.decode(text))
    except UNREADABLE:
        return text


_MAX_EXACT: Final = 2**53
"""The number below which integral floats are written without a decimal point, as in JavaScript."""


def _number(text: str) -> float:
    number = float(text)
    return int(number) if number.is_integer() and abs(number) < _MAX_EXACT else number


# Made once: that costs as much as a short document, and a turn has one for each call of its history.
_canonical_decoder: Final = json.JSONDecoder(parse_float=_number)
_canonical_encoder: Final = json.JSONEncoder(sort_keys=True, separators=(",", ":"))


def is_json(data: bytes) -> bool:
    """Whether the bytes are JSON, in UTF-8. Numbers may have any size."""
    try:
        _decode_raw(data)
        data.decode()
    except UNREADABLE:
        return False
    return True


_decode_raw: Final = msgspec.json.Decoder(msgspec.Raw).decode


def count_members(json: bytes) -> int:
    """Returns how many members all objects in valid JSON have as they are written: a repeated name counts each time."""
    return sum([between.count(b":") for between in _with_plain_strings(json).split(b'"')[::2]])


def _with_plain_strings(json: bytes) -> bytes:
    """Returns JSON in which each quote begins or ends a string."""
    if b"\\" in json:
        json = json.replace(b"\\\\", b"").replace(b'\\"', b"")
    return json


# --- what it costs --------------------------------------------------------------------------------

LONG_JSON: Final = 1 << 20
"""Maximum bytes that are decoded however many values they are."""
MAX_STRINGS: Final = 200_000
"""Maximum strings, names included, in JSON longer than `LONG_JSON`."""
FEW_STRINGS: Final = 500
"""Strings in long JSON whose quotes are looked for one by one."""
MAX_BETWEEN_STRINGS: Final = 800_000
"""Maximum bytes between its strings: numbers, brackets, commas."""
MAX_DEPTH: Final = 200
"""Maximum levels of nesting. A request has 128 at most, and an agent adds a few. Since Python 3.12 a decoder reads
thousands, more than functions that call themselves can follow.
"""
CHEAP_JSON: Final = 2 * MAX_DEPTH
"""The bytes up to which JSON is never too costly."""
_STEPS: Final = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")
"""Converts brackets to 1 and -1."""
_LEAF: Final = b"\x01\xff"
_LEAVES_REMOVED: Final = 4
"""The levels whose brackets are removed before the others are counted one by one, which takes longer."""
_NO_BRACKETS: Final = bytes(set(range(256)) - set(b"[{]}"))


def is_too_costly(json: bytes) -> bool:
    """Whether the JSON is nested too deep, or is longer than `LONG_JSON` and would take some 30 ms to decode. For
    invalid JSON the result may be either.
    """
    if len(json) <= LONG_JSON:
        if len(json) <= CHEAP_JSON or _brackets(json) <= MAX_DEPTH:
            return False
        return _depth(b"".join(_with_plain_strings(json).split(b'"')[::2])) > MAX_DEPTH
    # Of what is long, no more is read than one search for quotes: to count brackets in a text takes five times as long.
    plain = _with_plain_strings(json)
    between = _between_strings(plain)
    if between is None:
        pieces = plain.split(b'"', 2 * MAX_STRINGS + 1)
        if len(pieces) > 2 * MAX_STRINGS + 1:
            return True
        between = pieces[::2]
    if sum(map(len, between)) > MAX_BETWEEN_STRINGS:
        return True
    return _depth(b"".join(between)) > MAX_DEPTH


def _between_strings(json: bytes) -> list[bytes] | None:
    """Returns what is between the strings, of which there may be long ones, not copied; None if they are many."""
    between: list[bytes] = []
    end = -1
    for _ in range(FEW_STRINGS):
        start = json.find(b'"', end + 1)
        if start < 0:
            return [*between, json[end + 1 :]]
        between.append(json[end + 1 : start])
        end = json.find(b'"', start + 1)
        if end < 0:
            return between
    return None


def _brackets(json: bytes) -> int:
    return json.count(b"[") + json.count(b"{")


def _depth(json: bytes) -> int:
    """Returns the levels of nesting of JSON without strings."""
    steps = json.translate(_STEPS, _NO_BRACKETS)
    for level in range(_LEAVES_REMOVED):
        if not steps:
            return level
        steps = steps.replace(_LEAF, b"")
    return _LEAVES_REMOVED + max(accumulate(memoryview(steps).cast("b")), default=0)


MAX_REFERENCES: Final = 16
"""How deep, and how wide, a schema is followed to learn whether its root is an object."""


def allows_only_objects(schema: bytes | msgspec.Raw) -> bool:
    """Whether an answer of the schema is always an object, as far as it is known within some steps."""
    root = msgspec.json.decode(schema)
    return _allows_only_objects(root, root, MAX_REFERENCES)


def _allows_only_objects(schema: Any, root: Any, left: int) -> bool:
    if not isinstance(schema, dict) or left <= 0:
        return False
    if isinstance(reference := schema.get("$ref"), str):
        found = root if reference == "#" else value_at(root, *_steps_of(reference))
        return _allows_only_objects(found, root, left - 1)
    kinds = schema.get("type")
    if kinds is not None:
        return kinds in ("object", ["object"])
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(branches := schema.get(name), list):
            found = [_allows_only_objects(each, root, left // 2) for each in branches[:left]]
            return any(found) if name == "allOf" else all(found) and len(branches) <= left
    values = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(values, list):
        return all(isinstance(each, dict) for each in values)
    return "properties" in schema


def _steps_of(reference: str) -> list[str]:
    steps = reference.removeprefix("#/").split("/")
    return [step.replace("~1", "/").replace("~0", "~") for step in steps]
