"""Writes a line that differs from the one before in one string alone, such as the next delta of a text, as that string,
and reads it again. Pure.

So the 200 deltas of an answer are 200 short lines in which one can read the text, and a secret that was said in pieces
is found in the whole text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

_STRING: Final = re.compile(rb'(?:[^"\\\x00-\x1f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*+')
"""The JSON of a string, without its quotes."""
_TIME: Final = b'AtMs":'
"""The end of the name of a time in milliseconds."""


class Run(msgspec.Struct):
    """Lines that differ from a line before them in one text alone: their texts, as JSON without quotes."""

    name: bytes
    """The name of the field with the text, as JSON."""
    before: bytes
    """The text of the line before; empty if that is of a run, too."""
    texts: list[bytes]
    ms: int | None = None
    """When they came, if that is written."""

    def lines(self) -> bytes:
        """Returns the lines as they are written."""
        begin = (
            b'{"next":{%b:"' % self.name
            if self.ms is None
            else b'{"ms":%d,"next":{%b:"' % (self.ms, self.name)
        )
        return begin + (b'"}}\n' + begin).join(self.texts) + b'"}}'


class Pieces:
    """Finds such runs. It is given the lines in their order, without line ends."""

    __slots__ = ("_before", "_first", "_head", "_name", "_tail")

    def __init__(self) -> None:
        self._before = self._head = self._tail = self._name = self._first = b""

    def find(self, lines: Sequence[bytes]) -> Iterator[bytes | Run]:
        """Returns the lines, with a run in place of those that differ from the one before in one text alone."""
        at = 0
        while at < len(lines):
            texts = self._texts(lines, at)
            if texts:
                first, self._first = self._first, b""
                yield Run(self._name, first, texts)
            else:
                yield lines[at]
            at += len(texts) or 1

    def forget(self) -> None:
        """Forgets the lines so far: the next one is not compared with them."""
        self._before = self._head = b""

    def _texts(self, lines: Sequence[bytes], at: int) -> list[bytes]:
        """Returns the texts of the lines from number `at` on that differ from the one before in the text alone."""
        line, head, tail = lines[at], self._head, self._tail
        if not (
            head and line.startswith(head) and line.endswith(tail) and len(line) >= len(head) + len(tail)
        ):
            before, self._before, self._head = self._before, line, b""
            if head or not before or not self._learn(before, line):
                return []
            head, tail = self._head, self._tail
        texts = []
        start, end = len(head), -len(tail)
        for line in lines[at:] if at else lines:
            if not (line.startswith(head) and line.endswith(tail)):
                break
            texts.append(line[start:end])
        if not _is_text(b" ".join(texts)):
            texts = texts[:1] if _is_text(texts[0]) else []
        if not texts:
            self._before, self._head = lines[at], b""
        return texts

    def _learn(self, before: bytes, line: bytes) -> bool:
        """Notes in which text a line differs from the one before. Returns whether it differs in nothing else."""
        colon = line.rfind(b'":"', 0, _common(before, line))
        name = line[line.rfind(b'"', 0, colon) : colon + 1] if colon > 0 else b""
        if len(name) < 3 or line[colon - 1 : colon] == b"\\" or name[-3:-1].lower() == b"id":
            return False  # ids are replaced, so that each needs its own line
        start = colon + 3
        ends = [found.end() for each in (before, line) if (found := _STRING.match(each, start))]
        tail = line[ends[1] :]
        if not tail.startswith(b'"') or before[ends[0] :] != tail or name + b':"' in tail:
            return False
        self._head, self._tail, self._name = line[:start], tail, name
        self._first = before[start : ends[0]]
        return True


def with_text(line: bytes, name: bytes, text: bytes) -> bytes:
    """Returns the line with another text in its last field of this name; both are JSON. Raises `ValueError` if it has
    no such field.
    """
    mark = name + b':"'
    if mark not in line:
        line = msgspec.json.format(line, indent=-1)  # somebody has written it with blanks
    start = line.rfind(mark)
    end = _STRING.match(line, start + len(mark))
    if start < 0 or end is None:
        raise ValueError(f"the line before has no text {name.decode()}")
    return line[: start + len(mark) - 1] + text + line[end.end() + 1 :]


def without_time(line: bytes) -> bytes:
    """Returns a line without the time at its end, which would make all lines differ."""
    if line[-20:-14] == _TIME and line[-14:-1].isdigit():
        return line[:-14] + b"0}"
    return line


def is_utf8(text: bytes) -> bool:
    """Returns whether the bytes are text in UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_text(text: bytes) -> bool:
    if _STRING.fullmatch(text) is None:
        return False
    if b"\\u" in text:  # half a surrogate pair cannot be read again
        try:
            msgspec.json.decode(b'"%b"' % text)
        except msgspec.DecodeError:
            return False
    return text.isascii() or is_utf8(text)


def _common(one: bytes, other: bytes) -> int:
    """Returns how many bytes two lines have in common at their beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[:middle] == other[:middle]:
            low = middle
        else:
            high = middle - 1
    return low
