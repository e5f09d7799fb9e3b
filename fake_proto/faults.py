"""Misbehaviour on purpose: what is done to the lines of a child, and what the child does besides.

`Faults` belongs to the whole process (FAKE_CODEX_MISBEHAVE) or to one turn (`misbehave=` in the marker) and
counts the lines that pass. It knows lines, processes and signals, and nothing of either dialect.
"""

from __future__ import annotations

import os
import signal
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fake_proto.wire import Wire

AFTER_LINES = 3
"""`at` when none is given: the fault strikes after this many lines."""
LIFE_S = 600
"""Nothing the fake agent starts, itself included, outlives this once nobody talks to it."""
STDERR_FLOOD = 4 * 1024 * 1024
CRASH_WORDS = "thread 'main' panicked: the fake agent crashed as asked"
ENDLESS = 100 * 1024 * 1024
PIECE = b"y" * (1024 * 1024)
TORN = '{"id":"1","method":"torn","msg":{"type":"agent_message_delta","delta":"«'.encode()[:-1]
"""It ends in the middle of a letter."""


class StalledError(Exception):
    """The turn stops here for ever; everything else of the process goes on."""


class Faults:
    """Named faults with options; `emit` lets one line through, in the way the faults want it."""

    __slots__ = ("at", "lines", "names", "options", "silent_file", "touches_lines")

    def __init__(self, names: str = "", options: dict[str, str] | None = None) -> None:
        self.names = frozenset(name for name in names.split(",") if name)
        self.options = options or {}
        self.at = int(self.options.get("at", AFTER_LINES))
        self.lines = 0
        self.silent_file = ""
        self.touches_lines = bool(self.names)

    def has(self, name: str) -> bool:
        """Whether this fault was asked for."""
        return name in self.names

    def begin(self, pid_file: str, silent_file: str) -> None:
        """Does what a test asks for before the first line: signals, other processes, stderr. The files: see the
        README."""
        self.silent_file = silent_file
        if "ignore_sigterm" in self.names:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if "grandchild" in self.names:
            leave_process(pid_file, detached=True)
        if "plain_grandchild" in self.names:
            leave_process(pid_file, detached=False)
        if "stderr_flood" in self.names:
            line = b"flood " * 170 + b"\n"
            for _ in range(STDERR_FLOOD // len(line)):
                os.write(2, line)

    def emit(self, data: bytes, wire: Wire) -> None:
        """One line on its way out; a fault that strikes does so behind line `at` (0: before the first)."""
        if self.lines == 0 and self.at == 0:
            self._strike(wire)
        self.lines += 1
        if "split" in self.names:
            third = max(1, len(data) // 3)
            for piece in (data[:third], data[third : 2 * third], data[2 * third :]):
                wire.write(piece)
                time.sleep(0.001)
        elif "joined" in self.names or "flood" in self.names:
            wire.hold(data)
        else:
            wire.write(data)
        if "repeat" in self.names:
            wire.write(data)
        if "wrong_types" in self.names:
            from fake_proto.damage import with_other_types

            wire.write(with_other_types(data))
        if self.lines == self.at:
            self._strike(wire)

    def _strike(self, wire: Wire) -> None:
        names = self.names
        if "garbage" in names:
            wire.write(b"Segmentation fault? no: {just a line that is not JSON\n")
        if "bad_utf8" in names:
            wire.write(
                b'{"id":"1","method":"bad/utf8","msg":{"type":"agent_message_delta","delta":"\xff\xfe"}}\n'
            )
        if "endless" in names:
            wire.write(b'{"id":"1","method":"endless","msg":{"type":"')
            for _ in range(int(self.options.get("bytes", ENDLESS)) // len(PIECE)):
                wire.write(PIECE)
            wire.write(b'"}}\n')
        if "torn" in names:
            wire.write(TORN)
            os._exit(1)
        if "crash" in names:
            wire.flush()
            sys.stderr.write(self.options.get("words", CRASH_WORDS) + "\n")
            sys.stderr.flush()
            os._exit(int(self.options.get("code", "1")))
        if "eof_without_end" in names:
            wire.flush()
            os._exit(0)
        if "close_stdout" in names:
            wire.close()
        if "deaf" in names:
            wire.flush()
            note_pid(self.silent_file, os.getpid())
            signal.alarm(LIFE_S)
            time.sleep(LIFE_S)
        if "hang" in names:
            note_pid(self.silent_file, os.getpid())
            raise StalledError


def note_pid(pid_file: str, pid: int) -> None:
    """Appends a process id to the file, when there is one."""
    if pid_file:
        with open(pid_file, "a", encoding="ascii") as file:
            file.write(f"{pid}\n")


def leave_process(pid_file: str, *, detached: bool) -> None:
    """Leaves a sleeping process behind that holds our stdout and stderr.

    Detached: forked twice into a session of its own, so that only a subreaper still finds it.
    """
    child = os.fork()
    if child:
        if detached:
            os.waitpid(child, 0)
        else:
            note_pid(pid_file, child)
        return
    if detached:
        os.setsid()
        grandchild = os.fork()
        if grandchild:
            note_pid(pid_file, grandchild)
            os._exit(0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.execvp("sleep", ["sleep", str(LIFE_S)])
