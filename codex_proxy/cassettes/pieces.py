"""Writes a line that differs from the one before in one string alone, such as the next delta, as that string, and reads
it. Pure.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from codex_proxy.agents.dialect import UNREADABLE

_STRING: Final = re.compile(rb'[^"\\]*+(?:\\.[^"\\]*+)*+', re.DOTALL)
"""Matches the JSON of a string, without its quotes."""
_STEP: Final = 1 << 20
"""Maximum bytes of a string that are searched without letting other threads run."""
_TIME: Final = b'AtMs":'
"""The end of the name of a field with milliseconds."""
_AT_ONCE: Final = 64
"""Number of lines compared at once, which is three times as fast."""
_MIN_COMMON_BYTES: Final = 16
"""The fewest bytes that a line has in common with one before, to be written as a difference."""


class Run(msgspec.Struct):
    """Lines that differ from the line before in one text alone; `texts` are JSON without quotes."""

    name: bytes
    """The name of the field with the text, as JSON."""
    before: bytes
    """The text of the line before; empty if that is in a run, too."""
    texts: list[bytes]
    ms: int | None = None
    """Their time in milliseconds, if written."""

    def lines(self) -> bytes:
        begin = (
            b'{"next":{%b:"' % self.name
            if self.ms is None
            else b'{"ms":%d,"next":{%b:"' % (self.ms, self.name)
        )
        return begin + (b'"}}\n' + begin).join(self.texts) + b'"}}'


class Pieces:
    """Finds runs in the lines of a file, given in order without line ends."""

    __slots__ = ("_before", "_first", "_head", "_name", "_tail")

    def __init__(self) -> None:
        self._before = self._head = self._tail = self._name = self._first = b""

    def find(self, lines: Sequence[bytes]) -> Iterator[bytes | Run]:
        """Yields the lines, with a run in place of those that differ in one text alone."""
        at = 0
        while at < len(lines):
            line = lines[at]
            if self._fits(line) or self._learn(self._before, line):
                texts = self._texts(lines, at)
                at += len(texts)
                yield from self._run(texts)
            else:
                at += 1
                self._before = line
                yield line

    def forget(self) -> None:
        """Forgets the last line, so that the next one is written whole."""
        self._before = self._head = b""

    def _fits(self, line: bytes) -> bool:
        """Whether a line differs from the one before in the known text alone."""
        head, tail = self._head, self._tail
        return (
            bool(head)
            and line.startswith(head)
            and line.endswith(tail)
            and len(line) >= len(head) + len(tail)
        )

    def _texts(self, lines: Sequence[bytes], at: int) -> list[bytes]:
        """Returns the texts of the successive lines from number `at` that fit."""
        head, tail = self._head, self._tail
        start, end, between = len(head), -len(tail), tail + b"\n" + head
        texts = list[bytes]()
        for first in range(at, len(lines), _AT_ONCE):
            some = lines[first : first + _AT_ONCE]
            found = [line[start:end] for line in some]
            if b"%b%b%b" % (head, between.join(found), tail) != b"\n".join(some):
                texts += (line[start:end] for line in itertools.takewhile(self._fits, some))
                break
            texts += found
        return texts

    def _run(self, texts: list[bytes]) -> Iterator[bytes | Run]:
        """Yields the run of these texts, or its lines if a text is no JSON string."""
        head, tail = self._head, self._tail
        self._before = head + texts[-1] + tail
        if is_json(b'"%b"' % b" ".join(texts)):
            first, self._first = self._first, b""
            yield Run(self._name, first, texts)
        else:
            self._head = b""
            yield from (head + text + tail for text in texts)

    def _learn(self, before: bytes, line: bytes) -> bool:
        """Notes the text in which a line differs from the one before. Returns whether nothing else differs."""
        self._head = b""
        if not before or before[:_MIN_COMMON_BYTES] != line[:_MIN_COMMON_BYTES]:
            return False
        colon = line.rfind(b'":"', 0, _common(before, line))
        name = line[line.rfind(b'"', 0, colon) : colon + 1] if colon > 0 else b""
        if len(name) < 3 or line[colon - 1 : colon] == b"\\" or name[-3:-1].lower() == b"id":
            return False  # ids are replaced, so that each needs its own line
        start = colon + 3
        ends = [_end_of_string(each, start) for each in (before, line)]
        tail = line[ends[1] :]
        if not tail.startswith(b'"') or before[ends[0] :] != tail or name + b':"' in tail:
            return False
        self._head, self._tail, self._name = line[:start], tail, name
        self._first = before[start : ends[0]]
        return True


def _end_of_string(line: bytes, start: int) -> int:
    """Returns the end of the JSON string whose first character, after the quote, is at `start`."""
    end = start
    while (found := _STRING.match(line, end, end + _STEP)) is not None and found.end() > end:
        end = found.end()
    return end


def with_text(line: bytes, name: bytes, text: bytes) -> bytes:
    """Returns the line with another text (as JSON) in its last field of this name. Raises `ValueError` without one."""
    mark = name + b':"'
    if mark not in line:
        line = msgspec.json.format(line, indent=-1)  # somebody has written it with blanks
    start = line.rfind(mark)
    if start < 0:
        raise ValueError(f"the line before has no text {name.decode()}")
    start += len(mark)
    return line[: start - 1] + text + line[_end_of_string(line, start) + 1 :]


def without_times(lines: Iterable[bytes]) -> list[bytes]:
    """Returns lines without the times at their ends, in which all would differ."""
    return [
        line[:-14] + b"0}" if line[-20:-14] == _TIME and line[-14:-1].isdigit() else line for line in lines
    ]


def is_json(data: bytes) -> bool:
    """Whether the bytes are one JSON value in UTF-8."""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except UNREADABLE:
        return False
    return is_utf8(data)


def is_utf8(text: bytes) -> bool:
    """Whether the bytes are UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _common(one: bytes, other: bytes) -> int:
    """Returns how many bytes two lines share at the beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
