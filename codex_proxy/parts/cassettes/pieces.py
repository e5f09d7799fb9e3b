"""Shortens a line that differs from the one before in one string alone, such as the next delta, to that string, and
restores it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Final

import msgspec

_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""Matches the JSON of a string, without its quotes."""
_STEP: Final = 1 << 20
"""Maximum bytes of a string that are searched without letting other threads run."""
_MIN_COMMON_BYTES: Final = 27
"""The fewest bytes that a line has in common with the whole one, to be shortened."""
MAX_COMMON_BYTES: Final = 1 << 12
"""The most of them, so that a small file has no large lines."""
_COMPARED: Final = 128
"""The bytes of two lines that are compared at once to find the first difference."""
_KIND: Final = re.compile(rb'"(?:sent|from|to)":\{|"events":\[\{')
"""Matches the kind of a line that may be shortened; `from` and `to` are those of captures."""


class SimilarLines:
    """A whole line, and the lines after it that differ from it in their time and in one text alone."""

    def __init__(self, line: bytes) -> None:
        self._line = line
        self._shape: _Shape | None = None
        self._texts: list[tuple[bytes, bytes]] = []
        """The time and the text of each line after the whole one; texts are JSON without quotes."""

    def add(self, line: bytes) -> bool:
        """Adds the next line if it differs from the whole one in its time and one text alone, in the same one as the
        lines between. Returns whether it was added.
        """
        shape = self._shape or _shape_of(self._line, line)
        found = None if shape is None else shape.split(line)
        if found is None:
            return False
        self._shape = shape
        self._texts.append(found)
        return True

    def lines(self) -> Iterator[bytes]:
        """Yields the lines as they are written: the first one whole, and of each other only its time and its text."""
        yield self._line
        name = b"" if self._shape is None else self._shape.name
        yield from (b'{%b"next":{%b:"%b"}}' % (time, name, text) for time, text in self._texts)

    def text(self) -> bytes:
        """Returns the texts in which the lines differ, joined, as JSON without quotes. Empty for a single line."""
        first = None if self._shape is None else self._shape.split(self._line)
        return b"".join([text for _, text in (*([first] if first else []), *self._texts)])

    def with_text(self, text: bytes) -> bytes:
        """Returns the whole line with `text` (JSON without quotes) in place of the text in which the lines differ; a
        single line unchanged.
        """
        return self._line if self._shape is None else with_text(self._line, self._shape.name, b'"%b"' % text)


def group_similar_lines(lines: Iterable[bytes]) -> Iterator[SimilarLines]:
    """Yields the lines of a cassette in groups of similar ones."""
    group: SimilarLines | None = None
    for line in lines:
        if group is None or not group.add(line):
            if group is not None:
                yield group
            group = SimilarLines(line)
    if group is not None:
        yield group


class _Shape(msgspec.Struct, frozen=True):
    """What lines have in common that differ in their times and in one text alone."""

    head: bytes
    """All between the time and the text."""
    tail: bytes
    """All after the text."""
    name: bytes
    """The name of the field with the text, as JSON."""

    def split(self, line: bytes) -> tuple[bytes, bytes] | None:
        """Returns the time and the text of a line of this shape, as JSON; None of other lines."""
        at = _end_of_time(line)
        start, end = at + len(self.head), len(line) - len(self.tail)
        if start > end or not (line.startswith(self.head, at) and line.endswith(self.tail)):
            return None
        text = line[start:end]
        if (b'"' in text or b"\\" in text) and _end_of_string(text, 0) < len(text):
            return None
        return line[1:at], text


def _end_of_time(line: bytes) -> int:
    return line.find(b",") + 1 if line.startswith(b'{"ms":') else 1


def _shape_of(before: bytes, line: bytes) -> _Shape | None:
    """Returns the shape of two lines that differ in their times and in one text alone; None of others."""
    before, line = before[_end_of_time(before) :], line[_end_of_time(line) :]
    if before[:_MIN_COMMON_BYTES] != line[:_MIN_COMMON_BYTES] or _KIND.match(line) is None:
        return None
    colon = line.rfind(b'":"', 0, common_prefix_length(before, line))
    name = line[line.rfind(b'"', 0, colon) : colon + 1] if colon > 0 else b""
    if len(name) < 3 or line[colon - 1 : colon] == b"\\" or name[-3:-1].lower() == b"id":
        return None  # ids are replaced, so that each needs its own line
    start = colon + 3
    tail = line[_end_of_string(line, start) :]
    if not tail.startswith(b'"') or before[_end_of_string(before, start) :] != tail or name + b':"' in tail:
        return None
    return _Shape(line[:start], tail, name) if start + len(tail) <= MAX_COMMON_BYTES else None


def with_text(line: bytes, name: bytes, text: bytes, most: int = MAX_COMMON_BYTES) -> bytes:
    """Returns the line with another text (as JSON) in its last field of this name. Raises `ValueError` without one,
    or if the line has more than `most` bytes without the text.
    """
    mark = name + b':"'
    if mark not in line:
        line = msgspec.json.format(line, indent=-1)  # somebody has written it with blanks
    start = line.rfind(mark)
    if start < 0:
        raise ValueError(f"the line before has no text {name.decode()}")
    start += len(mark)
    end = _end_of_string(line, start)
    if len(line) - (end - start) > most:
        raise ValueError(f"the line before has more than {most >> 10} KiB beside the text")
    return line[: start - 1] + text + line[end + 1 :]


def _end_of_string(line: bytes, start: int) -> int:
    end = start
    while (found := _STRING.match(line, end, end + _STEP)) is not None and found.end() > end:
        end = found.end()
    return end


def common_prefix_length(one: bytes, other: bytes) -> int:
    """Returns the number of bytes with which both begin."""
    for start in range(0, min(len(one), len(other)), _COMPARED):
        mine, theirs = one[start : start + _COMPARED], other[start : start + _COMPARED]
        if mine != theirs:
            size = min(len(mine), len(theirs))
            different = int.from_bytes(mine[:size], "big") ^ int.from_bytes(theirs[:size], "big")
            return start + size - (different.bit_length() + 7) // 8
    return min(len(one), len(other))
