"""Writes a line that differs from the one before in one string alone, such as the next delta, as that string, and reads
it. Pure.
"""

from __future__ import annotations

import bisect
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
_MIN_COMMON_BYTES: Final = 20
"""The fewest bytes that a line has in common with one before, to be written as a difference."""
_COMPARED: Final = 128
"""The bytes of two lines that are compared at once to find the first difference."""


class Run(msgspec.Struct):
    """Lines that differ from the line before in one text alone; `texts` are JSON without quotes."""

    name: bytes
    """The name of the field with the text, as JSON."""
    before: bytes
    """The text of the line before."""
    texts: Sequence[bytes]
    times: Sequence[int] = ()
    """The time of each line in milliseconds, in order, if written."""

    def text(self) -> bytes:
        """Returns the text of the line before and all others, joined."""
        return b"".join((self.before, *self.texts))

    def lines(self) -> bytes:
        if not self.times:
            return self._lines_at(b"", self.texts)
        found, start = list[bytes](), 0
        while start < len(self.texts):
            end = bisect.bisect_right(self.times, self.times[start], start)
            found.append(self._lines_at(b'"ms":%d,' % self.times[start], self.texts[start:end]))
            start = end
        return b"\n".join(found)

    def _lines_at(self, time: bytes, texts: Sequence[bytes]) -> bytes:
        begin = b'{%b"next":{%b:"' % (time, self.name)
        return begin + (b'"}}\n' + begin).join(texts) + b'"}}'


def find_runs(lines: Sequence[bytes], known: Sequence[bytes] = ()) -> Iterator[bytes | Run]:
    """Yields the lines, with a run in place of those that differ from the one before in one text alone; a run follows a
    whole line. `known`: the texts of a run that may come again.
    """
    at, is_whole = 0, False
    while at < len(lines):
        shape = _shape_of(lines[at - 1], lines[at]) if is_whole else None
        texts = [] if shape is None else shape.texts(lines, at, known)
        is_whole = shape is None
        if shape is None:
            yield lines[at]
        elif texts is known or is_json(b'"%b"' % b" ".join(texts)):
            yield Run(shape.name, shape.text(lines[at - 1]), texts)
        else:
            yield from lines[at : at + len(texts)]
        at += len(texts) or 1


def join_runs(found: Iterable[bytes | Run]) -> Iterator[bytes]:
    """Yields lines, with the texts of a run as one text in the line before it."""
    last = b""
    for each in found:
        if isinstance(each, Run):
            last = with_text(last, each.name, b'"%b"' % each.text())
        else:
            if last:
                yield last
            last = each
    if last:
        yield last


class _Shape(msgspec.Struct, frozen=True):
    """What the lines of a run have in common."""

    head: bytes
    """All before the text."""
    tail: bytes
    """All after the text."""
    name: bytes

    def text(self, line: bytes) -> bytes:
        return line[len(self.head) : -len(self.tail)]

    def texts(self, lines: Sequence[bytes], at: int, known: Sequence[bytes]) -> Sequence[bytes]:
        """Returns the texts of the successive lines from number `at` that have this shape. They may be `known`."""
        head, tail = self.head, self.tail
        start, end, between = len(head), -len(tail), tail + b"\n" + head
        texts = list[bytes]()
        if known and known[0] == self.text(lines[at]):  # to compare all is faster than to cut each out
            next = at + len(known)
            if b"%b%b%b" % (head, between.join(known), tail) == b"\n".join(lines[at:next]):
                if next == len(lines) or not self._fits(lines[next]):
                    return known
                texts += known
        for first in range(at + len(texts), len(lines), _AT_ONCE):
            some = lines[first : first + _AT_ONCE]
            found = [line[start:end] for line in some]
            if b"%b%b%b" % (head, between.join(found), tail) != b"\n".join(some):
                texts += map(self.text, itertools.takewhile(self._fits, some))
                break
            texts += found
        return texts

    def _fits(self, line: bytes) -> bool:
        head, tail = self.head, self.tail
        return line.startswith(head) and line.endswith(tail) and len(line) >= len(head) + len(tail)


def _shape_of(before: bytes, line: bytes) -> _Shape | None:
    """Returns the shape of two lines that differ in one text alone; None of others."""
    if before[:_MIN_COMMON_BYTES] != line[:_MIN_COMMON_BYTES]:
        return None
    colon = line.rfind(b'":"', 0, _common(before, line))
    name = line[line.rfind(b'"', 0, colon) : colon + 1] if colon > 0 else b""
    if len(name) < 3 or line[colon - 1 : colon] == b"\\" or name[-3:-1].lower() == b"id":
        return None  # ids are replaced, so that each needs its own line
    start = colon + 3
    ends = [_end_of_string(each, start) for each in (before, line)]
    tail = line[ends[1] :]
    if not tail.startswith(b'"') or before[ends[0] :] != tail or name + b':"' in tail:
        return None
    return _Shape(line[:start], tail, name)


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
        _decode(data)
    except UNREADABLE:
        return False
    return is_utf8(data)


_decode: Final = msgspec.json.Decoder(msgspec.Raw).decode


def is_utf8(text: bytes) -> bool:
    """Whether the bytes are UTF-8."""
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _common(one: bytes, other: bytes) -> int:
    """Returns how many bytes two lines share at the beginning."""
    for start in range(0, min(len(one), len(other)), _COMPARED):
        mine, theirs = one[start : start + _COMPARED], other[start : start + _COMPARED]
        if mine != theirs:
            size = min(len(mine), len(theirs))
            different = int.from_bytes(mine[:size], "big") ^ int.from_bytes(theirs[:size], "big")
            return start + size - (different.bit_length() + 7) // 8
    return min(len(one), len(other))
