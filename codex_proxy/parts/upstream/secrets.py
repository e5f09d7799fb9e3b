"""Replaces secrets in what an upstream sends by `[hidden]`, also where JSON has escaped characters."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "[hidden]"
_HIDDEN: Final = HIDDEN.encode()


class Secrets:
    """Replaces secrets in a whole text (`hide`), or in chunks (`SecretsReader`)."""

    def __init__(self, secrets: Iterable[str]) -> None:
        """`secrets` are printable ASCII."""
        self.texts = tuple(
            secret.encode() for secret in sorted(set(secrets), key=len, reverse=True) if secret
        )
        patterns = (b"".join(map(_pattern_of, secret)) for secret in self.texts)
        self._pattern = re.compile(b"|".join(patterns))
        self._first = re.compile(b"[%b\\\\]" % b"".join(re.escape(secret[:1]) for secret in self.texts))

    def hide(self, data: bytes) -> bytes:
        if b"\\" in data and self.texts:
            return self._pattern.sub(_HIDDEN, data)
        for secret in self.texts:
            if secret in data:
                data = data.replace(secret, _HIDDEN)
        return data

    def partial_length(self, data: bytes) -> int:
        """Returns how many last bytes may begin a secret."""
        if data.endswith(b"\n") or not self.texts:
            return 0
        tail = data[-6 * len(self.texts[0]) :]
        for begin in self._first.finditer(tail):
            if any(_may_begin(tail[begin.start() :], secret) for secret in self.texts):
                return len(tail) - begin.start()
        return 0


class SecretsReader:
    """Reads one answer's chunks. What may begin a secret is held back until the next chunk, or `close`."""

    def __init__(self, secrets: Secrets) -> None:
        self._secrets = secrets
        self._held = b""

    def feed(self, chunk: bytes) -> bytes:
        data = self._secrets.hide(self._held + chunk if self._held else chunk)
        held = self._secrets.partial_length(data)
        if not held:
            self._held = b""
            return data
        self._held = data[-held:]
        return data[:-held]

    def close(self) -> bytes:
        held, self._held = self._held, b""
        return held


def _pattern_of(char: int) -> bytes:
    plain = re.escape(bytes([char]))
    escaped = b"\\\\u00(?i:%02x)" % char
    return (
        b"(?:%b|%b|\\\\%b)" % (plain, escaped, plain)
        if chr(char) in '"\\/'
        else b"(?:%b|%b)" % (plain, escaped)
    )


def _may_begin(data: bytes, secret: bytes) -> bool:
    """Whether `data` may begin the secret, whose characters may be written as in `_pattern_of`."""
    at = 0
    for char in secret:
        rest = data[at : at + 6].lower()
        if not rest:
            break
        if (b"\\u00%02x" % char).startswith(rest):
            at += len(rest)
        elif rest[:1] == b"\\" and rest[1:2] in (b"", bytes([char]).lower()):
            at += 2
        elif data[at] == char:
            at += 1
        else:
            return False
    return at >= len(data)
