r"""Makes text from outside safe to show in a terminal, a message or a log.

Such text may contain escape sequences, line ends other than `\n`, and marks that change the direction of writing. Each
is written as Python escapes it: `\x1b`, `\u202e`. Messages quote only the beginning of a long text. A log gets the type
and place of an exception, never its message.
"""

from __future__ import annotations

import traceback
import unicodedata
from typing import Any, Final

_JOINERS: Final = "\u200c\u200d"
"""Characters that shape Persian and Indic words and join emoji, and have no other effect."""


def escaped(text: str) -> str:
    """Returns the text as one line, with every unprintable character escaped."""
    if text.isprintable():
        return text
    return "".join([char if char.isprintable() else _escape(char) for char in text])


def escaped_lines(text: str) -> str:
    """Returns a text of several lines with its control characters escaped, but for line breaks, tabs, Unicode spaces
    and joiners.
    """
    if text.isprintable():
        return text
    return "".join([char if _stays(char) else _escape(char) for char in text])


def without_controls(text: str) -> str:
    """Returns a model's text without unprintable characters, but for line feeds, tabs, Unicode spaces and the two
    zero-width joiners.
    """
    if text.isprintable():
        return text
    return "".join([char for char in text if _stays(char)])


def escaped_json(text: str) -> str:
    """Returns serialized JSON with every unprintable character, except line feeds, as a JSON escape."""
    if text.isprintable():
        return text
    return "".join([char if char == "\n" or char.isprintable() else _json_escape(char) for char in text])


def _stays(char: str) -> bool:
    return char.isprintable() or char in "\n\t" or char in _JOINERS or unicodedata.category(char) == "Zs"


def _escape(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def _json_escape(char: str) -> str:
    r"""Returns a character as JSON escapes (`\u202e`): one for each of its UTF-16 code units."""
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place]:02x}{units[place + 1]:02x}" for place in range(0, len(units), 2))


MAX_EXCERPT: Final = 80


def excerpt(words: str, most: int = MAX_EXCERPT) -> str:
    """Returns the first `most` characters of `words`, followed by three dots if it is longer."""
    return words if len(words) <= most else f"{words[:most]}..."


MAX_CAUSES: Final = 5


def trace_of(error: BaseException) -> dict[str, Any]:
    """Returns fields for the log: the error's type (`raised`), those of its causes (`caused_by`, nearest first), and
    the places in the code (`at`, outermost first).
    """
    return {
        "raised": type(error).__name__,
        "caused_by": [type(cause).__name__ for cause in _causes(error)],
        "at": [
            f"{frame.f_code.co_filename}:{line} {frame.f_code.co_name}"
            for frame, line in traceback.walk_tb(error.__traceback__)
        ],
    }


def _causes(error: BaseException) -> list[BaseException]:
    """Returns the causes of an error, nearest first, at most `MAX_CAUSES`; for a group its members."""
    found: list[BaseException] = []
    to_see = _direct_causes(error)
    while to_see and len(found) < MAX_CAUSES:
        cause = to_see.pop(0)
        found.append(cause)
        to_see += _direct_causes(cause)
    return found


def _direct_causes(error: BaseException) -> list[BaseException]:
    inner = list(error.exceptions) if isinstance(error, BaseExceptionGroup) else []
    cause = error.__cause__ or error.__context__
    return inner if cause is None else [*inner, cause]
