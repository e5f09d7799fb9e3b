"""The marker in a prompt that asks the fake agent for a behaviour.

In comes text, out comes the last marker in it: a scenario name and options.
`[[fake:NAME key=value key="quoted \\"value\\"" key='literal']]`; it does not know what the names mean.
"""

from __future__ import annotations

import json
import re

_OPTION = r"""\w+=(?:"(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'\]]*)"""
_MARKER = re.compile(r"\[\[fake:(\w+)((?:\s+" + _OPTION + r")*)\s*\]\]")
_PAIR = re.compile(r"""(\w+)=("(?:[^"\\]|\\.)*"|'[^']*'|[^\s"'\]]*)""")


class Marker:
    """A scenario name and its options; `end` is where the marker ended in the text."""

    __slots__ = ("end", "name", "options")

    def __init__(self, name: str, options: dict[str, str], end: int = 0) -> None:
        self.name = name
        self.options = options
        self.end = end


def find_marker(text: str) -> Marker | None:
    """The last marker in the text, or None."""
    if "[[fake:" not in text:
        return None
    found = list(_MARKER.finditer(text))
    if not found:
        return None
    last = found[-1]
    return Marker(last[1], read_options(last[2]), last.end())


def read_options(text: str) -> dict[str, str]:
    """Returns the `key=value` pairs; double quotes take JSON escapes, single quotes are literal."""
    return {key: _unquote(value) for key, value in _PAIR.findall(text)}


def _unquote(value: str) -> str:
    if value.startswith('"'):
        return str(json.loads(value, strict=False))
    if value.startswith("'"):
        return value[1:-1]
    return value
