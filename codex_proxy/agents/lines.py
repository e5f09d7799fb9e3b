r"""Cuts the bytes of a child's stdout into lines.

Only b"\n" ends a line: a JSON text may contain U+2028 and other characters that `str.splitlines` splits at. Lines are
not decoded here.
"""

# The longest line seen from a real agent is 12 MB (a final message is repeated whole); base64 images come
# close to that. Five times as much is still affordable once; more is a fault of the child.
MAX_LINE_BYTES = 64 * 1024 * 1024


class LineTooLong(Exception):  # noqa: N818  (it says what happened, as the rest of the vocabulary does)
    """A line exceeds the maximum length, so that the rest of the stream cannot be read.

    `limit` is the maximum in bytes; `before` has the whole lines before it in the same chunk.
    """

    def __init__(self, limit: int, before: list[bytes]) -> None:
        super().__init__(f"a line is longer than {limit} bytes")
        self.limit = limit
        self.before = before


class LineFramer:
    """Turns chunks of bytes into whole lines, without line ends and without empty lines.

    The time that it takes is linear in the bytes, however they are cut: the parts of a long line are joined once.
    """

    def __init__(self, max_line: int = MAX_LINE_BYTES) -> None:
        """`max_line` is the longest line in bytes; a carriage return counts, the newline does not."""
        self._max_line = max_line
        self._parts: list[bytes] = []
        self._size = 0
        self._broken = False

    def feed(self, chunk: bytes) -> list[bytes]:
        r"""Returns the lines that this chunk completes, each without its b"\n" and without one b"\r" before that.

        Raises `LineTooLong`, also for every chunk after that.
        """
        if self._broken:
            raise LineTooLong(self._max_line, [])
        may_be_too_long = self._size + len(chunk) > self._max_line
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and self._parts:
            self._parts.append(lines[0])
            lines[0] = b"".join(self._parts)
            self._parts.clear()
            self._size = 0
        if rest:
            self._parts.append(rest)
            self._size += len(rest)
        if may_be_too_long:
            self._refuse_too_long(lines)
        # JSON holds no bare carriage return: where there is none at all, no line has to be looked at for one.
        if lines and b"\r" not in chunk and not lines[0].endswith(b"\r") and all(lines):
            return lines
        return _clean(lines)

    def close(self) -> bytes | None:
        """Returns the unfinished last line and forgets it; None if there is none."""
        rest = _clean([b"".join(self._parts)])
        self._parts.clear()
        self._size = 0
        return rest[0] if rest else None

    def _refuse_too_long(self, lines: list[bytes]) -> None:
        whole = next((n for n, line in enumerate(lines) if len(line) > self._max_line), len(lines))
        if whole < len(lines) or self._size > self._max_line:
            self._broken = True
            self._parts.clear()
            raise LineTooLong(self._max_line, _clean(lines[:whole]))


class Chunks:
    """Returns the bytes as they arrive. Used instead of a `LineFramer` for programs that print plain text."""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Returns the chunk."""
        return [chunk]

    def close(self) -> bytes | None:
        """Returns None: nothing is held back."""
        return None


def _clean(lines: list[bytes]) -> list[bytes]:
    return [line for line in (line.removesuffix(b"\r") for line in lines) if line]
