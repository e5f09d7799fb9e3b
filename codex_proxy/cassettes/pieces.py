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
_LINES_AT_ONCE: Final = 64
"""Number of lines compared at once, which is several times as fast."""
SLICE_BYTES: Final = 1 << 18
_RUN_BYTES: Final = 64
"""About how many bytes a line adds to a `Run`, beside its text."""
_MAX_LINES: Final = SLICE_BYTES // _RUN_BYTES
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
        """Returns the texts of the line before and of the run as one."""
        return b"".join((self.before, *self.texts))

    def parts(self) -> Iterator[Run]:
        """Yields the run in parts that are not too large for a slice."""
        if len(self.texts) <= _MAX_LINES:
            yield self
            return
        for at in range(0, len(self.texts), _MAX_LINES):
            end = at + _MAX_LINES
            yield Run(self.name, self.before, self.texts[at:end], self.times[at:end])

    def lines(self) -> bytes:
        """Returns the run as written."""
        begin, end = b'"next":{%b:"' % self.name, b'"}}\n{'
        if not self.times:
            return b"{" + begin + (end + begin).join(self.texts) + b'"}}'
        found, at = list[bytes](), 0
        while at < len(self.texts):
            until = bisect.bisect_right(self.times, self.times[at], at)
            timed = b'"ms":%d,%b' % (self.times[at], begin)
            found.append(timed + (end + timed).join(self.texts[at:until]))
            at = until
        return b"{" + end.join(found) + b'"}}'


def slices_of(lines: Iterable[bytes | Run]) -> Iterator[list[bytes | Run]]:
    """Yields the lines and runs in slices of a limited size."""
    some, size = list[bytes | Run](), 0
    for each in lines:
        for line in (each,) if isinstance(each, bytes) else each.parts():
            some.append(line)
            size += len(line) if isinstance(line, bytes) else len(line.texts) * _RUN_BYTES
            if size >= SLICE_BYTES:
                yield some
                some, size = [], 0
    if some:
        yield some


def find_runs(lines: Sequence[bytes]) -> Iterator[bytes | Run]:
    """Yields the lines, with a run in place of those that differ from the one before in one text alone; a run follows a
    whole line.
    """
    at, is_whole = 0, False
    while at < len(lines):
        shape = _shape_of(lines[at - 1], lines[at]) if is_whole else None
        texts = [] if shape is None else shape.texts(lines, at)
        is_whole = not texts
        if shape is not None and texts:
            yield Run(shape.name, shape.text(lines[at - 1]), texts)
        else:
            yield lines[at]
        at += len(texts) or 1


class _Shape(msgspec.Struct, frozen=True):
    """What two lines have in common that differ in one text alone."""

    head: bytes
    """All before the text."""
    tail: bytes
    """All after the text."""
    name: bytes

    def text(self, line: bytes) -> bytes:
        return line[len(self.head) : -len(self.tail)]

    def texts(self, lines: Sequence[bytes], at: int) -> list[bytes]:
        """Returns the texts of the successive lines from number `at` that have this shape."""
        head, tail = self.head, self.tail
        start, end, between = len(head), -len(tail), tail + b"\n" + head
        texts = list[bytes]()
        for first in range(at, len(lines), _LINES_AT_ONCE):
            some = lines[first : first + _LINES_AT_ONCE]
            found = [line[start:end] for line in some]
            fit = head + between.join(found) + tail == b"\n".join(some)
            if not fit:
                found = [self.text(line) for line in itertools.takewhile(self._fits, some)]
            if not is_json(b'"%b"' % b" ".join(found)):
                break
            texts += found
            if not fit:
                break
        return texts

    def _fits(self, line: bytes) -> bool:
        head, tail = self.head, self.tail
        return line.startswith(head) and line.endswith(tail) and len(line) >= len(head) + len(tail)


def _shape_of(before: bytes, line: bytes) -> _Shape | None:
    """Returns the shape of two lines that differ in one text alone; None of others."""
    if before[:_MIN_COMMON_BYTES] != line[:_MIN_COMMON_BYTES]:
        return None
    colon = line.rfind(b'":"', 0, common_prefix_length(before, line))
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


def is_json(data: bytes) -> bool:
    try:
        _decode(data)
    except UNREADABLE:
        return False
    return is_utf8(data)


_decode: Final = msgspec.json.Decoder(msgspec.Raw).decode


def is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def common_prefix_length(one: bytes, other: bytes) -> int:
    """Returns the number of bytes with which both begin."""
    for start in range(0, min(len(one), len(other)), _COMPARED):
        mine, theirs = one[start : start + _COMPARED], other[start : start + _COMPARED]
        if mine != theirs:
            size = min(len(mine), len(theirs))
            different = int.from_bytes(mine[:size], "big") ^ int.from_bytes(theirs[:size], "big")
            return start + size - (different.bit_length() + 7) // 8
    return min(len(one), len(other))
