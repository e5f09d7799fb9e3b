r"""Finds the marker in a prompt that names the fake agent's scenario and its options: `[[fake:NAME key=value
key="quoted \"value\"" key='literal']]`. Only the last one counts.
"""

from __future__ import annotations

import json
import re

# To compile these takes a millisecond of each start, and many turns need none of them.
_OPTION = r"""\w+=(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'\]]*)"""
_MARKER = r"\[\[fake:(\w+)((?:\s+" + _OPTION + r")*)\s*\]\]"
_PAIR = r"""(\w+)=("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'\]]*)"""


class Marker:
    """A scenario's name and options. `end`: the index in the text after the marker."""

    __slots__ = ("end", "name", "options")

    def __init__(self, name: str, options: dict[str, str], end: int = 0) -> None:
        self.name = name
        self.options = options
        self.end = end


def find_marker(text: str) -> Marker | None:
    """Returns the last marker in the text; None if there is none."""
    if "[[fake:" not in text:
        return None
    found = list(re.finditer(_MARKER, text))
    if not found:
        return None
    last = found[-1]
    return Marker(last[1], read_options(last[2]), last.end())


def read_options(text: str) -> dict[str, str]:
    """Returns the `key=value` pairs in the text. Values in double quotes may have JSON escapes, those in single quotes
    are literal. Raises `ValueError` for an escape that is not JSON.
    """
    return {key: _unquote(value) for key, value in re.findall(_PAIR, text)}


def _unquote(value: str) -> str:
    if value.startswith('"'):
        return str(json.loads(value, strict=False))
    if value.startswith("'"):
        return value[1:-1]
    return value
