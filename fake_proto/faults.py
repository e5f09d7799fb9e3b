"""Faults that a test asks for: changed output, crashes, hangs, ignored signals, processes left behind. A `Faults`
belongs to the process (FAKE_CODEX_MISBEHAVE) or to one turn (`misbehave=` in the marker). The README lists their names.
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
"""The default of the option `at`: the number of lines after which a fault happens."""
POLL_S = 0.01
LIFE_S = 600
"""The most seconds that the fake agent, or a process that it starts, runs after its client has left."""
STDERR_FLOOD = 4 * 1024 * 1024
CRASH_WORDS = "thread 'main' panicked: the fake agent crashed as asked"
ENDLESS = 100 * 1024 * 1024
PIECE = b"y" * (1024 * 1024)
TORN = '{"id":"1","method":"torn","msg":{"type":"agent_message_delta","delta":"«'.encode()[:-1]
"""The beginning of a line, which ends inside a UTF-8 character."""


class StalledError(Exception):
    """Ends the turn's task, so that the turn never ends."""


class Faults:
    """A set of faults, by name, with their options."""

    __slots__ = ("at", "behind", "evil_file", "lines", "names", "options", "silent_file", "touches_lines")

    def __init__(self, names: str = "", options: dict[str, str] | None = None) -> None:
        self.names = frozenset(name for name in names.split(",") if name)
        self.options = options or {}
        self.behind = f'"{self.options["behind"]}"'.encode() if "behind" in self.options else b""
        self.at = -1 if self.behind else int(self.options.get("at", AFTER_LINES))
        self.lines = 0
        self.silent_file = ""
        self.evil_file = ""
        self.touches_lines = bool(self.names)

    def has(self, name: str) -> bool:
        """Returns whether the fault `name` was asked for."""
        return name in self.names

    def begin(self, pid_file: str, silent_file: str) -> None:
        """Carries out what happens before the first line: ignored signals, left processes, output on stderr. The files
        get ids of processes; empty for none.
        """
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
        """Writes one line to `wire`, changed by the faults. Others happen after the line with the number `at` (0:
        before the first), or the first line with the string `behind`.
        """
        if self.lines == 0 and self.at == 0:
            self._strike(wire, b"")
        if "unended" in self.names or "same_ids" in self.names:
            from fake_proto.damage import ends_item, with_same_ids

            if "unended" in self.names and ends_item(data):
                return
            data = with_same_ids(data) if "same_ids" in self.names else data
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
        if self.lines == self.at or (self.behind and self.behind in data):
            self.behind = b""
            self._strike(wire, data)

    def _strike(self, wire: Wire, last: bytes) -> None:
        """Carries out the faults that happen once. `last`: the last line."""
        names = self.names
        if "wait" in names:
            wire.flush()
            signal.alarm(LIFE_S)
            while not os.path.exists(self.options["until"]):
                time.sleep(POLL_S)
            signal.alarm(0)
        if "evil" in names:
            wire.write(evil_lines(self.evil_file, last))
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


def evil_lines(evil_file: str, line: bytes) -> bytes:
    """Returns the file's content, with the ids in `line` for `<threadId>`, `<turnId>` and `<sessionId>`."""
    with open(evil_file, "rb") as file:
        lines = file.read()
    for name in (b"threadId", b"turnId", b"sessionId"):
        _, _, rest = line.partition(b'"' + name + b'":"')
        lines = lines.replace(b"<" + name + b">", rest.partition(b'"')[0])
    return lines


def note_pid(pid_file: str, pid: int) -> None:
    """Appends a process id to the file. Does nothing if `pid_file` is empty."""
    if pid_file:
        with open(pid_file, "a", encoding="ascii") as file:
            file.write(f"{pid}\n")


def leave_process(pid_file: str, *, detached: bool) -> None:
    """Starts a process that sleeps and keeps stdout and stderr open, and appends its id to `pid_file`. `detached`: in
    its own session, forked twice, so that only a subreaper finds it.
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
