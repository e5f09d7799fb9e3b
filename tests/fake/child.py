"""A fake agent as a child process: lines in, lines out, and every wait bounded."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.captures import lines_of
from tests.waiting import PATIENCE

ROOT = Path(__file__).parents[2]

Message = dict[str, Any]


class Child:
    """`python -m fake_proto <arguments>` in a session of its own, killed at the end."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fake_proto", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], **(env or {})},
            bufsize=0,
            start_new_session=True,
        )
        self._rest = bytearray()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(PATIENCE)
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()

    def send(self, *values: Message) -> None:
        """One line per value."""
        assert self.process.stdin is not None
        self.process.stdin.write(b"".join(json.dumps(value).encode() + b"\n" for value in values))

    def close_stdin(self) -> None:
        """Nothing more will be said to the child."""
        assert self.process.stdin is not None
        self.process.stdin.close()

    def read_chunk(self, wait_s: float = PATIENCE) -> bytes | None:
        """What one read gives: b"" at the end of stdout, None when nothing came in time."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        if not select.select([descriptor], [], [], wait_s)[0]:
            return None
        return os.read(descriptor, 1 << 20)

    def read_line(self, wait_s: float = PATIENCE) -> bytes | None:
        """The next line without its end; b"" at the end of stdout, None when none came in time."""
        deadline = time.monotonic() + wait_s
        searched = 0
        while (end := self._rest.find(b"\n", searched)) < 0:
            searched = len(self._rest)
            chunk = self.read_chunk(max(0.0, deadline - time.monotonic()))
            if not chunk:
                return chunk
            self._rest += chunk
        line = bytes(self._rest[:end])
        del self._rest[: end + 1]
        return line

    def read_until(self, is_last: Callable[[Message], bool]) -> list[Message]:
        """The messages up to the one that is the last; fails when it does not come."""
        return [json.loads(line) for line in self.lines_until(is_last)]

    def lines_until(self, is_last: Callable[[Message], bool]) -> list[bytes]:
        """The lines up to the one whose message is the last; fails when it does not come."""
        lines: list[bytes] = []
        while True:
            line = self.read_line()
            assert line, f"stdout ended or fell silent after {lines[-3:]}"
            lines.append(line)
            if is_last(json.loads(line)):
                return lines

    def read_rest(self) -> bytes:
        """Everything up to the end of stdout."""
        data = bytes(self._rest)
        self._rest.clear()
        while chunk := self.read_chunk():
            data += chunk
        assert chunk == b"", "stdout did not end"
        return data

    def exit_status(self) -> int:
        """The exit status, waited for."""
        return self.process.wait(PATIENCE)


def recorded_lines(dialect: str, name: str, direction: str = "out") -> list[str]:
    """The lines of a recording of the real child in one direction."""
    wanted = "from" if direction == "out" else "to"
    return [line.decode() for kind, line in lines_of(dialect, name) if kind == wanted]


def shape(value: Any) -> Any:
    """A value with every leaf replaced by the name of its type."""
    if isinstance(value, dict):
        return {key: shape(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [shape(inner) for inner in value]
    return type(value).__name__
