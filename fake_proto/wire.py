"""The child's stdout: JSON values in, lines out, disturbed as the faults want it."""

from __future__ import annotations

import json
import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fake_proto.faults import Faults

HELD_BYTES = 256 * 1024
"""Joined lines are written at the latest when so many bytes have come together."""


class Wire:
    """Writes each line with one write, except where a fault says otherwise."""

    __slots__ = ("_descriptor", "_encode", "_held", "_held_bytes", "muted")

    def __init__(self, descriptor: int = 1) -> None:
        self._descriptor = descriptor
        self._encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.muted = False

    def send(self, value: dict[str, Any], faults: Faults) -> None:
        """One value as one line."""
        if self.muted:
            return
        data = self._encode(value).encode() + b"\n"
        if faults.touches_lines:
            faults.emit(data, self)
        else:
            self.write(data)

    def write(self, data: bytes) -> None:
        """Bytes to stdout now, behind what was held back."""
        if self._held:
            self.flush()
        view = memoryview(data)
        while view and not self.muted:
            view = view[os.write(self._descriptor, view) :]

    def hold(self, data: bytes) -> None:
        """Bytes to stdout with the next flush."""
        self._held.append(data)
        self._held_bytes += len(data)
        if self._held_bytes >= HELD_BYTES:
            self.flush()

    def flush(self) -> None:
        """Writes what was held back."""
        held, self._held, self._held_bytes = b"".join(self._held), [], 0
        if held:
            self.write(held)

    def close(self) -> None:
        """Closes stdout; the process lives on and says nothing more."""
        self.flush()
        self.muted = True
        os.close(self._descriptor)
