"""Reads JSON that a strict decoder refuses: with bytes that are no UTF-8, halves of surrogate pairs, NaN, a byte order
mark or control characters, and the beginning of what breaks off.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

from pydantic_core import from_json

from codex_proxy.core.json_values import UNREADABLE, is_too_costly, without_surrogates

_HALF: Final = re.compile(
    rb"\\\\|\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\u[dD][89a-fA-F][0-9a-fA-F]{2}"
)
"""An escape that may be half of a surrogate pair; before it what only looks like one: a backslash, and a whole pair."""
_OBJECT: Final = re.compile(rb'(?:\xef\xbb\xbf)?\s*\{\s*"')


def value_of(data: bytes, *, halves_in: frozenset[str] = frozenset()) -> Any:
    """Returns the value of a JSON text. Halves of surrogate pairs become U+FFFD, except in the fields named in
    `halves_in`. None: the text is no JSON, or costs too much to read.
    """
    if is_too_costly(data):
        return None
    try:
        value = json.loads(data.decode("utf-8-sig", "replace"), strict=False)
    except UNREADABLE:
        return None
    return _without_halves_in(value, halves_in) if b"\\u" in data else value


def _without_halves_in(value: Any, but_in: frozenset[str], name: str = "") -> Any:
    if isinstance(value, str):
        return value if name in but_in else without_surrogates(value)
    if isinstance(value, list):
        return [_without_halves_in(each, but_in) for each in value]
    if isinstance(value, dict):
        return {
            without_surrogates(name): _without_halves_in(each, but_in, name) for name, each in value.items()
        }
    return value


def has_halves(data: bytes) -> bool:
    """Whether JSON has an escape that is half of a surrogate pair."""
    if b"\\ud" not in data and b"\\uD" not in data:
        return False
    return any(len(found[0]) == 6 for found in _HALF.finditer(data))


def without_halves(data: bytes) -> bytes:
    """Returns JSON with U+FFFD for escapes that are half of a surrogate pair, and bytes that are no UTF-8."""
    if b"\\u" in data:
        data = _HALF.sub(lambda found: found[0] if len(found[0]) != 6 else b"\\ufffd", data)
    return data.decode("utf-8-sig", "replace").encode()


def is_torn(data: bytes) -> bool:
    """Whether a line is the beginning of a JSON object whose rest is missing. Such a line belongs to a protocol: other
    text that a program prints seldom begins like that.
    """
    return _OBJECT.match(data) is not None and not is_too_costly(data) and value_of(data) is None


def beginning_of(data: bytes) -> Any:
    """Returns the value of JSON up to the place from which on it cannot be read; None if there is nothing."""
    if is_too_costly(data):
        return None
    text = without_halves(data)
    try:
        json.loads(text, strict=False)
    except json.JSONDecodeError as error:
        text = error.doc[: error.pos].encode()
    except UNREADABLE:
        return None
    try:
        return from_json(text, allow_partial=True)
    except ValueError:
        return None
