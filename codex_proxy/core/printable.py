"""Text that others have said, made safe to show: what a terminal, or a reader of lines, would obey becomes visible.

A path, a model's name or a model's answer may hold escape sequences (cursor, title, clipboard), ends of lines that
`\\n` is not (U+2028, U+2029, NEL), and marks that turn the direction of writing around. Each such character is written
as Python escapes it: `\\x1b`, `\\u202e`.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_JOINERS: Final = "\u200c\u200d"
"""They shape Persian and Indic words and join emoji, and do nothing else."""


def escaped(text: str) -> str:
    """One line of text: whatever Python calls not printable is escaped, ends of lines among it."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else _escape(char) for char in text])


def escaped_lines(text: str) -> str:
    """Text of several lines, for a person: ends of lines, tabs, wide spaces and joiners stay."""
    if text.isprintable():
        return text
    return "".join([char if _stays(char) else _escape(char) for char in text])


def without_controls(text: str) -> str:
    """A model's prose for a terminal: what `escaped_lines` escapes is left out, since there it helps no reader."""
    if text.isprintable():
        return text
    return "".join([char for char in text if _stays(char)])


def escaped_json(text: str) -> str:
    """JSON that means the same, its ends of lines kept. What has to be escaped can only stand in a string there."""
    if text.isprintable():
        return text
    return "".join([char if char == "\n" or char.isprintable() else _json_escape(char) for char in text])


def _stays(char: str) -> bool:
    return char.isprintable() or char in "\n\t" or char in _JOINERS or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _json_escape(char: str) -> str:
    """As one or two units of UTF-16; JSON knows no other escape."""
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))
