r"""Makes text from outside safe for a terminal, a message or a log.

Escape sequences, line ends other than `\n` and marks that change the direction of writing are written as Python escapes
them: `\x1b`, `\u202e`. Messages quote only a text's beginning.
"""

from __future__ import annotations

import unicodedata
from typing import Final

_JOINERS: Final = "\u200c\u200d"
"""Characters that only shape Persian and Indic words and join emoji."""


def escape(text: str) -> str:
    """Returns one line with every unprintable character escaped."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else _escape(char) for char in text])


def escape_lines(text: str) -> str:
    """Returns lines with control characters escaped, but for line breaks, tabs, Unicode spaces and joiners."""
    if text.isprintable():
        return text
    return "".join([char if _stays(char) else _escape(char) for char in text])


def without_controls(text: str) -> str:
    """Returns a model's text without the characters that `escape_lines` would escape."""
    if text.isprintable():
        return text
    return "".join([char for char in text if _stays(char)])


def escape_json(text: str) -> str:
    """Returns JSON with unprintable characters, except line feeds, as JSON escapes."""
    if text.isprintable():
        return text
    return "".join([char if char == "\n" or char.isprintable() else json_escapes(char) for char in text])


def _stays(char: str) -> bool:
    return char.isprintable() or char in "\n\t" or char in _JOINERS or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def json_escapes(text: str) -> str:
    """Returns each character as JSON's escape of it."""
    units = text.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


MAX_EXCERPT: Final = 80
MAX_LINE_CHARS: Final = 300


def one_line(text: str) -> str:
    """Returns an agent's text, of any form and length, as one line of at most `MAX_LINE_CHARS` characters."""
    text = " ".join(text[: MAX_LINE_CHARS * 4].split())
    return text if len(text) <= MAX_LINE_CHARS else text[: MAX_LINE_CHARS - 1] + "…"


def excerpt(words: str, most: int = MAX_EXCERPT) -> str:
    """Returns the first `most` characters, with three dots if there are more."""
    return words if len(words) <= most else f"{words[:most]}..."


def number_text(value: float) -> str:
    """Returns a number as a person writes it: a whole one without a point or an exponent."""
    return str(int(value)) if float(value).is_integer() else str(value)
