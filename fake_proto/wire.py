"""Writes JSON values to stdout as lines, which faults may change."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fake_proto.faults import Faults

HELD_BYTES = 256 * 1024
"""The most bytes that are held back to be written together."""


class Wire:
    """Writes lines to a file descriptor, each with one system call unless a fault changes that."""

    __slots__ = ("_descriptor", "_encode", "_held", "_held_bytes", "muted")

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.muted = False

    def send(self, value: dict[str, Any], faults: Faults) -> None:
        """Writes a value as a line of JSON, which `faults` may change; nothing after `close`."""
        if self.muted:
            return
        data = self._encode(value).encode() + b"\n"
        if faults.touches_lines:
            faults.emit(data, self)
        else:
            self.write(data)

    def write(self, data: bytes) -> None:
        """Writes bytes at once, after those that were held back."""
        if self._held:
            self.flush()
        view = memoryview(data)
        while view and not self.muted:
            view = view[os.write(self._descriptor, view) :]

    def hold(self, data: bytes) -> None:
        """Keeps bytes until the next `flush`, or until there are `HELD_BYTES` of them."""
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes the bytes that were held back."""
        held, self._held, self._held_bytes = b"".join(self._held), [], 0
        if held:
            self.write(held)

    def close(self) -> None:
        """Closes stdout. The process keeps running, and writes nothing more."""
        self.flush()
        self.muted = True
        os.close(self._descriptor)
